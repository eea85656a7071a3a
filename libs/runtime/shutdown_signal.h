// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_SHUTDOWN_SIGNAL_H_
#define TALWEG_LIBS_RUNTIME_SHUTDOWN_SIGNAL_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <signal.h>

#include <functional>
#include <memory>

#include "libs/base/descriptor.h"
#include "libs/runtime/event_loop.h"

namespace talweg {

// SIGTERM and SIGINT as events of a daemon's loop, instead of handlers. Made first in main, when
// there is nothing yet that an end would leave behind: it blocks them for the calling thread and
// all that it starts afterwards, for good. One that comes before Watch is told then; one that comes
// after the last event ends nothing, be the process in the middle of its last steps or of its exit.
// SIGPIPE is ignored from then on: a peer that went away is an error of the write. And a crash is a
// crash again: libraries that libfabric brings along (PSM) print, and exit with 1, where the system
// would tell whoever waits for the process which signal it was, and keep a core.
class ShutdownSignal {
 public:
  static absl::StatusOr<std::unique_ptr<ShutdownSignal>> Create();

  // `on_signal` gets SIGTERM or SIGINT on the loop's thread, each time one arrives. The loop is
  // gone, or Unwatch was called, before this object is.
  absl::Status Watch(EventLoop* loop, std::function<void(int signal_number)> on_signal);
  void Unwatch(EventLoop* loop);

  // Forgets those that came too late to be events.
  ~ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

 private:
  explicit ShutdownSignal(Descriptor signals);

  Descriptor signals_;
};

// Gives a child that is about to exec the signals of a process that has never called Create.
void ResetSignalsForExec();

}  // namespace talweg

#endif  // TALWEG_LIBS_RUNTIME_SHUTDOWN_SIGNAL_H_
