// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/node_memory.h"

#include <optional>
#include <string>

#include "libs/base/check.h"
#include "libs/shm/layout/rank_sums.h"

namespace talweg::shm {
namespace {

Outcome<Arena::Buffer> AllocateFrom(Connection* connection, std::optional<Arena> Connection::*arena,
                                    uint64_t bytes) {
  if (connection == nullptr || !(connection->*arena)) {
    return Failure{RankStatus::kClosed, "the rank is gone"};
  }
  return (connection->*arena)->Allocate(bytes);
}

}  // namespace

NodeMemory::NodeMemory(const RankServerConfig& config)
    : local_rank_count_(config.local_rank_count),
      contribution_bytes_max_(config.contribution_bytes_max),
      segment_bytes_min_(config.segment_bytes_min),
      result_budget_{.bytes_max = config.result_bytes_max},
      results_({SegmentUse::kResult, config.segment_bytes_min, "results of this node"},
               &result_budget_, &next_segment_),
      plan_(config.local_rank_count, config.contribution_bytes_max, config.segment_bytes_min) {}

void NodeMemory::MakeArenas(Connection& connection) {
  const std::string owner =
      "contributions of local rank " + std::to_string(connection.local_rank.value());
  connection.budget = {.bytes_max = contribution_bytes_max_};
  connection.contributions.emplace(
      Arena::Config{SegmentUse::kContribution, segment_bytes_min_, owner}, &connection.budget,
      &next_segment_);
  connection.one_places.emplace(Arena::Config{SegmentUse::kOnePlace, segment_bytes_min_, owner},
                                &connection.budget, &next_segment_);
}

Outcome<ContributionBuffer> NodeMemory::AllocateContribution(Connection* connection,
                                                             uint64_t bytes) {
  Outcome<Arena::Buffer> buffer = AllocateFrom(connection, &Connection::contributions, bytes);
  if (!buffer.ok()) return buffer.failure();
  return ContributionBuffer{buffer.value().location, buffer.value().bytes, buffer.value().unbacked};
}

Outcome<ResultBuffer> NodeMemory::AllocateOnePlace(Connection* connection, uint64_t bytes) {
  Outcome<Arena::Buffer> buffer = AllocateFrom(connection, &Connection::one_places, bytes);
  if (!buffer.ok()) return buffer.failure();
  return ResultBuffer{buffer.value().location, buffer.value().bytes, buffer.value().unbacked};
}

Outcome<ResultBuffer> NodeMemory::AllocateResult(uint64_t bytes) {
  Outcome<Arena::Buffer> buffer = results_.Allocate(bytes);
  if (!buffer.ok()) return buffer.failure();
  return ResultBuffer{buffer.value().location, buffer.value().bytes, buffer.value().unbacked};
}

Outcome<Location> NodeMemory::Place(Connection& connection, const SharedPlace& place,
                                    bool* is_new) {
  *is_new = connection.shared.FindPart(place.part) == nullptr;
  return connection.shared.At(place, &next_segment_);
}

void NodeMemory::Clear() {
  results_.Clear();
  plan_.Clear();
}

const Segment* NodeMemory::FindSegment(Connection& connection, uint32_t id, SegmentKind* kind) {
  *kind = SegmentKind::kContribution;
  if (const SharedArena::Part* part = connection.shared.FindSegment(id)) return &part->segment;
  if (const Arena::Part* part = connection.contributions->Find(id)) return &part->segment();
  if (const Arena::Part* part = connection.one_places->Find(id)) return &part->segment();
  *kind = SegmentKind::kResult;
  const Arena::Part* part = results_.Find(id);
  return part == nullptr ? nullptr : &part->segment();
}

void NodeMemory::FindContribution(Connection& connection, TensorOfRank& tensor) {
  const Location& location = tensor.data.contribution;
  if (location.segment == 0 || tensor.contribution != nullptr) return;
  SegmentKind kind = SegmentKind::kContribution;
  const Segment* segment = FindSegment(connection, location.segment, &kind);
  TALWEG_CHECK(segment != nullptr && kind == SegmentKind::kContribution);
  const BufferShape& shape = tensor.given.shape;
  const uint64_t bytes =
      tensor.data.shared
          ? RankSumShape::Of(shape, local_rank_count_, tensor.data.shared->in_place).bytes()
          : shape.total_bytes();
  TALWEG_CHECK(bytes <= segment->bytes && location.offset <= segment->bytes - bytes);
  tensor.contribution = segment->mapping.data() + location.offset;
}

}  // namespace talweg::shm
