// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_SIM_RANK_MEMORY_H_
#define TALWEG_TESTS_SIM_SIM_RANK_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "libs/shm/daemon/rank_memory.h"
#include "tests/sim/network.h"

namespace talweg::sim {

// For real bytes in which the first number of every 64 bytes is a cell.
Cells CellsIn(std::span<const std::byte> bytes);
void StoreCell(std::span<std::byte> bytes, uint64_t cell, uint64_t value);

// The memory that an agent shares with its simulated ranks. Each buffer is a segment.
class SimRankMemory final : public shm::RankMemory {
 public:
  // The next tensor gets no memory for its results.
  void RefuseNextResult() { refuses_ = true; }

  // Returns the bytes as a rank sees them that has mapped the segment.
  std::span<std::byte> At(const shm::Location& location);

  // --- shm::RankMemory.
  shm::Outcome<shm::ContributionBuffer> AllocateContribution(shm::RankConnectionId connection,
                                                             uint64_t bytes) override;
  shm::Outcome<shm::ResultBuffer> AllocateOnePlace(shm::RankConnectionId connection,
                                                   uint64_t bytes) override;
  shm::Outcome<shm::SharedPlace> PlanContribution(const shm::BufferShape& shape,
                                                  bool in_place) override;
  shm::Outcome<shm::Location> PlaceContribution(shm::RankConnectionId connection,
                                                const shm::SharedPlace& place) override;
  shm::Outcome<shm::ResultBuffer> AllocateResult(uint64_t bytes) override;
  void DropTensorMemory() override { segments_.clear(); }

 private:
  // As segments are, it is aligned and zeroed.
  struct alignas(kCellBytes) Cell {
    std::byte bytes[kCellBytes] = {};
  };

  std::pair<shm::Location, std::span<std::byte>> Allocate(uint64_t bytes);

  // Says of each buffer that the kernel has still to give it.
  class Given final : public shm::BackedLater {
    shm::Outcome<bool> Back(uint64_t, uint64_t) override { return true; }
    void BackAhead() override {}
  };
  shm::UnbackedMemory Unbacked() const { return {given_, 0, 1}; }

  const std::shared_ptr<Given> given_ = std::make_shared<Given>();
  std::deque<std::vector<Cell>> segments_;  // By number, from 1.
  bool refuses_ = false;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_SIM_RANK_MEMORY_H_
