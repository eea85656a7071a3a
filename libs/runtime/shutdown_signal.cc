// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/shutdown_signal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <time.h>

#include <string>
#include <utility>

namespace talweg::runtime {
namespace {

sigset_t DaemonSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, number);
  return signals;
}

// Leaves the handlers alone in sanitizer builds: sanitizers report from theirs. (.bazelrc says why
// TSan's own macro is taken away.)
void ForgetHandlersOfCrashes() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(_GLIBCXX_TSAN)
  for (const int crash : {SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGFPE}) signal(crash, SIG_DFL);
#endif
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShutdownSignal>> ShutdownSignal::Create() {
  const sigset_t signals = DaemonSignals();
  Descriptor descriptor(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor.valid()) {
    return absl::ResourceExhaustedError(std::string("signalfd: ") + strerror(errno));
  }
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);
  ForgetHandlersOfCrashes();
  return std::unique_ptr<ShutdownSignal>(new ShutdownSignal(std::move(descriptor)));
}

ShutdownSignal::ShutdownSignal(Descriptor signals) : signals_(std::move(signals)) {}

ShutdownSignal::~ShutdownSignal() {
  // The process may get another signal while it ends: Ctrl-C reaches a whole process group, and the
  // group's leader tells it again. The process has obeyed already, so the signal must not end it in
  // the middle of its last steps.
  const sigset_t signals = DaemonSignals();
  const timespec no_time{};
  while (sigtimedwait(&signals, nullptr, &no_time) > 0) {
  }
}

absl::Status ShutdownSignal::Watch(EventLoop* loop, std::function<void(int)> on_signal,
                                   std::function<void(const std::string&)> on_hangup) {
  return loop->AddDescriptor(
      signals_.get(), EPOLLIN,
      [fd = signals_.get(), on_signal = std::move(on_signal),
       on_hangup = std::move(on_hangup)](uint32_t) {
        signalfd_siginfo info;
        while (read(fd, &info, sizeof(info)) == sizeof(info)) {
          if (info.ssi_signo == SIGHUP) {
            on_hangup(
                "got SIGHUP, which changes nothing: certificates and the quotas file are read "
                "anew when they change, other options need a restart, and SIGTERM ends this "
                "daemon");
          } else {
            on_signal(static_cast<int>(info.ssi_signo));
          }
        }
      });
}

void ShutdownSignal::Unwatch(EventLoop* loop) { loop->RemoveDescriptor(signals_.get()); }

void ResetSignalsForExec() {
  sigset_t none;
  sigemptyset(&none);
  pthread_sigmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
}

}  // namespace talweg::runtime
