// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_SUPERVISOR_H_
#define TALWEG_CLIENTS_CLI_SUPERVISOR_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <signal.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cli/lines.h"
#include "clients/cli/process.h"
#include "libs/base/ids.h"

namespace talweg::cli {

// A child of one Supervisor, counted from 0 in the order of their start.
using ChildId = StrongId<struct ChildIdTag, uint32_t>;

// What happens to a Supervisor's children; called inside Run.
class SupervisorEvents {
 public:
  virtual ~SupervisorEvents() = default;
  // A daemon serves; `line` is what it said (libs/config/ready.h), without the line feed.
  virtual void OnReady(ChildId child, const std::string& line) = 0;
  // All that the child had written until then is in the outputs. Children of its own may still
  // live.
  virtual void OnExit(ChildId child, const ExitStatus& status) = 0;
  // SIGINT, SIGTERM, SIGHUP or SIGQUIT was sent to this process.
  virtual void OnSignal(int signal_number) = 0;
  // The time set by SetTimer has come.
  virtual void OnTimer() = 0;
  // Nobody reads our output any more.
  virtual void OnOutputGone() = 0;
};

// Starts processes, passes on what they write line by line, and says how they end. None outlives
// it: destroying it kills and reaps all that are left, with their descendants.
//
// Belongs to the only thread of its process, whose children are all its own: it reaps whatever
// child ends. Blocks in Run only, in poll; a signal, an output, an end wakes it.
class Supervisor {
 public:
  // Takes over SIGCHLD and the signals above until the process ends.
  static absl::StatusOr<std::unique_ptr<Supervisor>> Make(int output_fd, int errors_fd);
  ~Supervisor();

  absl::StatusOr<ChildId> Start(const ChildSpec& spec);
  // To the child's whole process group, with SIGCONT, since a stopped process heeds nothing else.
  // Nothing happens if the child has ended.
  void Signal(ChildId child, int signal_number);
  bool running(ChildId child) const { return children_[child.value()]->running; }
  const std::string& name(ChildId child) const { return children_[child.value()]->spec.name; }
  pid_t pid(ChildId child) const { return children_[child.value()]->pid; }
  int running_count() const { return running_count_; }
  // The last lines that a child wrote to its stderr, and if there are none to its stdout.
  std::string LastLinesOf(ChildId child) const;

  // What the child writes from now on only goes to its last lines.
  void Mute(ChildId child);

  // A line of our own to our stderr, between the children's.
  void Say(const std::string& line);

  // OnTimer is called once, at that time of NowNs(); 0: not any more.
  void SetTimer(int64_t at_ns) { timer_ns_ = at_ns; }

  // Delivers events until Stop.
  void Run(SupervisorEvents& events);
  void Stop() { stopped_ = true; }

  // Kills and reaps every descendant and writes what there is to write, for at most `timeout_ms`.
  void EndAll(int64_t timeout_ms);

 private:
  struct Stream {
    Descriptor source;
    LinePrefixer lines;
    LastLines last;
    OutputQueue* sink;
    Descriptor file;  // What is read goes there, too, if there is one.
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
  static void Pass(Stream& stream, const std::string& lines);
  void ReadReady(ChildId id, SupervisorEvents& events);
  void TakeSignals(SupervisorEvents& events);
  void Reap(SupervisorEvents& events);
  void DrainOutputs(Child& child);
  void WriteOutputs(SupervisorEvents& events);

  Descriptor signals_;
  OutputQueue output_;
  OutputQueue errors_;
  std::vector<std::unique_ptr<Child>> children_;  // By ChildId.
  std::set<std::string> output_directories_;
  int running_count_ = 0;
  int64_t timer_ns_ = 0;
  bool stopped_ = false;
  bool output_gone_ = false;
};

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_SUPERVISOR_H_
