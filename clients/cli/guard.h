// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_GUARD_H_
#define TALWEG_CLIENTS_CLI_GUARD_H_

#include <absl/status/statusor.h>

#include <functional>
#include <string>

namespace talweg::cli {

// Returns where runs may make their directories, in the order in which these places are tried.
// Leaves out paths that are relative, too long, or not writable, and those in which another user
// could put something else in a directory's place.
std::vector<std::string> RunParents();
// The prefix of a run's directory.
inline constexpr char kRunPrefix[] = "talweg-run-";

// Runs `supervise` in a second process, with a private directory whose path is short enough for
// sockets. Returns the exit status of `supervise`. If one of the two processes is killed, even by
// SIGKILL, the other ends every process that was started, and removes the directory:
//
//   talweg run (this process) --- supervisor --- ranks, daemons --- what they start
//
// When this process dies, the kernel signals the supervisor, which ends its work as for SIGTERM.
// When the supervisor dies, this process inherits its orphans, and kills them. This process passes
// SIGINT, SIGTERM, SIGHUP and SIGQUIT on to the supervisor, which leads a process group of its own;
// but not a SIGHUP that nohup ignores. The caller must have one thread and no children. If both
// processes are killed at once, this user's next run removes the directory.
absl::StatusOr<int> RunGuarded(const std::function<int(const std::string& directory)>& supervise);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_GUARD_H_
