// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/cuda_communicator.h"

#include <absl/strings/str_cat.h>

#include <utility>

#include "libs/status/status.h"

namespace talweg::gpu::cuda {
namespace {

bool HasFailed(NcclResult result) { return result != kNcclSuccess && result != kNcclInProgress; }

const void* Pointer(uint64_t address) { return reinterpret_cast<const void*>(address); }
void* MutablePointer(uint64_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

absl::StatusOr<std::unique_ptr<CudaCommunicator>> CudaCommunicator::Start(
    std::shared_ptr<const NcclApi> nccl, std::vector<CudaDevice*> devices) {
  const NcclApi& api = *nccl;
  std::unique_ptr<CudaCommunicator> started(
      new CudaCommunicator(std::move(nccl), std::move(devices)));
  NcclUniqueId id = {};
  if (const NcclResult result = api.GetUniqueId(&id); result != kNcclSuccess) {
    return started->Fail("ncclGetUniqueId", result, 0);
  }
  const int count = static_cast<int>(started->devices_.size());
  absl::Status entered;
  NcclResult result = api.GroupStart();
  size_t failed = 0;
  for (int i = 0; i < count && !HasFailed(result); ++i) {
    failed = static_cast<size_t>(i);
    entered = started->devices_[failed]->context().Enter();
    if (!entered.ok()) break;  // The group is ended all the same.
    NcclConfig config;
    result = api.CommInitRankConfig(&started->comms_[failed], count, id, i, &config);
  }
  const NcclResult ended = api.GroupEnd();
  if (!entered.ok()) return absl::UnavailableError(entered.message());
  if (HasFailed(result)) return started->Fail("ncclCommInitRankConfig", result, failed);
  if (HasFailed(ended)) return started->Fail("ncclCommInitRankConfig", ended, 0);
  return started;
}

absl::Status CudaCommunicator::Fail(const char* what, NcclResult result, size_t device) {
  const char* const text = nccl_->GetErrorString(result);
  const char* const last = nccl_->GetLastError(comms_[device]);
  error_ = absl::UnavailableError(absl::StrCat(
      what, " among ", devices_.size(), " GPUs, on ", Describe(devices_[device]->info()), ": NCCL ",
      NcclVersionText(nccl_->version), " says '", text == nullptr ? "" : text, "' (", result, ")",
      last == nullptr || *last == '\0' ? "" : ": ", last == nullptr ? "" : last,
      "; NCCL_DEBUG=INFO in the agent's environment says more"));
  return error_;
}

Communicator::State CudaCommunicator::Poll() {
  if (!error_.ok()) return State::kFailed;
  bool busy = false;
  for (size_t i = 0; i < comms_.size(); ++i) {
    if (absl::Status entered = devices_[i]->context().Enter(); !entered.ok()) {
      error_ = absl::UnavailableError(entered.message());
      return State::kFailed;
    }
    NcclResult state = kNcclSuccess;
    const NcclResult asked = nccl_->CommGetAsyncError(comms_[i], &state);
    if (HasFailed(asked)) state = asked;
    if (HasFailed(state)) {
      Fail("a collective", state, i).IgnoreError();
      return State::kFailed;
    }
    busy = busy || state == kNcclInProgress;
  }
  return busy ? State::kBusy : State::kReady;
}

absl::Status CudaCommunicator::Post(const char* what, uint64_t send_bytes, uint64_t receive_bytes,
                                    std::span<const CollectivePart> parts, const PartCall& call) {
  if (Poll() != State::kReady) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": the communicator is not ready"));
  }
  if (parts.size() != devices_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " of ", parts.size(), " parts among ", devices_.size(), " devices"));
  }
  std::vector<CuStream> streams;
  for (size_t i = 0; i < parts.size(); ++i) {
    TALWEG_RETURN_IF_ERROR(devices_[i]->CheckSpan({parts[i].send, send_bytes}));
    TALWEG_RETURN_IF_ERROR(devices_[i]->CheckSpan({parts[i].receive, receive_bytes}));
    TALWEG_ASSIGN_OR_RETURN(const CuStream stream, devices_[i]->FindStream(parts[i].stream));
    streams.push_back(stream);
  }
  if (send_bytes == 0) return absl::OkStatus();
  absl::Status entered;
  NcclResult result = nccl_->GroupStart();
  size_t failed = 0;
  for (size_t i = 0; i < parts.size() && !HasFailed(result); ++i) {
    failed = i;
    entered = devices_[i]->context().Enter();
    // The other parts would wait for this one, so the communicator fails.
    if (!entered.ok()) break;
    result = call(parts[i], comms_[i], streams[i]);
  }
  const NcclResult ended = nccl_->GroupEnd();
  if (!entered.ok()) {
    error_ = absl::UnavailableError(entered.message());
    return error_;
  }
  if (HasFailed(result)) return Fail(what, result, failed);
  if (HasFailed(ended)) return Fail(what, ended, 0);
  return absl::OkStatus();
}

absl::Status CudaCommunicator::ReduceScatter(DType dtype, Op op, uint64_t shard_elements,
                                             std::span<const CollectivePart> parts) {
  if (!Combines(dtype, op)) return absl::InvalidArgumentError("not combined between GPUs");
  const uint64_t bytes = shard_elements * DTypeSize(dtype);
  return Post("ncclReduceScatter", bytes * devices_.size(), bytes, parts,
              [&](const CollectivePart& part, NcclComm comm, CuStream stream) {
                return nccl_->ReduceScatter(Pointer(part.send), MutablePointer(part.receive),
                                            shard_elements, NcclDTypeOf(dtype), NcclOpOf(op), comm,
                                            stream);
              });
}

absl::Status CudaCommunicator::AllGather(DType dtype, uint64_t shard_elements,
                                         std::span<const CollectivePart> parts) {
  if (!IsValid(dtype)) return absl::InvalidArgumentError("no dtype");
  const uint64_t bytes = shard_elements * DTypeSize(dtype);
  return Post("ncclAllGather", bytes, bytes * devices_.size(), parts,
              [&](const CollectivePart& part, NcclComm comm, CuStream stream) {
                return nccl_->AllGather(Pointer(part.send), MutablePointer(part.receive), bytes,
                                        kNcclBytes, comm, stream);
              });
}

absl::Status CudaCommunicator::Reduce(DType dtype, Op op, uint64_t element_count, size_t root,
                                      std::span<const CollectivePart> parts) {
  if (!Combines(dtype, op)) return absl::InvalidArgumentError("not combined between GPUs");
  TALWEG_RETURN_IF_ERROR(CheckRoot(root, devices_.size()));
  const uint64_t bytes = element_count * DTypeSize(dtype);
  return Post("ncclReduce", bytes, bytes, parts,
              [&](const CollectivePart& part, NcclComm comm, CuStream stream) {
                return nccl_->Reduce(Pointer(part.send), MutablePointer(part.receive),
                                     element_count, NcclDTypeOf(dtype), NcclOpOf(op),
                                     static_cast<int>(root), comm, stream);
              });
}

absl::Status CudaCommunicator::Broadcast(DType dtype, uint64_t element_count, size_t root,
                                         std::span<const CollectivePart> parts) {
  if (!IsValid(dtype)) return absl::InvalidArgumentError("no dtype");
  TALWEG_RETURN_IF_ERROR(CheckRoot(root, devices_.size()));
  const uint64_t bytes = element_count * DTypeSize(dtype);
  return Post("ncclBroadcast", bytes, bytes, parts,
              [&](const CollectivePart& part, NcclComm comm, CuStream stream) {
                return nccl_->Broadcast(Pointer(part.send), MutablePointer(part.receive), bytes,
                                        kNcclBytes, static_cast<int>(root), comm, stream);
              });
}

absl::Status CudaCommunicator::AllReduce(DType dtype, Op op, uint64_t element_count,
                                         std::span<const CollectivePart> parts) {
  if (!Combines(dtype, op)) return absl::InvalidArgumentError("not combined between GPUs");
  const uint64_t bytes = element_count * DTypeSize(dtype);
  return Post("ncclAllReduce", bytes, bytes, parts,
              [&](const CollectivePart& part, NcclComm comm, CuStream stream) {
                return nccl_->AllReduce(Pointer(part.send), MutablePointer(part.receive),
                                        element_count, NcclDTypeOf(dtype), NcclOpOf(op), comm,
                                        stream);
              });
}

void CudaCommunicator::Abort() {
  for (size_t i = 0; i < comms_.size(); ++i) {
    NcclComm const comm = std::exchange(comms_[i], nullptr);
    if (comm == nullptr) continue;
    devices_[i]->context().Enter().IgnoreError();
    nccl_->CommAbort(comm);  // Its result changes nothing: the communicator is gone.
  }
  if (error_.ok()) error_ = absl::UnavailableError("the communicator was aborted");
}

}  // namespace talweg::gpu::cuda
