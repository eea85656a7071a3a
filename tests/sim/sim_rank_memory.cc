// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/sim_rank_memory.h"

#include <cstring>

#include "tests/sim/ledger.h"

namespace talweg::sim {

Cells CellsIn(std::span<const std::byte> bytes) {
  Cells cells(CellCount(bytes.size()));
  for (size_t i = 0; i < cells.size(); ++i) {
    std::memcpy(&cells[i], bytes.data() + i * kCellBytes, sizeof cells[i]);
  }
  return cells;
}

void StoreCell(std::span<std::byte> bytes, uint64_t cell, uint64_t value) {
  std::memcpy(bytes.data() + cell * kCellBytes, &value, sizeof value);
}

std::span<std::byte> SimRankMemory::At(const shm::Location& location) {
  if (location.segment == 0 || location.segment > segments_.size()) {
    throw Violation{"a rank is told of memory that does not exist"};
  }
  return std::as_writable_bytes(std::span(segments_[location.segment - 1]))
      .subspan(location.offset);
}

std::pair<shm::Location, std::span<std::byte>> SimRankMemory::Allocate(uint64_t bytes) {
  segments_.emplace_back(CellCount(bytes));
  return {{.segment = static_cast<uint32_t>(segments_.size())},
          std::as_writable_bytes(std::span(segments_.back())).first(bytes)};
}

shm::Outcome<shm::ContributionBuffer> SimRankMemory::AllocateContribution(
    shm::RankConnectionId /*connection*/, uint64_t bytes) {
  const auto [location, memory] = Allocate(bytes);
  return shm::ContributionBuffer{location, memory, Unbacked()};
}

shm::Outcome<shm::ResultBuffer> SimRankMemory::AllocateResult(uint64_t bytes) {
  if (std::exchange(refuses_, false)) {
    return shm::Failure{shm::RankStatus::kOutOfMemory, "not enough memory"};
  }
  const auto [location, memory] = Allocate(bytes);
  return shm::ResultBuffer{location, memory, Unbacked()};
}

shm::Outcome<shm::ResultBuffer> SimRankMemory::AllocateOnePlace(shm::RankConnectionId connection,
                                                                uint64_t bytes) {
  if (connection.value() == 0) throw Violation{"memory is made for a rank that does not exist"};
  return AllocateResult(bytes);
}

// These agents have a transport, so their ranks do not sum.
shm::Outcome<shm::SharedPlace> SimRankMemory::PlanContribution(const shm::BufferShape& /*shape*/,
                                                               bool /*in_place*/) {
  throw Violation{"ranks are to sum, though their agent has a transport"};
}

shm::Outcome<shm::Location> SimRankMemory::PlaceContribution(shm::RankConnectionId /*connection*/,
                                                             const shm::SharedPlace& /*place*/) {
  throw Violation{"ranks are to sum, though their agent has a transport"};
}

}  // namespace talweg::sim
