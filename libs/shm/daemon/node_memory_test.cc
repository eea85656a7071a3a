// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/node_memory.h"

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"

namespace talweg::shm {
namespace {

const RankServerConfig kConfig{.local_rank_count = 2,
                               .contribution_bytes_max = kMiB,
                               .result_bytes_max = kMiB,
                               .segment_bytes_min = kPageBytes};

TEST_CASE("NodeMemory: a rank that is gone gets no memory") {
  NodeMemory memory(kConfig);
  Connection connection;
  CHECK(memory.AllocateContribution(nullptr, 64).failure().status == RankStatus::kClosed);
  CHECK(memory.AllocateOnePlace(&connection, 64).failure().status == RankStatus::kClosed);
  memory.MakeArenas(connection);
  CHECK(memory.AllocateContribution(&connection, 64).ok());
  CHECK(memory.AllocateOnePlace(&connection, 64).ok());
}

TEST_CASE("NodeMemory: each segment of the node has a kind, and an id of its own") {
  NodeMemory memory(kConfig);
  Connection first;
  Connection second;
  memory.MakeArenas(first);
  memory.MakeArenas(second);
  const Location own = memory.AllocateContribution(&first, 64).value().location;
  const Location others = memory.AllocateContribution(&second, 64).value().location;
  const Location result = memory.AllocateResult(64).value().location;
  CHECK(own.segment != others.segment);
  CHECK(own.segment != result.segment);
  SegmentKind kind = SegmentKind::kResult;
  CHECK(memory.FindSegment(first, own.segment, &kind) != nullptr);
  CHECK(kind == SegmentKind::kContribution);
  CHECK(memory.FindSegment(first, result.segment, &kind) != nullptr);
  CHECK(kind == SegmentKind::kResult);
  CHECK(memory.FindSegment(first, others.segment, &kind) == nullptr);
  memory.Clear();
  CHECK(memory.FindSegment(first, result.segment, &kind) == nullptr);
}

TEST_CASE("NodeMemory: contributions to a tensor that ranks sum lie alike") {
  NodeMemory memory(kConfig);
  Connection first;
  Connection second;
  const BufferShape shape = BufferShape::Of(Collective::Of(DType::kF32, Op::kSum, 16), 2);
  const SharedPlace place = memory.Plan(shape, false).value();
  bool is_new = false;
  const Location own = memory.Place(first, place, &is_new).value();
  CHECK(is_new);
  const Location others = memory.Place(second, place, &is_new).value();
  CHECK(is_new);
  CHECK(own.segment != others.segment);
  CHECK(own.offset == others.offset);
  CHECK(memory.Place(first, place, &is_new).value() == own);
  CHECK_FALSE(is_new);
}

TEST_CASE("NodeMemory: a tensor's contribution is found in its segment") {
  NodeMemory memory(kConfig);
  Connection connection;
  memory.MakeArenas(connection);
  TensorOfRank tensor;
  tensor.given.shape = BufferShape::Of(Collective::Of(DType::kF32, Op::kSum, 16), 2);
  memory.FindContribution(connection, tensor);
  CHECK(tensor.contribution == nullptr);  // This tensor is pushed from a GPU.
  const ContributionBuffer buffer =
      memory.AllocateContribution(&connection, tensor.given.shape.total_bytes()).value();
  tensor.data.contribution = buffer.location;
  memory.FindContribution(connection, tensor);
  CHECK(tensor.contribution == buffer.bytes.data());
}

}  // namespace
}  // namespace talweg::shm
