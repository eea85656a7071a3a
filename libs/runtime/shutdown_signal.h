// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_SHUTDOWN_SIGNAL_H_
#define TALWEG_LIBS_RUNTIME_SHUTDOWN_SIGNAL_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <signal.h>

#include <functional>
#include <memory>

#include "libs/runtime/descriptor.h"
#include "libs/runtime/event_loop.h"

namespace talweg {

// SIGTERM and SIGINT as events of a daemon's loop, instead of handlers. Made first in main: it
// blocks them for the calling thread and all that it starts afterwards, until it is destroyed.
// SIGPIPE is ignored from then on: a peer that went away is an error of the write.
class ShutdownSignal {
 public:
  static absl::StatusOr<std::unique_ptr<ShutdownSignal>> Create();

  // `on_signal` gets SIGTERM or SIGINT on the loop's thread, each time one arrives. The loop is
  // gone, or Unwatch was called, before this object is.
  absl::Status Watch(EventLoop* loop, std::function<void(int signal_number)> on_signal);
  void Unwatch(EventLoop* loop);

  // Forgets those that came too late for Watch.
  ~ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

 private:
  ShutdownSignal(Descriptor signals, const sigset_t& mask_before);

  Descriptor signals_;
  sigset_t mask_before_;
};

// Gives a child that is about to exec the signals of a process that has never called Create.
void ResetSignalsForExec();

}  // namespace talweg

#endif  // TALWEG_LIBS_RUNTIME_SHUTDOWN_SIGNAL_H_
