// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_tasks.h"

#include "services/agent/gpu_parts_fixture.h"

namespace talweg::agent {
namespace {

constexpr LocalRank kFirst{0};

std::shared_ptr<GpuTask> Front(const Parts& p) { return p.tasks.waiting().front(); }

TEST_CASE("GpuTasks: a slice is cut into pieces, and reduced when the last is done", "[gpu]") {
  Parts p;
  p.AddReady(0, 1);
  CHECK_FALSE(p.tasks.has_news());
  p.tasks.AddReduce(p.ReduceOf(1, {kFirst}), nullptr);
  CHECK(p.tasks.has_news());
  const std::shared_ptr<GpuTask> task = Front(p);
  CHECK(task->gpus() == GpuSet{p.machine.uuid(0)});
  CHECK(p.tasks.IsReady(*task));
  const GpuRange one = p.tasks.Cut(task, 2560);
  const GpuRange rest = p.tasks.Cut(task, 2560);
  CHECK(std::pair(one.offset, one.length) == std::pair<uint64_t, uint64_t>(0, 2560));
  CHECK(std::pair(rest.offset, rest.length) == std::pair<uint64_t, uint64_t>(2560, 1440));
  CHECK(p.tasks.waiting().empty());
  p.tasks.OnPieceDone(task);
  CHECK(p.reduced.empty());
  p.tasks.OnPieceDone(task);
  CHECK(p.reduced == std::vector<uint64_t>{1});
}

TEST_CASE("GpuTasks: memory is held until the task is done", "[gpu]") {
  Parts p;
  p.AddReady(0, 1);
  p.tasks.AddReduce(p.ReduceOf(1, {kFirst}), nullptr);
  p.buffers.OnRankLeft(kFirst);
  CHECK(p.buffers.Finished().empty());
  const std::shared_ptr<GpuTask> task = Front(p);
  p.tasks.Cut(task, kMiB);
  p.tasks.OnPieceDone(task);
  CHECK(p.buffers.Finished().size() == 1);
}

TEST_CASE("GpuTasks: the host does a piece that failed, before all others", "[gpu]") {
  Parts p;
  p.AddReady(0, 1);
  p.AddReady(0, 1);
  p.tasks.AddReduce(p.ReduceOf(1, {kFirst, LocalRank{1}}), nullptr);
  const std::shared_ptr<GpuTask> task = Front(p);
  const GpuRange piece = p.tasks.Cut(task, kMiB);
  p.tasks.AddReduce(p.ReduceOf(1, {kFirst}), nullptr);
  p.tasks.GiveBack(task, piece);
  REQUIRE(Front(p) == task);
  CHECK(task->ranges.front().host_only);
  p.wanted.clear();
  CHECK_FALSE(p.tasks.IsWanted(*task));
  p.tasks.Drop(0);
  p.tasks.Drop(0);
  CHECK(p.tasks.waiting().empty());
  CHECK(p.reduced.empty());
  p.buffers.OnRankLeft(kFirst);
  CHECK(p.buffers.Finished().size() == 1);
}

TEST_CASE("GpuTasks: a task waits while some of its memory is not there", "[gpu]") {
  Parts p;
  p.AddReady(0, 1);
  p.tasks.AddReduce(p.ReduceOf(1, {kFirst}), nullptr);
  p.losses.Add(p.machine.uuid(0), absl::AbortedError(""), 0);
  CHECK_FALSE(p.tasks.IsReady(*Front(p)));
  p.losses.Remove(p.machine.uuid(0));
  CHECK(p.tasks.IsReady(*Front(p)));
  p.gradients.OnGpuLost(p.machine.uuid(0));  // The rank will push its gradient again.
  CHECK_FALSE(p.tasks.IsReady(*Front(p)));
}

TEST_CASE("GpuTasks: a mirrored result goes on from the host to the ranks", "[gpu]") {
  Parts p;
  p.AddReady(0, 1);
  const auto delivery = std::make_shared<GpuDelivery>();
  delivery->round = {.tensor = TensorIndex{0}, .round = Round{1}};
  delivery->ranks = {kFirst};
  const bool any = GENERATE(false, true);
  if (any) delivery->mirrored_for = p.tasks.TargetsOf(*delivery);
  delivery->mirrors = true;
  const GpuHome home{.gpu = p.machine.uuid(0)};
  p.tasks.AddDelivery(delivery, {}, p.tasks.AllOf(TensorIndex{0}), &home, true);
  std::shared_ptr<GpuTask> task = Front(p);
  CHECK(task->mirrors);
  p.tasks.Cut(task, kMiB);
  p.tasks.OnPieceDone(task);
  CHECK(delivery->recorded == !any);  // Without targets nobody is to be told.
  REQUIRE(p.tasks.waiting().size() == (any ? 1 : 0));
  if (!any) return;
  task = Front(p);
  CHECK((task->delivers && !task->mirrors && task->home == nullptr));
  CHECK(task->inputs.size() == 1);
  CHECK(delivery->tasks == 1);
}

TEST_CASE("GpuTasks: only a result that this agent alone finished on the host is brought to GPUs",
          "[gpu]") {
  Parts p;
  p.AddReady(0, 1);
  // The result is the network's: all of it comes from the host.
  CHECK(p.tasks.RangesFromHost(TensorIndex{0}).size() == 1);
  pipeline::ReduceSlice reduce = p.ReduceOf(1, {kFirst});
  reduce.is_final = true;
  p.tasks.AddReduce(reduce, nullptr);
  CHECK(p.tasks.RangesFromHost(TensorIndex{0}).empty());
  p.tasks.OnResultOnHost(TensorIndex{0}, {64, 128});
  REQUIRE(p.tasks.RangesFromHost(TensorIndex{0}).size() == 1);
  CHECK(p.tasks.RangesFromHost(TensorIndex{0})[0].offset == 64);
  p.tasks.ForgetResult(TensorIndex{0});
  CHECK(p.tasks.RangesFromHost(TensorIndex{0})[0].offset == 0);
}

}  // namespace
}  // namespace talweg::agent
