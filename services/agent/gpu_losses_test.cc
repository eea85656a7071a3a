// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_losses.h"

#include <catch2/catch.hpp>

namespace talweg::agent {
namespace {

TEST_CASE("GpuLosses: a lost GPU is due to be opened now and then, and overdue in the end",
          "[gpu]") {
  const GpuStageOptions options{.reopen_every_ns = 10, .reopen_deadline_ns = 100};
  GpuLosses losses(options);
  const gpu::GpuUuid uuid{};
  losses.Add(uuid, absl::AbortedError("a fault"), 1000);
  CHECK(losses.HasAny({uuid}));
  CHECK(losses.Why(uuid).message() == "a fault");
  CHECK(losses.IsDue(uuid, 1000));
  losses.OnTried(uuid, 1000);
  CHECK_FALSE(losses.IsDue(uuid, 1009));
  CHECK(losses.IsDue(uuid, 1010));
  CHECK_FALSE(losses.IsOverdue(uuid, 1099));
  CHECK(losses.IsOverdue(uuid, 1100));
  losses.Remove(uuid);
  CHECK(losses.empty());
  CHECK_FALSE(losses.Has(uuid));
}

TEST_CASE("GpuLosses: nothing is pinned once every lost context is closed", "[gpu]") {
  const GpuStageOptions options;
  GpuLosses losses(options);
  gpu::GpuUuid one{};
  gpu::GpuUuid other{};
  other.bytes[0] = 1;
  CHECK(losses.AreClosed());
  losses.Add(one, absl::AbortedError(""), 0);
  losses.Add(other, absl::AbortedError(""), 0);
  losses.SetClosed(one, true);
  CHECK_FALSE(losses.AreClosed());
  losses.SetClosed(other, true);
  CHECK(losses.AreClosed());
  losses.SetClosed(one, false);  // The GPU is lost again while it is opened.
  CHECK_FALSE(losses.AreClosed());
}

}  // namespace
}  // namespace talweg::agent
