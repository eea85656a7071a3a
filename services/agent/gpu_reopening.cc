// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_reopening.h"

#include <absl/strings/str_cat.h>

#include "libs/status/status.h"

namespace talweg::agent {

GpuReopening::Progress GpuReopening::Tend(int64_t now_ns) {
  Progress progress;
  for (const gpu::GpuUuid& uuid : losses_.all()) {
    const absl::Status status = TendOne(uuid, now_ns, progress);
    if (!progress.failed.empty()) return progress;
    if (!status.ok() && losses_.IsOverdue(uuid, now_ns)) {
      progress.failed = absl::StrCat(
          status::StatusText(losses_.Why(uuid)), "; not opened again within ",
          options_.reopen_deadline_ns / 1'000'000'000, " s: ", status::StatusText(status));
      return progress;
    }
  }
  for (const gpu::GpuUuid& uuid : progress.back) losses_.Remove(uuid);
  return progress;
}

absl::Status GpuReopening::TendOne(const gpu::GpuUuid& uuid, int64_t now_ns, Progress& progress) {
  if (!losses_.IsClosed(uuid) && Close(uuid)) {
    losses_.SetClosed(uuid, true);
    ++progress.work;
  }
  const bool is_used = buffers_.Use(uuid);
  if (!losses_.IsClosed(uuid) || (is_used && !losses_.IsDue(uuid, now_ns))) {
    return losses_.Why(uuid);
  }
  ++progress.work;
  const absl::Status status = is_used ? Reopen(uuid) : absl::OkStatus();
  if (status.ok()) progress.back.push_back(uuid);
  // The GPU was lost again while it was opened.
  if (absl::IsAborted(status)) losses_.SetClosed(uuid, node_.Find(uuid) == nullptr);
  if (absl::IsFailedPrecondition(status)) {
    progress.failed =
        absl::StrCat(status::StatusText(losses_.Why(uuid)), "; ", status::StatusText(status));
  }
  losses_.OnTried(uuid, now_ns);
  return status;
}

bool GpuReopening::Close(const gpu::GpuUuid& uuid) {
  if (lanes_.AnyBusy() || !collectives_.Release(uuid)) return false;
  pins_.Forget(uuid);
  node_.Close(uuid);
  return true;
}

absl::Status GpuReopening::Reopen(const gpu::GpuUuid& uuid) {
  TALWEG_RETURN_IF_ERROR(node_.Open(uuid).status());
  TALWEG_RETURN_IF_ERROR(buffers_.MapAgain(uuid));
  gradients_.OnMappedAgain(uuid);
  return absl::OkStatus();
}

}  // namespace talweg::agent
