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
  std::string name;                                // For messages: "rank 1".
  std::vector<std::string> args;                   // The program first; looked up in PATH.
  std::map<std::string, std::string> environment;  // All of it.
  std::string prefix;  // Before each line that it writes: a format without %r (lines.h).
  // Its outputs are also kept in this directory, as files stdout and stderr; empty: they are not. A
  // later child with the same directory appends to these files.
  std::string output_directory;
  bool is_daemon = false;  // Gets --ready_fd=N, and writes there when it serves.
};

// A started process, and this process's ends of its pipes.
struct StartedChild {
  pid_t pid = -1;
  Descriptor output;  // Its stdout.
  Descriptor errors;  // Its stderr.
  Descriptor ready;   // Daemons only.
};

// Starts a process that cannot outlive the calling one: it leads a process group of its own, is
// killed when the caller dies, reads nothing (stdin is /dev/null) and inherits no other descriptor.
// The caller must have one thread. NOT_FOUND or another error if the program cannot be executed.
absl::StatusOr<StartedChild> StartChild(const ChildSpec& spec);

// How a process has ended.
struct ExitStatus {
  int exit_code = 0;      // Unless a signal ended it.
  int signal_number = 0;  // 0: none.
  int64_t cpu_ns = 0;     // User and system time, with that of its own ended children.

  bool ok() const { return exit_code == 0 && signal_number == 0; }
  // Returns whether a signal has ended it by which others end a process.
  bool ended_on_demand() const {
    return signal_number == SIGINT || signal_number == SIGTERM || signal_number == SIGKILL;
  }
  // Returns the status as shells have it: 128 + signal.
  int ShellStatus() const { return signal_number != 0 ? 128 + signal_number : exit_code; }
  // Returns "exit status 3", "killed by signal 9 (Killed)".
  std::string ToString() const;
};

// Decodes the status word of wait().
ExitStatus ExitStatusOf(int wait_status);

// Makes orphaned descendants children of this process, so that EndDescendants finds them.
absl::Status AdoptOrphans();

// Kills and reaps every child of this process, then their children, which become this process's,
// and so on. Returns false if some are left at the deadline (stuck in the kernel).
bool EndDescendants(int64_t timeout_ms);

// Kills the descendants that were started with the environment variable, given as "NAME=VALUE".
// Returns how many; the caller reaps those that are, or become, its children. A process shows no
// variables while execve replaces its program: such ones get `exec_max_ms` until they show some.
int KillDescendants(const std::string& variable, int64_t exec_max_ms = 100);

// Removes a directory and its contents, if it exists. Does not follow links.
void RemoveTree(const std::string& path);

// Returns the signals that a run takes by sigwait or signalfd: SIGCHLD and those that end it.
// Without SIGHUP if it was ignored when this process started, because nohup's programs outlive the
// terminal.
sigset_t RunSignals();

// CLOCK_MONOTONIC.
int64_t NowNs();

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_PROCESS_H_
