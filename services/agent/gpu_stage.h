// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_GPU_STAGE_H_
#define TALWEG_SERVICES_AGENT_GPU_STAGE_H_

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libs/gpu/device.h"
#include "libs/pipeline/effects.h"
#include "libs/runtime/clock.h"
#include "services/agent/gpu_collectives.h"
#include "services/agent/gpu_node.h"

namespace talweg::agent {

// Memory of this node's tensors on the host, under the core's names (TensorMemory).
class HostTensors {
 public:
  virtual ~HostTensors() = default;
  virtual const pipeline::TensorSpec& Spec(pipeline::TensorIndex tensor) const = 0;
  virtual std::span<std::byte> Writable(const pipeline::SliceBytes& slice) const = 0;
  // The contribution of a rank that pushed from host memory.
  virtual std::span<const std::byte> Contribution(const pipeline::SliceBytes& slice,
                                                  LocalRank rank) const = 0;
  // The send buffer, and the results by parity of the round. Copies of GPUs go to these and come
  // from these directly, if they can be pinned. May be empty.
  virtual std::span<std::byte> PinnableSend(pipeline::TensorIndex tensor) const = 0;
  virtual std::array<std::span<std::byte>, 2> PinnableResults(
      pipeline::TensorIndex tensor) const = 0;
};

// What the stage tells. Called inside Poll (OnGpuFailed inside any call). A sink may call the
// stage, but not Poll.
class GpuEvents {
 public:
  virtual ~GpuEvents() = default;
  // The gradient is there. For the core this is the push.
  virtual void OnGradientReady(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                               int32_t priority) = 0;
  virtual bool ReduceWanted(uint64_t ticket) = 0;
  virtual void OnReduced(uint64_t ticket, uint64_t bytes) = 0;
  // The round's result lies in the tensors of all ranks that pushed it from a GPU.
  virtual void OnDelivered(const pipeline::CompleteRound& round) = 0;
  virtual void OnUnexported(LocalRank rank, uint32_t request) = 0;
  // The events of the rank's tensors are void. The rank places the tensors again, and pushes again
  // what is open.
  virtual void OnEventsLost(LocalRank rank) = 0;
  // This node cannot go on.
  virtual void OnGpuFailed(const std::string& text) = 0;
  virtual void OnGpuNote(const std::string& text) = 0;  // For people.
};

struct GpuStageCounters {
  uint64_t pieces_by_kernel = 0;      // Ranks that share a GPU, on it.
  uint64_t pieces_by_collective = 0;  // Among GPUs.
  uint64_t pieces_by_groups = 0;      // Those that groups of GPUs reduced and the host added.
  uint64_t pieces_by_host = 0;        // Copied to the host, and combined there.
  uint64_t pieces_direct = 0;         // Those of all that a NIC sends from the GPU, or sent to it.
  uint64_t pieces_delivered = 0;
  uint64_t bytes_staged = 0;  // Copied to or from staging buffers by this thread.
  uint64_t collectives_failed = 0;
  uint64_t gpus_reopened = 0;
};

// Turns gradients on GPUs into contributions in host memory, and brings results back: docs/gpu.md.
//
// It is a state machine over libs/gpu, polled by its one owner thread. Only what declares blocks
// (Export, Place: these make a context, mappings and buffers). It knows no ranks' sockets.
//
//   push -> PUSHED asked until done -> OnGradientReady -> [core] -> Reduce -> pieces on lanes ->
//   OnReduced -> [core: network] -> Deliver -> pieces on lanes -> TAKEN recorded, asked ->
//   OnDelivered
//
// A lane is a stream on every GPU with its staging buffers. Each has one piece of a slice at a
// time. The lanes overlap: one's copy to the host runs beside another's sum and a third's copy
// back. Nothing is written into a rank's tensor before the core has decided its round, unless this
// member is the whole job, because until then a new view may want the contribution once more.
class GpuStage {
 public:
  // All of these outlive it. `graveyard` takes failed communicators.
  GpuStage(const GpuStageOptions& options, gpu::Platform& platform, const HostTensors& host,
           Graveyard& graveyard, GpuEvents& events);
  // Waits for the GPUs, except for those that a collective will not let go.
  ~GpuStage();
  GpuStage(const GpuStage&) = delete;
  GpuStage& operator=(const GpuStage&) = delete;

  // ----- What ranks hand over. A LocalRank is one process: Forget comes before its successor.
  // -----

  struct Exported {
    uint32_t buffer = 0;
    uint64_t bytes = 0;
  };
  absl::StatusOr<Exported> Export(LocalRank rank, const gpu::GpuUuid& uuid, uint64_t buffer_id,
                                  const gpu::MemoryHandle& handle);
  // OK: OnUnexported follows. FAILED_PRECONDITION: a round that was pushed from the buffer is open.
  absl::Status Unexport(LocalRank rank, uint32_t request, uint32_t buffer);
  struct Placed {
    gpu::EventHandle pushed;
    gpu::EventHandle taken;
  };
  absl::StatusOr<Placed> Place(LocalRank rank, pipeline::TensorIndex tensor, uint32_t buffer);
  struct Source {
    uint32_t buffer = 0;
    uint64_t offset = 0;
    bool again = false;  // The open round once more, after lost events.
  };
  // INVALID_ARGUMENT: the rank's push makes no sense.
  absl::Status Push(LocalRank rank, pipeline::TensorIndex tensor, Round round, int32_t priority,
                    const Source& source);

  // ----- Tensors that a NIC sends from the GPU, and receives into it: gpu_direct.cc. -----

  struct DirectMemory {
    gpu::NicMemory send;
    std::array<gpu::NicMemory, 2> results;  // By parity of the round.
  };
  // Makes the memory for a tensor that is being declared, for good. If it cannot be had:
  // FAILED_PRECONDITION, RESOURCE_EXHAUSTED or OUT_OF_RANGE (too small, or a broadcast) for this
  // tensor, UNIMPLEMENTED for any. Whoever registers the memory ends that before the tensors are
  // forgotten.
  absl::StatusOr<DirectMemory> MakeDirect(pipeline::TensorIndex tensor,
                                          const pipeline::TensorSpec& spec, uint32_t rank_count);
  void DropDirect(pipeline::TensorIndex tensor);
  // Such a tensor's slices are this stage's, wherever its ranks pushed from.
  bool IsDirect(pipeline::TensorIndex tensor) const { return direct_.contains(tensor); }
  bool AnyDirect() const { return !direct_.empty(); }
  // A slice's result that came, or leaves, in a frame. Fails only when the GPU does; then
  // OnGpuFailed is called.
  absl::Status StoreResult(const pipeline::SliceBytes& slice, std::span<const std::byte> bytes);
  absl::Status FetchResult(const pipeline::SliceBytes& slice, std::span<std::byte> bytes);

  // The rank pushes nothing more. What it pushed is still summed. Its memory goes when nothing
  // needs it.
  void OnRankLeft(LocalRank rank);
  bool IsGone(LocalRank rank) const { return !ranks_.contains(rank); }

  // ----- What the core wants. -----

  // Whether a rank has pushed the tensor's open round from a GPU. Then the slices of that round are
  // this stage's.
  bool HasGradients(pipeline::TensorIndex tensor, Round round) const;
  // The same, or a NIC has its bytes, wherever its ranks pushed it from.
  bool TakesPart(pipeline::TensorIndex tensor, Round round) const {
    return IsDirect(tensor) || HasGradients(tensor, round);
  }
  void Reduce(const pipeline::ReduceSlice& reduce);
  // OnDelivered follows, at once for a round that failed.
  void Deliver(const pipeline::CompleteRound& round);
  // The job is over. The stage begins nothing more, and tells nothing.
  void Abandon();
  // Forgets all tensors. Only when IsIdle().
  void ForgetTensors();

  // ----- The duty cycle. -----

  int Poll(int64_t now_ns);
  // Whether nothing is under way, deliveries and ranks that have left included.
  bool IsIdle() const;
  // Call it before sleeping on WaitDescriptor. It has the GPUs make the descriptor readable when
  // what this agent posted is done. Gradients end by other processes' work, so they wake nobody and
  // are asked for. Returns when Poll is wanted anyhow, which may be at once. None: not before a
  // wake-up, or another call.
  std::optional<int64_t> PrepareToSleep();
  int WaitDescriptor() const { return node_.WaitDescriptor(); }
  // Call it when the descriptor is readable, then Poll.
  void DrainWakeups() { node_.DrainWakeups(); }

  const GpuStageCounters& counters() const { return counters_; }
  size_t context_count() const { return node_.gpu_count(); }
  const GpuNode& node() const { return node_; }

 private:
  enum class Path : uint8_t { kKernel, kCollective, kHost, kDirect, kStay };
  enum class Step : uint8_t {
    kFree,
    kAwaitCommunicator,
    kLaunching,
    kCollective,
    kCopying,
    kDraining,  // Its piece goes back to its task when what was posted is done.
  };

  struct Buffer {
    gpu::GpuUuid gpu;
    uint64_t buffer_id = 0;
    gpu::MemoryHandle handle;
    gpu::DeviceSpan span;
    bool leaving = false;
    uint32_t leave_request = 0;
  };
  // One rank's part in one tensor.
  struct Part {
    gpu::GpuUuid gpu;
    gpu::EventId pushed;
    gpu::EventId taken;
    bool placed = false;  // It has these events; false after the GPU is lost.
    bool open = false;    // A round of it is open.
    bool told = false;    // The core knows of that round's push.
    bool ready = false;   // Its bytes may be read, and written.
    Round round;
    uint32_t buffer = 0;
    uint64_t offset = 0;
    gpu::DeviceSpan span;
  };
  struct Waiting {
    pipeline::TensorIndex tensor;
    Round round;
    int32_t priority = 0;
  };
  struct Rank {
    Incarnation life;
    std::vector<std::optional<Buffer>> buffers;
    std::map<pipeline::TensorIndex, Part> parts;
    std::deque<Waiting> waiting;  // Wait for PUSHED, in the order of pushes.
    size_t asked = 0;             // Which of these was asked last.
    // When it began to wait, or when the last one was done. None: since the last Poll.
    std::optional<int64_t> brought_ns;
    bool left = false;
    uint32_t tasks = 0;  // How many need its memory.
    // Whether it has exported this buffer, and still leaves it here.
    bool Usable(uint32_t number) const {
      return number < buffers.size() && buffers[number] && !buffers[number]->leaving;
    }
  };
  // A tensor's memory that one GPU has pinned for all.
  struct Pinned {
    gpu::GpuUuid gpu;
    std::vector<std::span<std::byte>> spans;
    bool send = false;
    bool results = false;
  };
  // Memory of a tensor that a NIC has, beside its places on the host.
  struct Direct {
    gpu::GpuUuid gpu;         // Its home, one that the ranks use.
    uint32_t rank_count = 0;  // The node's.
    gpu::DeviceSpan allocated;
    gpu::DeviceSpan send;
    std::array<gpu::DeviceSpan, 2> results;

    gpu::DeviceSpan Bytes(const pipeline::SliceBytes& slice) const;
  };
  struct LostGpu {
    absl::Status why;
    bool closed = false;
    int64_t since_ns = 0;
    int64_t retry_at_ns = 0;
  };
  struct Range {
    uint64_t offset = 0;  // In the tensor.
    uint64_t length = 0;
    bool host_only = false;  // A collective for it has failed.
  };
  struct Input {
    LocalRank rank;
    bool on_device = false;
    gpu::GpuUuid gpu;
    gpu::DeviceSpan span;  // The whole tensor.
  };
  // The end of a round: the result goes into the ranks' tensors, then the ranks are told.
  struct Delivery {
    pipeline::CompleteRound round;
    std::vector<LocalRank> ranks;
    size_t tasks = 0;
    bool mirrors = false;  // It goes to the host first, and from there to these.
    std::vector<Input> mirrored_for;
    bool recorded = false;
    int64_t recorded_ns = 0;
    bool wakes = false;  // When the `taken` are done.
  };
  struct Task {
    bool delivers = false;
    bool mirrors = false;            // A delivery from the GPU to the host.
    const Direct* direct = nullptr;  // A NIC's memory: the target, or a delivery's source.
    uint64_t ticket = 0;
    pipeline::SliceBytes slice;
    bool is_final = false;
    DType dtype = DType::kUnspecified;
    Op op = Op::kUnspecified;
    std::vector<Input> inputs;  // A delivery's: the ranks that get it.
    std::deque<Range> ranges;   // Not given to lanes.
    uint32_t pieces = 0;        // On lanes.
    bool abandoned = false;
    std::shared_ptr<Delivery> delivery;
    bool is_narrow() const { return IsNarrowFloat(dtype); }
  };
  struct Lane {
    Step step = Step::kFree;
    Path path = Path::kHost;
    std::shared_ptr<Task> task;
    Range range;
    GpuSet gpus;  // The GPUs that it works on.
    // A collective's GPUs: those of each group, in the order in which the groups' sums are added.
    std::vector<GpuSet> groups;
    int64_t deadline_ns = 0;
    int64_t posted_ns = 0;  // When what it waits for was posted.
    bool through_staging = false;
    bool wakes = false;         // When what is recorded is done.
    bool writes_ranks = false;  // Copies into tensors of ranks have been posted.
    // Between GPUs through the host: what was brought down is on its way up. That is a sum that the
    // host made for a NIC that reads the GPU, or a NIC's result for ranks on other GPUs.
    bool goes_up = false;
    uint64_t elements() const { return range.length / DTypeSize(task->dtype); }
    uint64_t ShardElements(const GpuSet& group) const {
      return (elements() + group.size() - 1) / group.size();
    }
    // The host adds up its result: it goes there, and nowhere else.
    bool adds_groups() const {
      return path == Path::kCollective && groups.size() > 1 && !task->delivers;
    }
  };

  Rank* Find(LocalRank rank);
  const Part* OpenPart(LocalRank rank, pipeline::TensorIndex tensor, Round round) const;
  absl::Status CheckPush(const Rank& rank, pipeline::TensorIndex tensor, Round round,
                         const Source& source) const;
  int AskGradients();
  // Returns whether the rank's `i`-th gradient no longer waits.
  bool AskGradient(LocalRank local_rank, Rank& rank, size_t i,
                   std::vector<std::pair<LocalRank, Waiting>>& done);
  absl::StatusOr<bool> IsTaken(Delivery& delivery);
  int AskTaken();
  // No collective that might hang is on its streams, launched or put aside. So a wait for the GPU
  // ends.
  bool MayWaitFor(const gpu::GpuUuid& uuid) const;
  bool MayRelease(const Rank& rank) const;
  int AnswerUnexports();
  int SweepRanks();
  void ReleaseRank(Rank& rank);
  void CloseUnusedGpus();
  absl::Status MakeEvents(Part& part);
  void DestroyEvents(const Part& part);
  void Pin(pipeline::TensorIndex tensor, const gpu::GpuUuid& uuid);
  bool IsPinned(const pipeline::SliceBytes& slice) const;
  void Unpin(pipeline::TensorIndex tensor);
  // It was posted so recently that it is done before this thread would be asleep.
  bool IsYoung(int64_t posted_ns) const { return now_ns_ - posted_ns < options_.watch_own_ns; }
  bool WakeFor(Lane& lane);
  bool WakeFor(Delivery& delivery);
  void Queue(std::shared_ptr<Task> task);
  void QueueDelivery(const std::shared_ptr<Delivery>& delivery, const std::vector<Input>& targets,
                     const std::vector<Range>& ranges, const Direct* direct, bool mirrors);
  void TaskDone(const std::shared_ptr<Task>& task);
  void Fail(const std::string& text);

  // gpu_pieces.cc: lanes.
  int StartPieces();
  int StepLane(Lane& lane);
  bool MayStart(const Task& task, const Range& range) const;
  // Whether all of its memory on GPUs is there.
  bool IsReady(const Task& task) const;
  // Grows the staging of all free lanes.
  void GrowStaging(const gpu::GpuUuid& uuid);
  void ChoosePath(Lane& lane);
  Path PathOf(const Lane& lane);
  std::vector<GpuSet> GroupsOf(const Task& task, const GpuSet& gpus);
  bool MayUse(const std::vector<GpuSet>& groups);
  // Whether one kernel sums it over the contributions.
  static bool SumsInPlace(const Task& task, const GpuSet& gpus);
  uint64_t PieceBytes(const Lane& lane);
  absl::Status Post(Lane& lane);
  absl::Status PostKernel(Lane& lane);
  absl::Status PostToHost(Lane& lane);
  absl::Status PostLocalSums(Lane& lane);
  absl::Status PostShardsDown(Lane& lane);
  absl::Status PostShardsUp(Lane& lane);
  absl::Status PostDirect(Lane& lane);
  absl::Status PostCollective(Lane& lane);
  absl::Status PostAfterCollective(Lane& lane);
  // Copies to the ranks' tensors on that GPU: from the host to the first, and from it to the
  // others.
  absl::Status CopyUpToRanks(Lane& lane, const gpu::GpuUuid& uuid,
                             std::span<const std::byte> source);
  absl::Status CopyToRanks(Lane& lane, const gpu::GpuUuid& uuid, gpu::DeviceSpan source);
  absl::Status Record(Lane& lane);
  absl::StatusOr<bool> IsDone(const Lane& lane);
  void OnCopied(Lane& lane);
  void CombineOnHost(Lane& lane);
  void PieceDone(Lane& lane);
  size_t IndexOf(const Lane& lane) const { return static_cast<size_t>(&lane - lanes_.data()); }
  LanePart& PartOf(const Lane& lane, const gpu::GpuUuid& uuid) {
    return node_.At(uuid).lanes[IndexOf(lane)];
  }
  std::span<std::byte> Staged(const Lane& lane, size_t input);
  std::span<const std::byte> Stage(const Lane& lane, const LanePart& part,
                                   std::span<const std::byte> source);
  gpu::Device& DeviceOf(const gpu::GpuUuid& uuid) { return *node_.At(uuid).device; }
  // The bytes of `range`, or of some of it, on the host.
  std::span<std::byte> HostBytes(const Lane& lane) const;
  // The bytes of a piece that one GPU of a group holds after the group's reduce-scatter.
  struct Shard {
    gpu::GpuUuid gpu;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  static std::vector<Shard> ShardsOf(const Lane& lane, const GpuSet& group);
  void AddGroups(Lane& lane);
  // Asks for all groups of the lane together.
  GpuCollectives::Readiness AskGroups(const Lane& lane);
  static GpuSet GpusOf(const Task& task);
  std::string Describe(const Lane& lane) const;

  // gpu_direct.cc
  //
  // One of the GPUs where the node's ranks have their memory. The same GPUs always have the same
  // home.
  absl::StatusOr<gpu::GpuUuid> HomeOf(const pipeline::TensorSpec& spec, uint32_t rank_count);
  // Null: these bytes lie on the host.
  const Direct* DirectOf(const pipeline::SliceBytes& slice) const;
  static gpu::DeviceSpan DirectBytes(const Lane& lane);
  // Returns the status, after it has acted on a failure.
  absl::Status Checked(absl::Status status, pipeline::TensorIndex tensor);
  absl::Status PostStay(Lane& lane);
  std::span<std::byte> HostSum(const Lane& lane);
  absl::Status PostSumUp(Lane& lane);
  absl::Status PostMirror(Lane& lane);
  absl::Status PostMirrorUp(Lane& lane);
  absl::Status PostFromHome(Lane& lane);
  absl::Status PostCollectiveOfHome(Lane& lane, const GpuSet& group,
                                    const std::vector<gpu::CollectivePart>& parts);
  absl::Status PostToHome(Lane& lane);
  void DeliverDirect(const std::shared_ptr<Delivery>& delivery, const Direct& direct,
                     std::vector<Input> targets);
  void OnMirrored(const std::shared_ptr<Delivery>& delivery);

  // gpu_failures.cc
  //
  // Gives the lane's piece back to its task, for the host, when its streams have come to rest.
  void Redo(Lane& lane);
  void GiveBack(Lane& lane);
  std::string OverContributions(const Lane& lane, const absl::Status& why) const;
  void OnPieceFailed(Lane& lane, const absl::Status& status);
  // Handles the failure of one group, and with it of all that run beside it in a lane.
  void OnCollectiveFailed(const GpuSet& group, const absl::Status& status);
  using Aside = std::vector<std::pair<gpu::GpuUuid, LanePart>>;
  void PutAside(const Lane& lane, std::map<GpuSet, Aside>& aside);
  absl::Status RenewParts(const Lane& lane);
  // Looks for lost GPUs, which `status` may tell of. False: it tells of something else.
  bool FoundLost(const absl::Status& status);
  void OnGpuLost(const gpu::GpuUuid& uuid, const absl::Status& why);
  int TendLost();
  // Whether the lost context is gone, with what was pinned in it.
  bool CloseLost(const gpu::GpuUuid& uuid);
  absl::Status Reopen(const gpu::GpuUuid& uuid);
  absl::Status Remap(NodeGpu& gpu, const gpu::GpuUuid& uuid, Rank& rank);
  bool IsLost(const gpu::GpuUuid& uuid) const { return lost_.contains(uuid); }
  bool AnyLost(const GpuSet& gpus) const;
  bool Uses(const Rank& rank, const gpu::GpuUuid& uuid) const;

  const GpuStageOptions options_;
  const HostTensors& host_;
  GpuEvents& events_;
  GpuNode node_;
  GpuCollectives collectives_;
  std::map<LocalRank, Rank> ranks_;
  std::map<gpu::GpuUuid, LostGpu> lost_;
  uint64_t next_life_ = 1;
  std::deque<std::shared_ptr<Task>> tasks_;  // Those that have ranges for lanes.
  std::vector<Lane> lanes_;
  std::list<std::shared_ptr<Delivery>> deliveries_;
  // For rounds that this agent alone finishes: the ranges whose results are on the host so far.
  std::map<pipeline::TensorIndex, std::vector<Range>> host_results_;
  std::map<pipeline::TensorIndex, Pinned> pinned_;
  std::map<pipeline::TensorIndex, Direct> direct_;
  int64_t now_ns_ = 0;  // When Poll was last called.
  bool close_gpus_ = false;
  bool touched_ = false;  // Since the last Poll.
  bool failed_ = false;
  GpuStageCounters counters_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_STAGE_H_
