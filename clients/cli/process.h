// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_PROCESS_H_
#define TALWEG_CLIENTS_CLI_PROCESS_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "libs/base/descriptor.h"

namespace talweg::cli {

struct ChildSpec {
  std::string name;                                // For people: "rank 1".
  std::vector<std::string> args;                   // The program first; looked up in PATH.
  std::map<std::string, std::string> environment;  // All of it.
  std::string prefix;  // In front of each line that it writes: a format without %r (lines.h).
  // Where what it writes is kept as well, as files stdout and stderr; empty: it is not. A later
  // child of the same directory goes on in these files.
  std::string output_directory;
  bool is_daemon = false;  // Is given --ready_fd=N and says there that it serves.
};

// A started process and our ends of its pipes.
struct StartedChild {
  pid_t pid = -1;
  Descriptor output;  // Its stdout.
  Descriptor errors;  // Its stderr.
  Descriptor ready;   // Daemons only.
};

// Starts a process that cannot outlive the calling one: it leads a process group of its own, is
// killed when the caller dies, reads nothing (stdin is /dev/null) and inherits no other descriptor.
// The caller has one thread. NOT_FOUND and the like when the program cannot be executed.
absl::StatusOr<StartedChild> StartChild(const ChildSpec& spec);

// How a process has ended.
struct ExitStatus {
  int exit_code = 0;      // Unless a signal ended it.
  int signal_number = 0;  // 0: none.
  int64_t cpu_ns = 0;     // User and system time, with that of its own ended children.

  bool ok() const { return exit_code == 0 && signal_number == 0; }
  // As shells have it: 128 + signal.
  int ShellStatus() const { return signal_number != 0 ? 128 + signal_number : exit_code; }
  // "exit status 3", "killed by signal 9 (Killed)".
  std::string ToString() const;
};

// From wait's status word.
ExitStatus ExitStatusOf(int wait_status);

// Makes orphans of all descendants children of this process, so that EndDescendants finds them.
absl::Status AdoptOrphans();

// Kills every child of this process, their children that thereby become ours, and so on, and reaps
// them. False when some are still there at the deadline (stuck in the kernel).
bool EndDescendants(int64_t timeout_ms);

// Removes a directory and what is in it; does not follow links. Missing: fine.
void RemoveTree(const std::string& path);

// What a run takes by sigwait or signalfd: SIGCHLD and the signals that end it. Without SIGHUP
// where that was ignored when this process started: nohup asks to outlive the terminal.
sigset_t RunSignals();

// CLOCK_MONOTONIC.
int64_t NowNs();

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_PROCESS_H_
