// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_SUPERVISOR_H_
#define TALWEG_CLIENTS_CLI_SUPERVISOR_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <signal.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cli/lines.h"
#include "clients/cli/process.h"
#include "libs/base/ids.h"

namespace talweg::cli {

// The number of a Supervisor's child, from 0, in the order of their start.
using ChildId = StrongId<struct ChildIdTag, uint32_t>;

// The events of a Supervisor's children, called inside Run.
class SupervisorEvents {
 public:
  virtual ~SupervisorEvents() = default;
  // A daemon serves. `line` is its ready line (libs/config/ready.h), without the line feed.
  virtual void OnReady(ChildId child, const std::string& line) = 0;
  // A child has ended, and all its output is in the outputs. Its own children may still live.
  virtual void OnExit(ChildId child, const ExitStatus& status) = 0;
  // SIGINT, SIGTERM, SIGHUP or SIGQUIT was sent to this process.
  virtual void OnSignal(int signal_number) = 0;
  // The time set by SetTimer has come.
  virtual void OnTimer() = 0;
  // Nobody reads this process's output any more.
  virtual void OnOutputGone() = 0;
};

// Starts processes, passes on their output line by line, and reports their ends. No child outlives
// it: the destructor kills and reaps the rest, with their descendants.
//
// Owned by the only thread of its process. It reaps every child of the process, so all must be its
// own. Blocks only in Run, in poll; a signal, an output or an end wakes it.
class Supervisor {
 public:
  // Takes over SIGCHLD and the signals above until the process ends.
  static absl::StatusOr<std::unique_ptr<Supervisor>> Make(int output_fd, int errors_fd);
  ~Supervisor();

  absl::StatusOr<ChildId> Start(const ChildSpec& spec);
  // Signals the child's process group, and adds SIGCONT, because a stopped process handles no other
  // signal. Does nothing if the child has ended.
  void Signal(ChildId child, int signal_number);
  bool running(ChildId child) const { return children_[child.value()]->running; }
  const std::string& name(ChildId child) const { return children_[child.value()]->spec.name; }
  pid_t pid(ChildId child) const { return children_[child.value()]->pid; }
  int running_count() const { return running_count_; }
  // Returns the last lines that a child wrote to its stderr, or, if there are none, to its stdout,
  // as the end of a report. If the child is a daemon, and nothing was passed on since, it only says
  // where these lines are.
  std::string WhatItWrote(ChildId child) const;

  // From now on, the child's output only goes to its last lines.
  void Mute(ChildId child);

  // Writes a line of this process to its stderr, between the children's lines.
  void Say(const std::string& line);

  // OnTimer is called once, at `at_ns` by NowNs(); 0: never.
  void SetTimer(int64_t at_ns) { timer_ns_ = at_ns; }

  // Delivers events until Stop.
  void Run(SupervisorEvents& events);
  void Stop() { stopped_ = true; }

  // Kills and reaps every descendant, and writes the remaining output, for at most `timeout_ms`.
  void EndAll(int64_t timeout_ms);

 private:
  struct Child;
  struct Stream {
    Descriptor source;
    LinePrefixer lines;
    LastLines last;
    OutputQueue* sink;
    Descriptor file;  // If set, the output also goes there.
    const Child* child = nullptr;
    bool muted = false;
  };
  struct Child {
    ChildSpec spec;
    pid_t pid;
    bool running = true;
    Stream output;
    Stream errors;
    Descriptor ready;
    std::string ready_text;
  };

  Supervisor(int signal_fd, int output_fd, int errors_fd);

  void PollOnce(SupervisorEvents& events);
  void Read(Stream& stream);
  void Keep(Stream& stream, std::string_view bytes);
  void Pass(Stream& stream, const std::string& lines);
  void ReadReady(ChildId id, SupervisorEvents& events);
  void TakeSignals(SupervisorEvents& events);
  void Reap(SupervisorEvents& events);
  void DrainOutputs(Child& child);
  void WriteOutputs(SupervisorEvents& events);

  Descriptor signals_;
  OutputQueue output_;
  OutputQueue errors_;
  std::vector<std::unique_ptr<Child>> children_;  // By ChildId.
  const Child* shown_last_ = nullptr;             // The child whose line was passed on last.
  std::set<std::string> output_directories_;
  int running_count_ = 0;
  int64_t timer_ns_ = 0;
  struct FirstSignal {
    pid_t sender;
    int64_t at_ns;
  };
  std::optional<FirstSignal> first_signal_;
  bool stopped_ = false;
  bool output_gone_ = false;
};

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_SUPERVISOR_H_
