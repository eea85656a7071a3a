// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/wake_streams.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "libs/base/check.h"
#include "libs/gpu/cuda/wakeups.h"
#include "libs/status/status.h"

namespace talweg::gpu::cuda {

WakeStreams::WakeStreams(CudaContext& context)
    : context_(context),
      descriptor_(std::make_shared<Descriptor>(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {}

void WakeStreams::Close() {
  Wakeups::Get().DropAll(descriptor_);
  for (const WakeStream& wake : streams_) context_.driver().StreamDestroy(wake.stream);
  streams_.clear();
}

absl::StatusOr<WakeStreams::WakeStream> WakeStreams::Idle() {
  for (const WakeStream& wake : streams_) {
    if (wake.is_idle->load()) return wake;
  }
  WakeStream wake{.is_idle = std::make_shared<std::atomic<bool>>(true)};
  TALWEG_ASSIGN_OR_RETURN(wake.stream, context_.NewStream(StreamPriority::kHigh));
  streams_.push_back(wake);
  return wake;
}

absl::Status WakeStreams::WakeWhenDone(CuEvent event) {
  const DriverApi& api = context_.driver();
  TALWEG_ASSIGN_OR_RETURN(const WakeStream on, Idle());
  TALWEG_RETURN_IF_ERROR(
      context_.Check(api.StreamWaitEvent(on.stream, event, 0), "cuStreamWaitEvent"));
  // Set before the launch, because the driver's thread may be faster than this one.
  on.is_idle->store(false);
  void* const number = Wakeups::Get().Add({descriptor_, on.is_idle});
  const absl::Status launched =
      context_.Check(api.LaunchHostFunc(on.stream, &Wakeups::Signal, number), "cuLaunchHostFunc");
  if (!launched.ok()) Wakeups::Get().Drop(number);
  return launched;
}

void WakeStreams::Drain() {
  uint64_t count = 0;
  TALWEG_CHECK(read(descriptor_->get(), &count, sizeof(count)) == sizeof(count) || errno == EAGAIN);
}

}  // namespace talweg::gpu::cuda
