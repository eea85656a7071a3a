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
#include "services/agent/memory_order.h"
#include "services/agent/registrar.h"

namespace talweg::agent {

// The memory of this node's tensors: its ranks' contributions, the results, the send buffer into
// which several ranks are reduced, and, if a tensor is encoded, where its results arrive. Maps the
// core's slices to bytes.
//
// If the job's view may change, a tensor has two results, by parity of the round, and its
// contribution stays unchanged (docs/protocol.md, section 6). With a single view nobody asks for
// either again (section 7, "One place"). The tensor then has one result. It shares the memory of
// the send buffer, or of a single rank's contribution if that rank has asked for that.
//
// Owned by the data thread. `ranks` and `registrar` outlive this object.
class TensorMemory {
 public:
  struct Options {
    uint32_t rank_count = 1;
    bool one_view = false;  // The job's view does not change while a round is open.
    // Slices are so large that it pays to tell ranks which bytes of a result have arrived.
    bool tells_arrivals = false;
  };
  TensorMemory(const Options& options, shm::RankMemory* ranks, Registrar* registrar)
      : rank_count_(options.rank_count),
        one_view_(options.one_view),
        travels_(registrar->travels()),
        ranks_sum_(!travels_ && RanksSum(options.rank_count)),
        tells_arrivals_(options.tells_arrivals),
        ranks_(ranks),
        registrar_(registrar),
        rank_bytes_(options.rank_count) {}

  // Returns whether `rank_count` ranks of a job on one node sum their contributions themselves; no
  // other process touches a byte then. Each rank reads all contributions, so there must be a CPU
  // for each rank, or few ranks.
  static bool RanksSum(uint32_t rank_count);
  bool ranks_sum() const { return ranks_sum_; }

  // A tensor's send buffer and results on a GPU, which a NIC reads and writes
  // (gpu::Device::OpenToNic). Contributions that travel in frames do not use them.
  struct NicRegions {
    transport::Region send;
    std::array<transport::Region, 2> results;
  };

  // Returns whether the ranks sum this tensor themselves. All of the node's ranks must take part.
  bool RanksSum(const pipeline::TensorSpec& spec) const {
    return ranks_sum_ && !spec.collective.side && !spec.collective.leaves_out() &&
           (spec.ranks.empty() || spec.ranks.size() == rank_count_);
  }
  // What the ranks asked for beside the tensor's spec.
  struct Wishes {
    // The ranks push it from GPUs. Then they do not sum it, and the agent copies a single rank's
    // contribution, too.
    bool on_device = false;
    std::optional<NicRegions> nic;
    bool in_place = false;  // Used if the ranks sum.
    // The node's only rank, if its contribution and result may share one place.
    std::optional<shm::RankConnectionId> one_place;
  };
  // Plans the results and the send buffer, and adds to `*order` what the kernel must give for them.
  // RESOURCE_EXHAUSTED: the text has the figures.
  absl::Status Allocate(pipeline::TensorIndex tensor, const pipeline::TensorSpec& spec,
                        Wishes wishes, MemoryOrder* order);
  // `order` has been filled: registers the memory with the network. Before that nobody touches
  // the memory, and nobody is told of the tensor.
  absl::Status OnAllocated(pipeline::TensorIndex tensor);
  // `order` was not filled, or OnAllocated failed: the tensor has no memory.
  void Drop(pipeline::TensorIndex tensor);
  // Returns whether the slice's bytes lie on a GPU, where a NIC reads and writes them. The host's
  // bytes for the slice then mean nothing.
  bool OnNic(const pipeline::SliceBytes& slice) const;
  // Call it before the GPUs' memory is freed, when nothing is sent or received any more.
  void DropNicRegions();
  // Returns whether a rank may push the tensor from a GPU. It may not if the ranks sum the tensor,
  // nor if a node's only rank declared it in host memory.
  bool TakesDevices(pipeline::TensorIndex tensor) const;
  // Returns the send buffer. Empty if the tensor has none of its own.
  std::span<std::byte> SendBuffer(pipeline::TensorIndex tensor) const;
  // Returns the whole pages of the results, by parity, of a tensor that was declared on a GPU.
  // Nothing else lies in these pages. Empty for other tensors.
  std::array<std::span<std::byte>, 2> ResultPages(pipeline::TensorIndex tensor) const;
  // Plans the contribution buffer of one rank, unless it exists, and adds to `*order` what the
  // kernel must give for it.
  absl::Status Attach(pipeline::TensorIndex tensor, LocalRank rank,
                      shm::RankConnectionId connection, MemoryOrder* order);
  // `order` has been filled. As OnAllocated.
  absl::Status OnAttached(pipeline::TensorIndex tensor, LocalRank rank);

  const pipeline::TensorSpec& spec(pipeline::TensorIndex tensor) const;
  shm::Location ContributionLocation(pipeline::TensorIndex tensor, LocalRank rank) const;
  // By parity of the round. Not set if the ranks sum.
  std::array<shm::Location, 2> ResultLocations(pipeline::TensorIndex tensor) const;
  // Not set for small tensors and tensors on GPUs, nor if the ranks sum.
  shm::Location ArrivalsLocation(pipeline::TensorIndex tensor) const;
  const std::optional<shm::SharedPlace>& Shared(pipeline::TensorIndex tensor) const;
  std::array<wire::RemoteRef, 2> ResultRefs(pipeline::TensorIndex tensor) const;

  // Returns a rank's bytes of a slice. Empty if the rank has no buffer.
  std::span<const std::byte> Contribution(const pipeline::SliceBytes& slice, LocalRank rank) const;
  // Returns memory that the agent writes. `slice.memory` is not kContribution.
  std::span<std::byte> Writable(const pipeline::SliceBytes& slice) const;
  std::span<const std::byte> Readable(const pipeline::SliceBytes& slice) const;
  transport::RegionSlice RegionOf(const pipeline::SliceBytes& slice) const;

  // Writes the lengths of the parts of a round's result, for the ranks. Does nothing if the ranks
  // sum.
  void WriteLengths(pipeline::TensorIndex tensor, Round round,
                    const std::vector<uint64_t>& lengths);
  // Records, for the ranks, that a slice of the open round's result has arrived. Returns how many
  // bytes are recorded for the round, or 0 if the tensor does not record arrivals.
  uint64_t AddArrival(const pipeline::SliceBytes& result);

  // Forgets all tensors. The caller then calls RankMemory::DropTensorMemory.
  void Forget();

  uint64_t bytes() const { return bytes_; }
  // The part of bytes() that the contributions of one rank take.
  uint64_t ContributionBytes(LocalRank rank) const { return rank_bytes_[rank.value()]; }
  size_t tensor_count() const { return tensors_.size(); }

 private:
  struct Results {
    uint32_t count = 2;  // 1: one result for all rounds.
    std::array<shm::ResultBuffer, 2> buffers;
    std::array<transport::Region, 2> regions;
    shm::Location arrivals_location;
    shm::ArrivalLog arrivals;

    size_t Of(Round round) const { return count == 1 ? 0 : round.value() & 1; }
  };
  struct Entry {
    pipeline::TensorSpec spec;
    shm::BufferShape shape;  // The shape of a contribution, and of a result.
    bool on_device = false;
    Results results;
    bool reduces_into_result = false;  // The result's memory is the send buffer.
    bool one_place = false;            // The only contribution and the result share memory.
    bool is_ready = false;             // The memory is there, but for ranks' contributions.
    std::shared_ptr<PrivatePages> send_buffer;  // Null: there is none.
    transport::Region send_region;
    // If what travels is encoded: where results of both parities arrive.
    std::shared_ptr<PrivatePages> arrivals;
    transport::Region arrivals_region;
    std::vector<std::optional<shm::ContributionBuffer>> contributions;  // By local rank.
    std::optional<NicRegions> nic;
    std::optional<shm::SharedPlace> shared;  // If the ranks sum: where their contributions lie.
    transport::Region contribution_region;   // The only rank's.
  };

  void CountContribution(const Entry& entry, LocalRank rank);
  // Returns null if there was no memory for the tensor.
  const Entry* Find(pipeline::TensorIndex tensor) const;
  const Entry& At(pipeline::TensorIndex tensor) const;
  // Returns whether contribution and result now share one place.
  absl::StatusOr<bool> AllocateOnePlace(Entry& entry, const Wishes& wishes, MemoryOrder* order);
  absl::Status AllocateResults(Entry& entry, MemoryOrder* order);
  void AddArrivalLog(Entry& entry, MemoryOrder* order);
  // Plans memory for what travels of the tensor. Returns null if nothing does.
  std::shared_ptr<PrivatePages> AllocateTravel(const Entry& entry, MemoryOrder* order);
  absl::Status Register(const std::shared_ptr<PrivatePages>& pages, transport::Region& region);
  absl::StatusOr<shm::ResultBuffer> AllocateResult(uint64_t bytes, bool on_device,
                                                   MemoryOrder* order);

  const uint32_t rank_count_;
  const bool one_view_;
  const bool travels_;
  const bool ranks_sum_;
  const bool tells_arrivals_;
  shm::RankMemory* const ranks_;
  Registrar* const registrar_;
  std::vector<std::unique_ptr<Entry>> tensors_;
  uint64_t bytes_ = 0;
  // The part of `bytes_` that contributions take, by local rank.
  std::vector<uint64_t> rank_bytes_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_TENSOR_MEMORY_H_
