// SPDX-License-Identifier: Apache-2.0
// The beginnings and ends of rounds. gpu_handover.cc has what ranks ask, gpu_pieces.cc does the
// work.
#include "services/agent/gpu_stage.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <limits>

#include "libs/base/check.h"
#include "libs/status/status.h"

namespace talweg::agent {
namespace {

// How many of a rank's gradients are asked for at a time, after the oldest.
constexpr size_t kOthersAsked = 4;

}  // namespace

GpuStage::GpuStage(const GpuStageOptions& options, gpu::Platform& platform, const HostTensors& host,
                   Graveyard& graveyard, GpuEvents& events)
    : options_(options),
      host_(host),
      events_(events),
      node_(options, platform),
      collectives_(options, node_, graveyard),
      lanes_(options.lanes) {}

GpuStage::~GpuStage() = default;

// ----- What the core wants. -----

const GpuStage::Part* GpuStage::OpenPart(LocalRank rank, pipeline::TensorIndex tensor,
                                         Round round) const {
  const auto at = ranks_.find(rank);
  if (at == ranks_.end()) return nullptr;
  const auto part = at->second.parts.find(tensor);
  const bool is_open =
      part != at->second.parts.end() && part->second.open && part->second.round == round;
  return is_open ? &part->second : nullptr;
}

bool GpuStage::HasGradients(pipeline::TensorIndex tensor, Round round) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const auto& entry) {
    return OpenPart(entry.first, tensor, round) != nullptr;
  });
}

void GpuStage::Queue(std::shared_ptr<Task> task) {
  for (const Input& input : task->inputs) {
    if (input.on_device) ++ranks_.at(input.rank).tasks;
  }
  tasks_.push_back(std::move(task));
  touched_ = true;
}

void GpuStage::Reduce(const pipeline::ReduceSlice& reduce) {
  const pipeline::TensorSpec& spec = host_.Spec(reduce.target.tensor);
  auto task = std::make_shared<Task>();
  task->ticket = reduce.ticket;
  task->slice = reduce.target;
  task->is_final = reduce.is_final;
  task->dtype = spec.collective.dtype;
  task->op = spec.collective.op;
  for (const LocalRank rank : reduce.inputs) {
    Input input{.rank = rank};
    if (const Part* part = OpenPart(rank, reduce.target.tensor, reduce.target.round)) {
      input = {.rank = rank, .on_device = true, .gpu = part->gpu, .span = part->span};
    }
    task->inputs.push_back(input);
  }
  task->direct = DirectOf(reduce.target);
  task->ranges.push_back({reduce.target.offset_bytes, reduce.target.length_bytes});
  if (task->is_final) host_results_[reduce.target.tensor];
  Queue(std::move(task));
}

void GpuStage::Deliver(const pipeline::CompleteRound& round) {
  auto delivery = std::make_shared<Delivery>();
  delivery->round = round;
  std::vector<Input> targets;
  for (auto& [local_rank, rank] : ranks_) {
    const Part* part = OpenPart(local_rank, round.tensor, round.round);
    if (part == nullptr) continue;
    delivery->ranks.push_back(local_rank);
    if (!rank.left) targets.push_back({local_rank, true, part->gpu, part->span});
  }
  const bool has_bytes = round.status == pipeline::Status::kOk && !failed_;
  const auto direct = direct_.find(round.tensor);
  if (has_bytes && direct != direct_.end()) {
    DeliverDirect(delivery, direct->second, std::move(targets));
  } else if (has_bytes && !targets.empty()) {
    std::vector<Range> ranges;
    const auto on_host = host_results_.find(round.tensor);
    const uint64_t bytes = host_.Spec(round.tensor).bytes();
    if (on_host != host_results_.end()) {
      ranges = on_host->second;
    } else if (bytes > 0) {
      ranges.push_back({0, bytes});
    }
    QueueDelivery(delivery, targets, ranges, nullptr, false);
  } else {
    delivery->recorded = true;  // Nothing to order: AskTaken ends it.
  }
  host_results_.erase(round.tensor);
  deliveries_.push_back(std::move(delivery));
  touched_ = true;
}

void GpuStage::QueueDelivery(const std::shared_ptr<Delivery>& delivery,
                             const std::vector<Input>& targets, const std::vector<Range>& ranges,
                             const Direct* direct, bool mirrors) {
  const pipeline::CompleteRound& round = delivery->round;
  const pipeline::TensorSpec& spec = host_.Spec(round.tensor);
  constexpr uint64_t kJobBytesMax = kGiB;
  for (const Range& range : ranges) {
    for (uint64_t done = 0; done < range.length; done += kJobBytesMax) {
      auto task = std::make_shared<Task>();
      task->delivers = true;
      task->mirrors = mirrors;
      task->direct = direct;
      task->slice = {
          .tensor = round.tensor,
          .round = round.round,
          .memory = pipeline::Memory::kResult,
          .offset_bytes = range.offset + done,
          .length_bytes = static_cast<uint32_t>(std::min(kJobBytesMax, range.length - done))};
      task->dtype = spec.collective.dtype;
      task->op = spec.collective.op;
      task->inputs = targets;
      task->ranges.push_back({task->slice.offset_bytes, task->slice.length_bytes});
      task->delivery = delivery;
      ++delivery->tasks;
      Queue(std::move(task));
    }
  }
}

void GpuStage::TaskDone(const std::shared_ptr<Task>& task) {
  for (const Input& input : task->inputs) {
    if (input.on_device) --ranks_.at(input.rank).tasks;
  }
  if (task->delivery != nullptr && --task->delivery->tasks == 0 && task->delivery->mirrors &&
      !task->abandoned) {
    OnMirrored(task->delivery);
  }
  if (!task->delivers && !task->abandoned)
    events_.OnReduced(task->ticket, task->slice.length_bytes);
}

void GpuStage::Abandon() {
  touched_ = true;
  for (const std::shared_ptr<Task>& task : std::exchange(tasks_, {})) {
    task->ranges.clear();
    task->abandoned = true;
    if (task->pieces == 0) TaskDone(task);
  }
  for (Lane& lane : lanes_) {
    if (lane.task != nullptr) lane.task->abandoned = true;
  }
  deliveries_.clear();
  host_results_.clear();
  for (auto& [local_rank, rank] : ranks_) {
    rank.waiting.clear();
    for (auto& [tensor, part] : rank.parts) part.open = false;
  }
}

void GpuStage::ForgetTensors() {
  while (!pinned_.empty()) Unpin(pinned_.begin()->first);
  while (!direct_.empty()) DropDirect(direct_.begin()->first);
  host_results_.clear();
}

// ----- The duty cycle. -----

int GpuStage::Poll(int64_t now_ns) {
  if (failed_) return collectives_.Poll();  // What was put aside is freed all the same.
  now_ns_ = now_ns;
  touched_ = false;
  int work = collectives_.Poll();
  work += TendLost();
  work += AskGradients();
  for (Lane& lane : lanes_) work += StepLane(lane);
  work += StartPieces();
  work += AskTaken();
  work += AnswerUnexports();
  work += SweepRanks();
  if (const std::string note = collectives_.TakeNote(); !note.empty()) events_.OnGpuNote(note);
  return work;
}

bool GpuStage::WakeFor(Lane& lane) {
  lane.wakes =
      lane.wakes || std::all_of(lane.gpus.begin(), lane.gpus.end(), [&](const gpu::GpuUuid& uuid) {
        return IsLost(uuid) || DeviceOf(uuid).WakeWhenDone(PartOf(lane, uuid).done).ok();
      });
  return lane.wakes;
}

bool GpuStage::WakeFor(Delivery& delivery) {
  if (!delivery.recorded) return true;  // It waits for ranks.
  delivery.wakes =
      delivery.wakes ||
      std::all_of(delivery.ranks.begin(), delivery.ranks.end(), [&](const LocalRank local_rank) {
        const Rank* const rank = Find(local_rank);
        if (rank == nullptr) return true;
        const Part& part = rank->parts.at(delivery.round.tensor);
        return DeviceOf(part.gpu).WakeWhenDone(part.taken).ok();
      });
  return delivery.wakes;
}

std::optional<int64_t> GpuStage::PrepareToSleep() {
  if (failed_) return std::nullopt;
  if (touched_) return now_ns_;
  std::optional<int64_t> at_ns;
  const auto within = [&](int64_t ns) {
    if (!at_ns || now_ns_ + ns < *at_ns) at_ns = now_ns_ + ns;
  };
  for (Lane& lane : lanes_) {
    if (lane.step == Step::kFree) continue;
    if (IsYoung(lane.posted_ns)) return now_ns_;
    // Communicators wake nobody, neither when they are ready nor when they fail.
    if (lane.step == Step::kAwaitCommunicator || lane.step == Step::kLaunching) {
      within(options_.ask_launch_every_ns);
    } else {
      if (lane.step == Step::kCollective) within(options_.ask_errors_every_ns);
      if (!WakeFor(lane)) within(options_.ask_launch_every_ns);
    }
  }
  for (const auto& [local_rank, rank] : ranks_) {
    if (rank.waiting.empty() || !rank.brought_ns) continue;
    // A sixteenth more is not missed after a long wait, and costs little CPU after a short one.
    within(std::clamp((now_ns_ - *rank.brought_ns) / 16, options_.ask_gradients_first_ns,
                      options_.ask_gradients_last_ns));
  }
  for (const std::shared_ptr<Delivery>& delivery : deliveries_) {
    if (delivery->tasks > 0) continue;
    if (delivery->recorded && IsYoung(delivery->recorded_ns)) return now_ns_;
    if (!WakeFor(*delivery)) within(options_.ask_launch_every_ns);
  }
  if (!lost_.empty() || collectives_.HasAside()) within(options_.ask_errors_every_ns);
  return at_ns;
}

bool GpuStage::IsIdle() const {
  if (failed_) return true;
  const bool any_lane = std::any_of(lanes_.begin(), lanes_.end(),
                                    [](const Lane& lane) { return lane.step != Step::kFree; });
  return ranks_.empty() && tasks_.empty() && deliveries_.empty() && lost_.empty() && !any_lane;
}

// Asks for the oldest of each rank first. A stream works in order, so what comes after it is rarely
// done before.
int GpuStage::AskGradients() {
  std::vector<std::pair<LocalRank, Waiting>> done;
  int ready = 0;
  for (auto& [local_rank, rank] : ranks_) {
    if (!rank.brought_ns) rank.brought_ns = now_ns_;
    while (!rank.waiting.empty() && AskGradient(local_rank, rank, 0, done)) ++ready;
    // A rank has several streams. One that is late may wait for what another's result brings.
    for (size_t i = 0; i < kOthersAsked && rank.waiting.size() > 1; ++i) {
      rank.asked = rank.asked % (rank.waiting.size() - 1) + 1;
      if (AskGradient(local_rank, rank, rank.asked, done)) ++ready;
    }
    if (failed_) return 0;
  }
  for (const auto& [rank, waiting] : done) {
    events_.OnGradientReady(rank, waiting.tensor, waiting.round, waiting.priority);
  }
  return ready;
}

bool GpuStage::AskGradient(LocalRank local_rank, Rank& rank, size_t i,
                           std::vector<std::pair<LocalRank, Waiting>>& done) {
  const Waiting waiting = rank.waiting[i];
  Part& part = rank.parts.at(waiting.tensor);
  const auto asked = DeviceOf(part.gpu).Query(part.pushed);
  if (!asked.ok()) {
    if (!FoundLost(asked.status())) {
      Fail(absl::StrCat("local rank ", local_rank.value(), ", tensor '",
                        host_.Spec(waiting.tensor).name,
                        "': ", status::StatusText(asked.status())));
    }
    return false;
  }
  if (!*asked) return false;
  part.ready = true;
  rank.brought_ns = now_ns_;
  if (!std::exchange(part.told, true)) done.emplace_back(local_rank, waiting);
  rank.waiting.erase(rank.waiting.begin() + static_cast<ptrdiff_t>(i));
  return true;
}

// Once all of the ranks' `taken` can be recorded, each is recorded once. After that they are asked.
absl::StatusOr<bool> GpuStage::IsTaken(Delivery& delivery) {
  std::vector<const Part*> parts;
  for (const LocalRank local_rank : delivery.ranks) {
    const Rank* const rank = Find(local_rank);
    if (rank == nullptr || delivery.round.status != pipeline::Status::kOk) continue;
    const Part& part = rank->parts.at(delivery.round.tensor);
    if (!part.ready) return false;  // Its events were lost.
    parts.push_back(&part);
  }
  if (!delivery.recorded) {
    for (const Part* const part : parts) {
      NodeGpu& gpu = node_.At(part->gpu);
      TALWEG_RETURN_IF_ERROR(gpu.device->Record(part->taken, gpu.signals));
    }
    delivery.recorded = true;
    delivery.recorded_ns = now_ns_;
    delivery.wakes = false;
  }
  bool done = true;
  for (const Part* const part : parts) {
    TALWEG_ASSIGN_OR_RETURN(const bool asked, DeviceOf(part->gpu).Query(part->taken));
    done = done && asked;
  }
  return done;
}

int GpuStage::AskTaken() {
  int finished = 0;
  const std::vector<std::shared_ptr<Delivery>> all(deliveries_.begin(), deliveries_.end());
  for (const std::shared_ptr<Delivery>& delivery : all) {
    if (delivery->tasks > 0) continue;
    const absl::StatusOr<bool> done = IsTaken(*delivery);
    if (!done.ok()) {
      if (!FoundLost(done.status())) Fail(status::StatusText(done.status()));
      return finished;
    }
    if (!*done) continue;
    for (const LocalRank local_rank : delivery->ranks) {
      const auto rank = ranks_.find(local_rank);
      if (rank != ranks_.end()) rank->second.parts.at(delivery->round.tensor).open = false;
    }
    deliveries_.remove(delivery);
    events_.OnDelivered(delivery->round);
    ++finished;
  }
  return finished;
}

bool GpuStage::MayWaitFor(const gpu::GpuUuid& uuid) const {
  const bool in_lane = std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    return (lane.step == Step::kLaunching || lane.step == Step::kCollective) &&
           std::find(lane.gpus.begin(), lane.gpus.end(), uuid) != lane.gpus.end();
  });
  return !in_lane && !collectives_.IsEnding(uuid);
}

bool GpuStage::MayRelease(const Rank& rank) const {
  return std::all_of(rank.buffers.begin(), rank.buffers.end(), [this](const auto& buffer) {
    return !buffer || IsLost(buffer->gpu) || MayWaitFor(buffer->gpu);
  });
}

int GpuStage::AnswerUnexports() {
  int answered = 0;
  for (auto& [local_rank, rank] : ranks_) {
    if (rank.left || rank.tasks > 0) continue;
    for (std::optional<Buffer>& buffer : rank.buffers) {
      if (!buffer || !buffer->leaving || IsLost(buffer->gpu)) continue;
      if (!MayWaitFor(buffer->gpu)) continue;
      node_.At(buffer->gpu).imports->Release({rank.life, buffer->buffer_id}).IgnoreError();
      const uint32_t request = buffer->leave_request;
      buffer.reset();
      events_.OnUnexported(local_rank, request);
      ++answered;
    }
  }
  return answered;
}

int GpuStage::SweepRanks() {
  int gone = 0;
  for (auto at = ranks_.begin(); at != ranks_.end();) {
    Rank& rank = at->second;
    const bool any_open = std::any_of(rank.parts.begin(), rank.parts.end(),
                                      [](const auto& part) { return part.second.open; });
    if (!rank.left || rank.tasks > 0 || any_open || !MayRelease(rank)) {
      ++at;
      continue;
    }
    ReleaseRank(rank);
    at = ranks_.erase(at);
    ++gone;
  }
  if (gone > 0 || close_gpus_) CloseUnusedGpus();
  return gone;
}

void GpuStage::ReleaseRank(Rank& rank) {
  std::set<gpu::GpuUuid> uuids;
  for (const auto& [tensor, part] : rank.parts) DestroyEvents(part);
  for (const std::optional<Buffer>& buffer : rank.buffers) {
    if (buffer) uuids.insert(buffer->gpu);
  }
  for (const gpu::GpuUuid& uuid : uuids) {
    NodeGpu* const gpu = node_.Find(uuid);  // Null: lost.
    if (gpu != nullptr) gpu->imports->ReleaseOwner(rank.life).IgnoreError();
  }
}

void GpuStage::CloseUnusedGpus() {
  close_gpus_ = false;
  std::set<gpu::GpuUuid> used;
  for (const auto& [local_rank, rank] : ranks_) {
    for (const auto& [tensor, part] : rank.parts) used.insert(part.gpu);
    for (const std::optional<Buffer>& buffer : rank.buffers) {
      if (buffer) used.insert(buffer->gpu);
    }
  }
  for (const Lane& lane : lanes_) {
    if (lane.step != Step::kFree) used.insert(lane.gpus.begin(), lane.gpus.end());
  }
  for (const auto& [tensor, direct] : direct_) used.insert(direct.gpu);
  std::vector<gpu::GpuUuid> unused;
  for (const auto& [uuid, gpu] : node_.gpus()) {
    if (!used.contains(uuid) && !IsLost(uuid)) unused.push_back(uuid);
  }
  for (const gpu::GpuUuid& uuid : unused) {
    if (!collectives_.Release(uuid)) {
      close_gpus_ = true;  // In a later pass.
      continue;
    }
    std::vector<pipeline::TensorIndex> pinned;
    for (const auto& [tensor, where] : pinned_) {
      if (where.gpu == uuid) pinned.push_back(tensor);
    }
    for (const pipeline::TensorIndex tensor : pinned) Unpin(tensor);
    node_.Close(uuid);
  }
}

void GpuStage::Fail(const std::string& text) {
  if (std::exchange(failed_, true)) return;
  events_.OnGpuFailed(text);
}

}  // namespace talweg::agent
