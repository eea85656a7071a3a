// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_buffers.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

constexpr LocalRank kFirst{0};

TEST_CASE("GpuBuffers: a buffer belongs to the rank until the rank gives it back", "[gpu]") {
  Parts p;
  const TestRank& rank = p.AddRank(1);
  REQUIRE(p.buffers.Find(kFirst, 0) != nullptr);
  CHECK(p.buffers.Find(kFirst, 0)->span.bytes == rank.memory.bytes);
  CHECK(p.buffers.Get(kFirst, 1).status().code() == absl::StatusCode::kInvalidArgument);
  CHECK(p.buffers.Find(LocalRank{1}, 0) == nullptr);
  CHECK(p.buffers.GivenBack().empty());
  p.buffers.Unexport(kFirst, 7, 0);
  CHECK(p.buffers.Find(kFirst, 0) == nullptr);
  p.buffers.Hold(kFirst);  // A copy still reads the buffer.
  CHECK(p.buffers.GivenBack().empty());
  p.buffers.LetGo(kFirst);
  const auto leaving = p.buffers.GivenBack();
  REQUIRE(leaving.size() == 1);
  CHECK(leaving[0].request == 7);
  CHECK(leaving[0].gpu == p.machine.uuid(1));
  CHECK(p.machine.mapping_count() == 1);
  p.buffers.Release(leaving[0]);
  CHECK(p.machine.mapping_count() == 0);
  CHECK(p.buffers.GivenBack().empty());
}

TEST_CASE("GpuBuffers: a rank's successor waits until the rank is gone", "[gpu]") {
  Parts p;
  p.AddRank(0);
  p.buffers.Hold(kFirst);
  CHECK(p.buffers.MayExport(kFirst).ok());
  p.buffers.OnRankLeft(kFirst);
  CHECK(absl::IsUnavailable(p.buffers.MayExport(kFirst)));
  CHECK(p.buffers.Find(kFirst, 0) == nullptr);
  CHECK(p.buffers.Finished().empty());
  p.buffers.LetGo(kFirst);
  REQUIRE(p.buffers.Finished() == std::vector{kFirst});
  p.buffers.Release(kFirst);
  CHECK(p.machine.mapping_count() == 0);
  CHECK(p.buffers.empty());
  CHECK(p.buffers.MayExport(kFirst).ok());
}

TEST_CASE("GpuBuffers: only ranks that are here count for where memory lies", "[gpu]") {
  Parts p;
  p.AddRank(2);
  p.AddRank(1);
  p.AddRank(1);
  CHECK(p.buffers.PresentSpread().ranks == 3);
  CHECK(p.buffers.PresentSpread().gpus.size() == 2);
  p.buffers.OnRankLeft(kFirst);
  CHECK(p.buffers.PresentSpread().ranks == 2);
  CHECK(p.buffers.PresentSpread().gpus == GpuSet{p.machine.uuid(1)});
  CHECK(p.buffers.RanksOn(p.machine.uuid(2)).empty());
  CHECK(p.buffers.Use(p.machine.uuid(2)));  // Its memory is still mapped.
}

TEST_CASE("GpuBuffers: memory is mapped anew after a loss", "[gpu]") {
  Parts p;
  p.AddRank(0);
  p.AddRank(1);
  p.losses.Add(p.machine.uuid(0), absl::AbortedError(""), 0);
  p.buffers.Unexport(kFirst, 1, 0);
  CHECK(p.buffers.GivenBack().empty());  // The buffer is not given back while the GPU is lost.
  p.LoseAndReopen(0);
  CHECK(p.machine.mapping_count() == 1);
  REQUIRE(p.buffers.MapAgain(p.machine.uuid(0)).ok());
  CHECK(p.machine.mapping_count() == 2);
  p.losses.Remove(p.machine.uuid(0));
  CHECK(p.buffers.GivenBack().size() == 1);
  p.machine.RefuseImports(absl::PermissionDeniedError("no"));
  p.LoseAndReopen(1);
  CHECK_THAT(std::string(p.buffers.MapAgain(p.machine.uuid(1)).message()),
             Catch::Matchers::Contains("memory of local rank 1"));
}

}  // namespace
}  // namespace talweg::agent
