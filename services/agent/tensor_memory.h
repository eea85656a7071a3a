// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_TENSOR_MEMORY_H_
#define TALWEG_SERVICES_AGENT_TENSOR_MEMORY_H_

#include <absl/status/status.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "libs/pipeline/effects.h"
#include "libs/shm/daemon/arrival_log.h"
#include "libs/shm/daemon/rank_memory.h"
#include "libs/transport/transport.h"

namespace talweg::agent {

// Anonymous memory of this process, in whole pages, zero until written. Movable.
class PrivatePages {
 public:
  PrivatePages() = default;
  static absl::StatusOr<PrivatePages> Map(size_t bytes);
  PrivatePages(PrivatePages&& other) noexcept;
  PrivatePages& operator=(PrivatePages&& other) noexcept;
  ~PrivatePages();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

// Where this node's tensors lie: contributions of its ranks, results, and the send buffer that
// several ranks are reduced to. Names of the core become memory here.
//
// In a job whose view may change a tensor has two results, by parity of the round, and what it has
// contributed stays (docs/protocol.md, section 6). In one that has a single view nobody asks for
// either again (section 7, "One place"): there is one result, which stands where several ranks are
// reduced to, or where a single rank contributes if that rank has asked for it.
//
// Owned by the data thread. `ranks` and `transport` outlive it; `transport` may be null (alone,
// nothing is sent).
class TensorMemory {
 public:
  struct Options {
    uint32_t rank_count = 1;
    bool one_view = false;  // The job's view does not change while a round is open.
    // Slices are large enough for what has come of a result to be told.
    bool tells_arrivals = false;
  };
  TensorMemory(const Options& options, shm::RankMemory* ranks, transport::Transport* transport)
      : rank_count_(options.rank_count),
        one_view_(options.one_view),
        ranks_sum_(transport == nullptr && RanksSum(options.rank_count)),
        tells_arrivals_(options.tells_arrivals),
        ranks_(ranks),
        transport_(transport),
        rank_bytes_(options.rank_count) {}

  // Whether so many ranks, alone, sum their contributions themselves: no process but they touches
  // a byte then. Each reads all contributions, so there must be a CPU for each, or few of them.
  static bool RanksSum(uint32_t rank_count);
  bool ranks_sum() const { return ranks_sum_; }

  // Where a NIC has a tensor on a GPU: its send buffer and its results, but not what travels in
  // frames (gpu::Device::OpenToNic).
  struct NicRegions {
    transport::Region send;
    std::array<transport::Region, 2> results;
  };

  // Whether the node's ranks combine it themselves: all of them have to take part.
  bool RanksSum(const pipeline::TensorSpec& spec) const {
    return ranks_sum_ && !spec.collective.side &&
           (spec.ranks.empty() || spec.ranks.size() == rank_count_);
  }
  // What is known of a tensor beside its spec.
  struct Wishes {
    // Its ranks push it from GPUs, so that they do not sum it, and a single rank's contribution is
    // copied.
    bool on_device = false;
    std::optional<NicRegions> nic;
    bool in_place = false;  // If its ranks sum.
    // The only rank, if it may have contribution and result in one place.
    std::optional<shm::RankConnectionId> one_place;
  };
  // Results and send buffer. RESOURCE_EXHAUSTED with the figures.
  absl::Status Allocate(pipeline::TensorIndex tensor, const pipeline::TensorSpec& spec,
                        Wishes wishes);
  // A NIC has these bytes, on a GPU: what is on the host in their place means nothing.
  bool OnNic(const pipeline::SliceBytes& slice) const;
  // Before the GPUs' memory goes. Nothing is sent or received any more.
  void DropNicRegions();
  // Whether a rank may push it from a GPU: not if it was first declared for where it lies.
  bool TakesDevices(pipeline::TensorIndex tensor) const;
  // Only a tensor that was declared on a GPU has one, where something is sent.
  std::span<std::byte> SendBuffer(pipeline::TensorIndex tensor) const;
  // What holds the results of a tensor that was declared on a GPU, by parity: whole pages, that
  // nothing else lies in. Else none.
  std::array<std::span<std::byte>, 2> ResultPages(pipeline::TensorIndex tensor) const;
  // The contribution buffer of one rank; once made it stays.
  absl::Status Attach(pipeline::TensorIndex tensor, LocalRank rank,
                      shm::RankConnectionId connection);

  const pipeline::TensorSpec& spec(pipeline::TensorIndex tensor) const;
  shm::Location ContributionLocation(pipeline::TensorIndex tensor, LocalRank rank) const;
  // By parity of the round. None when the ranks sum.
  std::array<shm::Location, 2> ResultLocations(pipeline::TensorIndex tensor) const;
  // None of small tensors, nor of those on GPUs, nor when the ranks sum.
  shm::Location ArrivalsLocation(pipeline::TensorIndex tensor) const;
  const std::optional<shm::SharedPlace>& Shared(pipeline::TensorIndex tensor) const;
  std::array<wire::RemoteRef, 2> ResultRefs(pipeline::TensorIndex tensor) const;

  // A rank's bytes of a slice. Empty when the rank has no buffer.
  std::span<const std::byte> Contribution(const pipeline::SliceBytes& slice, LocalRank rank) const;
  // Memory that the agent writes: kSendBuffer, kResult.
  std::span<std::byte> Writable(const pipeline::SliceBytes& slice) const;
  std::span<const std::byte> Readable(const pipeline::SliceBytes& slice) const;
  transport::RegionSlice RegionOf(const pipeline::SliceBytes& slice) const;

  // How long the parts of a round's result are, for the ranks. Nothing where the ranks sum.
  void WriteLengths(pipeline::TensorIndex tensor, Round round,
                    const std::vector<uint64_t>& lengths);
  // Tells ranks that a slice of the open round's result is there. Returns how many bytes of it are,
  // as far as that is told; 0: it is not.
  uint64_t AddArrival(const pipeline::SliceBytes& result);

  // All tensors are forgotten. RankMemory::DropTensorMemory follows.
  void Forget();

  uint64_t bytes() const { return bytes_; }
  // What the contributions of one rank take of that.
  uint64_t ContributionBytes(LocalRank rank) const { return rank_bytes_[rank.value()]; }
  size_t tensor_count() const { return tensors_.size(); }

 private:
  struct Results {
    uint32_t count = 2;  // 1: the same for every round.
    std::array<shm::ResultBuffer, 2> buffers;
    std::array<transport::Region, 2> regions;
    shm::Location arrivals_location;
    shm::ArrivalLog arrivals;

    size_t Of(Round round) const { return count == 1 ? 0 : round.value() & 1; }
  };
  struct Entry {
    pipeline::TensorSpec spec;
    shm::BufferShape shape;  // A contribution's, and a result's.
    bool on_device = false;
    Results results;
    bool reduces_into_result = false;  // There is no other send buffer.
    bool one_place = false;            // The only contribution, and the result.
    PrivatePages send_buffer;
    transport::Region send_region;
    std::vector<std::optional<shm::ContributionBuffer>> contributions;  // By local rank.
    std::optional<NicRegions> nic;
    std::optional<shm::SharedPlace> shared;  // When the ranks sum: where their contributions lie.
    transport::Region contribution_region;   // The only rank's.
  };

  void CountContribution(const Entry& entry, LocalRank rank);
  // Null: there was no memory for it.
  const Entry* Find(pipeline::TensorIndex tensor) const;
  const Entry& At(pipeline::TensorIndex tensor) const;
  // Whether contribution and result now are in one place.
  absl::StatusOr<bool> AllocateOnePlace(Entry& entry, const Wishes& wishes);
  absl::Status AllocateResults(Entry& entry);
  void AddArrivalLog(Entry& entry);
  absl::Status RegisterResults(Results& results);
  absl::StatusOr<shm::ResultBuffer> AllocateResult(uint64_t bytes, bool on_device);

  const uint32_t rank_count_;
  const bool one_view_;
  const bool ranks_sum_;
  const bool tells_arrivals_;
  shm::RankMemory* const ranks_;
  transport::Transport* const transport_;
  std::vector<std::unique_ptr<Entry>> tensors_;
  uint64_t bytes_ = 0;
  std::vector<uint64_t> rank_bytes_;  // Those of them that are contributions, by local rank.
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_TENSOR_MEMORY_H_
