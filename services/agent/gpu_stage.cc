// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_stage.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libs/status/status.h"

namespace talweg::agent {
namespace {

absl::Status BeingReopened(const gpu::GpuUuid& uuid) {
  return absl::UnavailableError(
      absl::StrCat(gpu::FormatUuid(uuid), " was lost and is being opened again: ask once more"));
}

// Whatever the GPU's driver says, the rank can push from host memory. UNAVAILABLE tells it so.
absl::Status NotUsable(const absl::Status& status) {
  const bool is_gpus =
      absl::IsInternal(status) || absl::IsAborted(status) || absl::IsFailedPrecondition(status);
  if (!is_gpus) return status;
  return absl::UnavailableError(status.message());
}

}  // namespace

GpuStage::GpuStage(const GpuStageOptions& options, gpu::Platform& platform, const HostTensors& host,
                   Graveyard& graveyard, GpuEvents& events)
    : options_(options),
      host_(host),
      events_(events),
      node_(options, platform),
      collectives_(options, node_, graveyard),
      losses_(options_),
      buffers_(node_, losses_),
      pins_(node_, host, events),
      gradients_(options_, node_, host, losses_, buffers_),
      homes_(options_, node_, collectives_, losses_, buffers_),
      tasks_(host, events, losses_, buffers_, gradients_),
      deliveries_(options_, node_, events, gradients_),
      lanes_(options_, host, node_, collectives_, losses_, pins_, tasks_, counters_),
      releases_(node_, collectives_, losses_, buffers_, pins_, gradients_, homes_, lanes_, events),
      failures_(node_, collectives_, losses_, lanes_, events, counters_),
      reopening_(options_, node_, collectives_, losses_, buffers_, pins_, gradients_, lanes_) {}

// ----- What ranks hand over. -----

absl::StatusOr<GpuStage::Exported> GpuStage::Export(LocalRank rank, const gpu::GpuUuid& uuid,
                                                    uint64_t buffer_id,
                                                    const gpu::MemoryHandle& handle) {
  if (failures_.has_failed()) return absl::FailedPreconditionError("the agent has lost a GPU");
  TALWEG_RETURN_IF_ERROR(buffers_.MayExport(rank));
  if (losses_.Has(uuid)) return BeingReopened(uuid);
  const absl::Status opened = node_.Open(uuid).status();
  if (!opened.ok()) return NotUsable(opened);
  const auto exported = buffers_.Export(rank, uuid, buffer_id, handle);
  if (exported.ok()) return exported;
  if (FoundLost(exported.status())) return BeingReopened(uuid);
  releases_.CloseUnusedGpus();
  return NotUsable(exported.status());
}

absl::Status GpuStage::Unexport(LocalRank rank, uint32_t request, uint32_t number) {
  TALWEG_RETURN_IF_ERROR(buffers_.Get(rank, number).status());
  TALWEG_RETURN_IF_ERROR(gradients_.MayUnexport(rank, number));
  buffers_.Unexport(rank, request, number);
  touched_ = true;
  return absl::OkStatus();
}

absl::StatusOr<GpuStage::Placed> GpuStage::Place(LocalRank rank, pipeline::TensorIndex tensor,
                                                 uint32_t number) {
  TALWEG_ASSIGN_OR_RETURN(const GpuBuffers::Buffer* const buffer, buffers_.Get(rank, number));
  const gpu::GpuUuid uuid = buffer->gpu;
  if (losses_.Has(uuid)) return BeingReopened(uuid);
  ++node_.At(uuid).memory_epoch;
  lanes_.GrowStaging(uuid);
  if (const absl::Status placed = gradients_.Place(rank, tensor, uuid); !placed.ok()) {
    return FoundLost(placed) ? BeingReopened(uuid) : placed;
  }
  TALWEG_ASSIGN_OR_RETURN(Placed placed, gradients_.ExportEvents(rank, tensor));
  Pin(tensor, uuid);
  return placed;
}

void GpuStage::Pin(pipeline::TensorIndex tensor, const gpu::GpuUuid& uuid) {
  if (!homes_.Has(tensor)) pins_.Pin(tensor, uuid);
}

absl::Status GpuStage::Push(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                            int32_t priority, const Source& source) {
  TALWEG_RETURN_IF_ERROR(gradients_.Push(rank, tensor, round, priority, source));
  touched_ = true;
  return absl::OkStatus();
}

void GpuStage::OnRankLeft(LocalRank rank) {
  if (!buffers_.IsHere(rank)) return;
  buffers_.OnRankLeft(rank);
  gradients_.OnRankLeft(rank);
  touched_ = true;
}

// ----- Tensors that a NIC has. -----

absl::StatusOr<GpuStage::DirectMemory> GpuStage::MakeDirect(pipeline::TensorIndex tensor,
                                                            const pipeline::TensorSpec& spec,
                                                            uint32_t rank_count) {
  if (failures_.has_failed()) return absl::FailedPreconditionError("the agent has lost a GPU");
  return homes_.Make(tensor, spec, rank_count, now_ns_);
}

void GpuStage::DropDirect(pipeline::TensorIndex tensor) {
  if (homes_.Drop(tensor)) releases_.OnLetGo();
}

absl::Status GpuStage::StoreResult(const pipeline::SliceBytes& slice,
                                   std::span<const std::byte> bytes) {
  return Checked(homes_.Store(slice, bytes), slice.tensor);
}

absl::Status GpuStage::FetchResult(const pipeline::SliceBytes& slice, std::span<std::byte> bytes) {
  return Checked(homes_.Fetch(slice, bytes), slice.tensor);
}

absl::Status GpuStage::Checked(absl::Status status, pipeline::TensorIndex tensor) {
  if (!status.ok() && !FoundLost(status)) {
    failures_.Fail(
        absl::StrCat("tensor '", host_.Spec(tensor).name, "': ", status::StatusText(status)));
  }
  return status;
}

// ----- What the core wants. -----

void GpuStage::Reduce(const pipeline::ReduceSlice& reduce) {
  tasks_.AddReduce(reduce, homes_.HomeOf(reduce.target));
}

void GpuStage::Deliver(const pipeline::CompleteRound& round) {
  auto delivery = std::make_shared<GpuDelivery>();
  delivery->round = round;
  delivery->ranks = gradients_.OpenRanks(round.tensor, round.round);
  std::vector<GpuInput> targets = tasks_.TargetsOf(*delivery);
  const bool has_bytes = round.status == pipeline::Status::kOk && !failures_.has_failed();
  const GpuHome* const home = homes_.Find(round.tensor);
  if (has_bytes && home != nullptr) {
    DeliverFromHome(delivery, *home, std::move(targets));
  } else if (has_bytes && !targets.empty()) {
    tasks_.AddDelivery(delivery, targets, tasks_.RangesFromHost(round.tensor), nullptr, false);
  } else {
    delivery->recorded = true;  // No rank gets bytes. AskDeliveries ends the delivery.
  }
  tasks_.ForgetResult(round.tensor);
  deliveries_.Add(std::move(delivery));
  touched_ = true;
}

void GpuStage::DeliverFromHome(const std::shared_ptr<GpuDelivery>& delivery, const GpuHome& home,
                               std::vector<GpuInput> targets) {
  const pipeline::TensorIndex tensor = delivery->round.tensor;
  if (!Checked(homes_.Flush(home), tensor).ok()) return;
  const bool on_gpus = delivery->ranks.size() == home.rank_count;
  if (on_gpus) {
    return tasks_.AddDelivery(delivery, targets, tasks_.AllOf(tensor), &home, false);
  }
  // A rank pushed from host memory, and wants the result there.
  delivery->mirrored_for = std::move(targets);
  delivery->mirrors = true;
  tasks_.AddDelivery(delivery, {}, tasks_.AllOf(tensor), &home, true);
}

void GpuStage::Abandon() {
  touched_ = true;
  tasks_.Abandon();
  lanes_.Abandon();
  deliveries_.Abandon();
  gradients_.Abandon();
}

void GpuStage::ForgetTensors() {
  pins_.UnpinAll();
  if (!homes_.empty()) releases_.OnLetGo();
  homes_.DropAll();
  tasks_.ForgetResults();
}

// ----- The duty cycle. -----

int GpuStage::Poll(int64_t now_ns) {
  if (failures_.has_failed()) return collectives_.Poll();  // Still frees what was put aside.
  now_ns_ = now_ns;
  touched_ = false;
  tasks_.ClearNews();
  int work = collectives_.Poll();
  work += TendLost();
  work += AskGradients();
  work += StepLanes();
  work += StartPieces();
  work += AskDeliveries();
  work += releases_.Poll();
  if (const std::string note = collectives_.TakeNote(); !note.empty()) events_.OnGpuNote(note);
  return work;
}

int GpuStage::AskGradients() {
  GpuGradients::Asked asked;
  for (auto rank = gradients_.NextToAsk(LocalRank{0}); rank;
       rank = gradients_.NextToAsk(LocalRank{rank->value() + 1})) {
    const absl::Status status = gradients_.Ask(*rank, now_ns_, asked);
    if (!status.ok() && !FoundLost(status)) {
      failures_.Fail(absl::StrCat(asked.what, ": ", status::StatusText(status)));
    }
    if (failures_.has_failed()) return 0;
  }
  for (const GpuGradients::Ready& push : asked.pushes) {
    events_.OnGradientReady(push.rank, push.tensor, push.round, push.priority);
  }
  return asked.done;
}

int GpuStage::StepLanes() {
  int work = 0;
  for (Lane& lane : lanes_.all()) {
    if (failures_.has_failed()) break;
    const GpuLanes::Progress progress = lanes_.Step(lane, now_ns_);
    work += progress.work;
    switch (progress.trouble) {
      case GpuLanes::Trouble::kNone: break;
      case GpuLanes::Trouble::kPiece: OnPieceFailed(lane, progress.error); break;
      case GpuLanes::Trouble::kCommunicator:
        if (FoundLost(progress.error)) break;
        [[fallthrough]];
      case GpuLanes::Trouble::kOverdue:
        failures_.OnCollectiveFailed(progress.group, progress.error, now_ns_);
        break;
    }
  }
  return work;
}

int GpuStage::StartPieces() {
  int started = 0;
  // Any piece may copy to memory that a lost context has pinned.
  if (!losses_.AreClosed()) return 0;
  for (Lane& lane : lanes_.all()) {
    if (failures_.has_failed()) break;
    if (!lane.is_free()) continue;
    const absl::StatusOr<bool> has_piece = lanes_.Start(lane, now_ns_);
    if (!has_piece.ok()) {
      OnPieceFailed(lane, has_piece.status());
    } else if (!*has_piece) {
      break;
    }
    ++started;
  }
  return started;
}

int GpuStage::AskDeliveries() {
  int ended = 0;
  const absl::Status status = deliveries_.Ask(now_ns_, &ended);
  if (!status.ok() && !FoundLost(status)) failures_.Fail(status::StatusText(status));
  return ended;
}

std::optional<int64_t> GpuStage::PrepareToSleep() {
  if (failures_.has_failed()) return std::nullopt;
  if (touched_ || tasks_.has_news()) return now_ns_;
  std::optional<int64_t> at_ns;
  const auto by = [&](std::optional<int64_t> ns) {
    if (ns) at_ns = std::min(at_ns.value_or(*ns), *ns);
    return at_ns == now_ns_;
  };
  if (by(lanes_.PrepareToSleep(now_ns_))) return now_ns_;
  if (const auto after_ns = gradients_.AskAfterNs(now_ns_)) by(now_ns_ + *after_ns);
  if (by(deliveries_.PrepareToSleep(now_ns_))) return now_ns_;
  if (!losses_.empty() || collectives_.HasAside()) by(now_ns_ + options_.ask_errors_every_ns);
  return at_ns;
}

bool GpuStage::IsIdle() const {
  if (failures_.has_failed()) return true;
  return buffers_.empty() && tasks_.waiting().empty() && deliveries_.empty() && losses_.empty() &&
         !lanes_.AnyBusy();
}

// ----- GPUs that are lost. -----

void GpuStage::OnPieceFailed(Lane& lane, const absl::Status& status) {
  if (!FoundLost(status)) return failures_.OnPieceFailed(lane, status, now_ns_);
  // OnGpuLost drains lanes on lost GPUs. This lane may be on another one.
  if (lane.step != LaneStep::kDraining) lanes_.Redo(lane, now_ns_);
}

bool GpuStage::FoundLost(const absl::Status& status) {
  if (!absl::IsAborted(status) && !absl::IsUnavailable(status)) return false;
  std::vector<std::pair<gpu::GpuUuid, absl::Status>> found;
  const bool is_known = absl::IsAborted(status) && !losses_.empty();
  for (const auto& [uuid, gpu] : node_.gpus()) {
    if (losses_.Has(uuid)) continue;
    const absl::Status why = gpu.device->Memory().status();
    if (absl::IsAborted(why)) found.emplace_back(uuid, why);
  }
  for (const auto& [uuid, why] : found) OnGpuLost(uuid, why);
  return is_known || !found.empty();
}

void GpuStage::OnGpuLost(const gpu::GpuUuid& uuid, const absl::Status& why) {
  losses_.Add(uuid, why, now_ns_);
  if (homes_.AreOn(uuid)) {
    // The NIC's memory there is gone, with results that others may ask for and sums that are being
    // sent.
    return failures_.Fail(
        absl::StrCat(status::StatusText(why),
                     "; the network reads and writes its memory, which is lost with it: "
                     "with --gpu_direct=off the job would go on"));
  }
  events_.OnGpuNote(absl::StrCat(status::StatusText(why), "; it is opened again"));
  gradients_.OnGpuLost(uuid);
  deliveries_.OnGpuLost();
  failures_.OnGpuLost(why, now_ns_);
}

int GpuStage::TendLost() {
  const GpuReopening::Progress progress = reopening_.Tend(now_ns_);
  if (!progress.failed.empty()) {
    failures_.Fail(progress.failed);
    return progress.work;
  }
  for (const gpu::GpuUuid& uuid : progress.back) {
    releases_.OnLetGo();  // The GPU may be unused by now.
    const NodeGpu* const gpu = node_.Find(uuid);
    if (gpu == nullptr) continue;
    ++counters_.gpus_reopened;
    events_.OnGpuNote(absl::StrCat(gpu::Describe(gpu->device->info()), " is open again"));
    for (const pipeline::TensorIndex tensor : gradients_.TensorsOn(uuid)) Pin(tensor, uuid);
    for (const LocalRank rank : buffers_.RanksOn(uuid)) events_.OnEventsLost(rank);
  }
  return progress.work;
}

}  // namespace talweg::agent
