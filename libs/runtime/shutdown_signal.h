// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_SHUTDOWN_SIGNAL_H_
#define TALWEG_LIBS_RUNTIME_SHUTDOWN_SIGNAL_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <signal.h>

#include <functional>
#include <memory>
#include <string>

#include "libs/base/descriptor.h"
#include "libs/runtime/event_loop.h"

namespace talweg::runtime {

// SIGTERM and SIGINT as events of a daemon's loop, instead of handlers. SIGHUP is one, too, so that
// a terminal that is closed, or a habit from daemons that then read their options, ends nothing.
//
// Make it first in main, when an end would leave nothing over. It blocks these signals for good,
// for the calling thread and all threads that it starts afterwards. A signal that comes before
// Watch is delivered by Watch. A signal that comes after the last event ends nothing, even if the
// process is in its last steps or its exit.
//
// From then on SIGPIPE is ignored: a write to a peer that went away returns an error. A crash is a
// crash again: libraries that libfabric loads (PSM) catch it, print, and exit with 1. With the
// handlers reset, the system tells the parent which signal ended the process, and keeps a core.
class ShutdownSignal {
 public:
  static absl::StatusOr<std::unique_ptr<ShutdownSignal>> Create();

  // `on_signal` gets SIGTERM or SIGINT on the loop's thread, each time one arrives. `on_hangup`
  // gets a text for the log when SIGHUP does. Before this object goes, the loop is gone or Unwatch
  // was called.
  absl::Status Watch(EventLoop* loop, std::function<void(int signal_number)> on_signal,
                     std::function<void(const std::string& text)> on_hangup);
  void Unwatch(EventLoop* loop);

  // Forgets signals that came too late to be events.
  ~ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

 private:
  explicit ShutdownSignal(Descriptor signals);

  Descriptor signals_;
};

// For a child that is about to exec: restores the signals of a process that never called Create.
void ResetSignalsForExec();

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_SHUTDOWN_SIGNAL_H_
