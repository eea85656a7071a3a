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
  // Of a rank that pushed from host memory.
  virtual std::span<const std::byte> Contribution(const pipeline::SliceBytes& slice,
                                                  LocalRank rank) const = 0;
  // What copies of GPUs may go to and come from directly, if it can be pinned: the send buffer, and
  // the results by parity of the round. May be empty.
  virtual std::span<std::byte> PinnableSend(pipeline::TensorIndex tensor) const = 0;
  virtual std::array<std::span<std::byte>, 2> PinnableResults(
      pipeline::TensorIndex tensor) const = 0;
};

// What the stage tells. Called inside Poll (and OnGpuFailed inside any call); a sink may call the
// stage, but for Poll.
class GpuEvents {
 public:
  virtual ~GpuEvents() = default;
  // The gradient is there: for the core this is the push.
  virtual void OnGradientReady(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                               int32_t priority) = 0;
  virtual bool ReduceWanted(uint64_t ticket) = 0;
  virtual void OnReduced(uint64_t ticket, uint64_t bytes) = 0;
  // The round's result lies in the tensors of all ranks that pushed it from a GPU.
  virtual void OnDelivered(const pipeline::CompleteRound& round) = 0;
  virtual void OnUnexported(LocalRank rank, uint32_t request) = 0;
  // The events of its tensors are void: it places them again, and pushes again what is open.
  virtual void OnEventsLost(LocalRank rank) = 0;
  // This node cannot go on.
  virtual void OnGpuFailed(const std::string& text) = 0;
  virtual void OnGpuNote(const std::string& text) = 0;  // For people.
};

struct GpuStageCounters {
  uint64_t pieces_by_kernel = 0;      // Ranks that share a GPU, on it.
  uint64_t pieces_by_collective = 0;  // Among GPUs.
  uint64_t pieces_by_groups = 0;      // Of these, among groups of GPUs, and added on the host.
  uint64_t pieces_by_host = 0;        // Copied to the host, and combined there.
  uint64_t pieces_direct = 0;         // Of all, those that a NIC sends from, or sent to, the GPU.
  uint64_t pieces_delivered = 0;
  uint64_t bytes_staged = 0;  // Copied to or from staging buffers by this thread.
  uint64_t collectives_failed = 0;
  uint64_t gpus_reopened = 0;
};

// Where gradients on GPUs become contributions in host memory, and results go back: docs/gpu.md.
//
// A state machine over libs/gpu, polled by its one owner thread; nothing blocks but what declares
// (Export, Place: a context, mappings and buffers are made there). It knows no ranks' sockets.
//
//   push -> PUSHED asked until done -> OnGradientReady -> [core] -> Reduce -> pieces on lanes ->
//   OnReduced -> [core: network] -> Deliver -> pieces on lanes -> TAKEN recorded, asked ->
//   OnDelivered
//
// A lane is a stream on every GPU with its staging buffers; each has one piece of a slice at a
// time, and the lanes overlap: one's copy to the host runs beside another's sum and a third's copy
// back. Nothing is written into a rank's tensor before the core has decided its round (unless this
// member is the whole job), since until then a new view may want the contribution once more.
class GpuStage {
 public:
  // All outlive it. `graveyard` takes communicators that failed.
  GpuStage(const GpuStageOptions& options, gpu::Platform& platform, const HostTensors& host,
           Graveyard& graveyard, GpuEvents& events);
  // Waits for the GPUs, but for those that a collective will not let go.
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
  // OK: OnUnexported follows. FAILED_PRECONDITION: a round that was pushed from it is open.
  absl::Status Unexport(LocalRank rank, uint32_t request, uint32_t buffer);
  struct Placed {
    gpu::EventHandle pushed;
    gpu::EventHandle taken;
  };
  absl::StatusOr<Placed> Place(LocalRank rank, pipeline::TensorIndex tensor, uint32_t buffer);
  struct Source {
    uint32_t buffer = 0;
    uint64_t offset = 0;
    bool again = false;  // The round that is open, since events were lost.
  };
  // INVALID_ARGUMENT: the rank made no sense.
  absl::Status Push(LocalRank rank, pipeline::TensorIndex tensor, Round round, int32_t priority,
                    const Source& source);

  // ----- Tensors that a NIC sends from the GPU, and receives into it: gpu_direct.cc. -----

  struct DirectMemory {
    gpu::NicMemory send;
    std::array<gpu::NicMemory, 2> results;  // By parity of the round.
  };
  // For a tensor that is being declared, and for good. Not to be had: FAILED_PRECONDITION,
  // RESOURCE_EXHAUSTED, OUT_OF_RANGE (too small, or a broadcast) for this tensor, UNIMPLEMENTED for
  // any. Whoever registers it has ended that before the tensors are forgotten.
  absl::StatusOr<DirectMemory> MakeDirect(pipeline::TensorIndex tensor,
                                          const pipeline::TensorSpec& spec, uint32_t rank_count);
  void DropDirect(pipeline::TensorIndex tensor);
  // Then its slices are this stage's, wherever its ranks pushed from.
  bool IsDirect(pipeline::TensorIndex tensor) const { return direct_.contains(tensor); }
  bool AnyDirect() const { return !direct_.empty(); }
  // A slice's result that came, or leaves, in a frame. Fails only with the GPU: OnGpuFailed is
  // told.
  absl::Status StoreResult(const pipeline::SliceBytes& slice, std::span<const std::byte> bytes);
  absl::Status FetchResult(const pipeline::SliceBytes& slice, std::span<std::byte> bytes);

  // It pushes nothing more. What it pushed is still summed; its memory goes when nothing needs it.
  void OnRankLeft(LocalRank rank);
  bool IsGone(LocalRank rank) const { return !ranks_.contains(rank); }

  // ----- What the core wants. -----

  // Whether a rank has pushed the tensor's open round from a GPU: then the slices of that round are
  // this stage's.
  bool HasGradients(pipeline::TensorIndex tensor, Round round) const;
  // Or its bytes are a NIC's, wherever its ranks pushed it from.
  bool TakesPart(pipeline::TensorIndex tensor, Round round) const {
    return IsDirect(tensor) || HasGradients(tensor, round);
  }
  void Reduce(const pipeline::ReduceSlice& reduce);
  // OnDelivered follows; at once for a round that failed.
  void Deliver(const pipeline::CompleteRound& round);
  // The job is over: nothing that has not begun is done, and nothing told.
  void Abandon();
  // All tensors are forgotten. Only when IsIdle().
  void ForgetTensors();

  // ----- The duty cycle. -----

  int Poll(int64_t now_ns);
  // Nothing is under way (deliveries and ranks that have left included).
  bool IsIdle() const;
  // Before sleeping on WaitDescriptor: has the GPUs make it readable when what this agent posted is
  // done. Gradients, whose ends are other processes', wake nobody and are asked for. Returns
  // when Poll is wanted anyhow, which may be at once; none: not before that, or another call.
  std::optional<int64_t> PrepareToSleep();
  int WaitDescriptor() const { return node_.WaitDescriptor(); }
  // When it is readable; then Poll.
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
    kDraining,  // Its piece goes back to its job when what was posted is done.
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
    bool placed = false;  // It has these events; false again when the GPU is lost.
    bool open = false;    // A round of it is.
    bool told = false;    // To the core that round was pushed.
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
    std::deque<Waiting> waiting;  // For PUSHED, in the order of pushes.
    size_t asked = 0;             // Which of these was, last.
    // When it began to wait, or the last one was done; none: since the last Poll.
    std::optional<int64_t> brought_ns;
    bool left = false;
    uint32_t jobs = 0;  // That need its memory.
    // It has exported this buffer, and still leaves it here.
    bool Usable(uint32_t number) const {
      return number < buffers.size() && buffers[number] && !buffers[number]->leaving;
    }
  };
  // Memory of a tensor that is pinned by one GPU, for all.
  struct Pinned {
    gpu::GpuUuid gpu;
    std::vector<std::span<std::byte>> spans;
    bool send = false;
    bool results = false;
  };
  // Memory of a tensor that a NIC has, beside its places on the host.
  struct Direct {
    gpu::GpuUuid gpu;         // Its home: one of those that the ranks use.
    uint32_t rank_count = 0;  // Of the node.
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
    bool host_only = false;  // A collective of it has failed.
  };
  struct Input {
    LocalRank rank;
    bool on_device = false;
    gpu::GpuUuid gpu;
    gpu::DeviceSpan span;  // The whole tensor.
  };
  // The end of a round: the result goes into the ranks' tensors, then they are told.
  struct Delivery {
    pipeline::CompleteRound round;
    std::vector<LocalRank> ranks;
    size_t jobs = 0;
    bool mirrors = false;  // It goes to the host first; from there to these.
    std::vector<Input> mirrored_for;
    bool recorded = false;
    int64_t recorded_ns = 0;
    bool wakes = false;  // When the `taken` are done.
  };
  struct Job {
    bool delivers = false;
    bool mirrors = false;            // Of these: from the GPU to the host.
    const Direct* direct = nullptr;  // It is a NIC's where it goes to, or, delivered, comes from.
    uint64_t ticket = 0;
    pipeline::SliceBytes slice;
    bool is_final = false;
    DType dtype = DType::kUnspecified;
    Op op = Op::kUnspecified;
    std::vector<Input> inputs;  // Or, when it delivers, the ranks that it is delivered to.
    std::deque<Range> ranges;   // Not given to lanes.
    uint32_t pieces = 0;        // On lanes.
    bool abandoned = false;
    std::shared_ptr<Delivery> delivery;
    bool is_narrow() const { return IsNarrowFloat(dtype); }
  };
  struct Lane {
    Step step = Step::kFree;
    Path path = Path::kHost;
    std::shared_ptr<Job> job;
    Range range;
    GpuSet gpus;  // That it works on.
    // Of a collective: the GPUs that each is among, in the order in which their sums are added.
    std::vector<GpuSet> groups;
    int64_t deadline_ns = 0;
    int64_t posted_ns = 0;  // What it waits for.
    bool through_staging = false;
    bool wakes = false;         // When what is recorded is done.
    bool writes_ranks = false;  // Copies into tensors of ranks have been posted.
    // Between GPUs by way of the host: what was brought down is on its way up. A sum that was made
    // there, for a NIC that reads the GPU; or a NIC's result, for ranks on other GPUs.
    bool goes_up = false;
    uint64_t elements() const { return range.length / DTypeSize(job->dtype); }
    uint64_t ShardElements(const GpuSet& group) const {
      return (elements() + group.size() - 1) / group.size();
    }
    // Its result is added up on the host: it goes there, and nowhere else.
    bool adds_groups() const {
      return path == Path::kCollective && groups.size() > 1 && !job->delivers;
    }
  };

  Rank* Find(LocalRank rank);
  const Part* OpenPart(LocalRank rank, pipeline::TensorIndex tensor, Round round) const;
  absl::Status CheckPush(const Rank& rank, pipeline::TensorIndex tensor, Round round,
                         const Source& source) const;
  int AskGradients();
  // Whether the rank's `i`-th that waits does so no longer.
  bool AskGradient(LocalRank local_rank, Rank& rank, size_t i,
                   std::vector<std::pair<LocalRank, Waiting>>& done);
  absl::StatusOr<bool> IsTaken(Delivery& delivery);
  int AskTaken();
  // No collective is on its streams, launched or put aside, which might hang: then nothing waits
  // for ever that waits for the GPU.
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
  // It was posted only now, and will be done before this thread would be asleep.
  bool IsYoung(int64_t posted_ns) const { return now_ns_ - posted_ns < options_.watch_own_ns; }
  bool WakeFor(Lane& lane);
  bool WakeFor(Delivery& delivery);
  void Queue(std::shared_ptr<Job> job);
  void QueueDelivery(const std::shared_ptr<Delivery>& delivery, const std::vector<Input>& targets,
                     const std::vector<Range>& ranges, const Direct* direct, bool mirrors);
  void JobDone(const std::shared_ptr<Job>& job);
  void Fail(const std::string& text);

  // gpu_pieces.cc: lanes.
  int StartPieces();
  int StepLane(Lane& lane);
  bool MayStart(const Job& job, const Range& range) const;
  // All of its memory on GPUs is there.
  bool IsReady(const Job& job) const;
  // Of all lanes that are free.
  void GrowStaging(const gpu::GpuUuid& uuid);
  void ChoosePath(Lane& lane);
  Path PathOf(const Lane& lane);
  std::vector<GpuSet> GroupsOf(const Job& job, const GpuSet& gpus);
  bool MayUse(const std::vector<GpuSet>& groups);
  // By one kernel, over the contributions.
  static bool SumsInPlace(const Job& job, const GpuSet& gpus);
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
  // The ranks' tensors on that GPU, from the host: the first, and from it to the others.
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
  // The bytes of `range` (or of some of it) on the host.
  std::span<std::byte> HostBytes(const Lane& lane) const;
  // The bytes of a piece that one GPU of a group holds after a reduce-scatter among it.
  struct Shard {
    gpu::GpuUuid gpu;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  static std::vector<Shard> ShardsOf(const Lane& lane, const GpuSet& group);
  void AddGroups(Lane& lane);
  // All groups of the lane together.
  GpuCollectives::Readiness AskGroups(const Lane& lane);
  static GpuSet GpusOf(const Job& job);
  std::string Describe(const Lane& lane) const;

  // gpu_direct.cc
  // One of the GPUs where the node's ranks have their memory: always the same of the same GPUs.
  absl::StatusOr<gpu::GpuUuid> HomeOf(const pipeline::TensorSpec& spec, uint32_t rank_count);
  // Null: these bytes lie on the host.
  const Direct* DirectOf(const pipeline::SliceBytes& slice) const;
  static gpu::DeviceSpan DirectBytes(const Lane& lane);
  // The status, of which the consequences are drawn.
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
  // Gives the lane's piece back to its job, for the host, when its streams have come to rest.
  void Redo(Lane& lane);
  void GiveBack(Lane& lane);
  std::string OverContributions(const Lane& lane, const absl::Status& why) const;
  void OnPieceFailed(Lane& lane, const absl::Status& status);
  // Of one group, and with it all that run beside it in a lane.
  void OnCollectiveFailed(const GpuSet& group, const absl::Status& status);
  using Aside = std::vector<std::pair<gpu::GpuUuid, LanePart>>;
  void PutAside(const Lane& lane, std::map<GpuSet, Aside>& aside);
  absl::Status RenewParts(const Lane& lane);
  // Looks for GPUs that are lost, of which `status` may tell. False: it tells of something else.
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
  std::deque<std::shared_ptr<Job>> jobs_;  // That have ranges for lanes.
  std::vector<Lane> lanes_;
  std::list<std::shared_ptr<Delivery>> deliveries_;
  // Of rounds that this agent alone finishes: the ranges whose results are on the host so far.
  std::map<pipeline::TensorIndex, std::vector<Range>> host_results_;
  std::map<pipeline::TensorIndex, Pinned> pinned_;
  std::map<pipeline::TensorIndex, Direct> direct_;
  int64_t now_ns_ = 0;  // Of the last Poll.
  bool close_gpus_ = false;
  bool touched_ = false;  // Since the last Poll.
  bool failed_ = false;
  GpuStageCounters counters_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_GPU_STAGE_H_
