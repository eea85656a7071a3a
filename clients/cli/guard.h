// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_GUARD_H_
#define TALWEG_CLIENTS_CLI_GUARD_H_

#include <absl/status/statusor.h>

#include <functional>
#include <string>

namespace talweg::cli {

// Where the directories of runs may lie, in the order in which they are tried; without those whose
// path is relative or too long, or that may not be written to.
std::vector<std::string> RunParents();
// How the name of a run's directory begins.
inline constexpr char kRunPrefix[] = "talweg-run-";

// Runs `supervise` in a second process, with a private directory that is short enough for sockets
// in it, and returns the exit status that it returns there. Of the two, whichever is killed, by
// SIGKILL too, the other ends every process that was started and removes the directory:
//
//   talweg run (this process) --- supervisor --- ranks, daemons --- what they start
//
// The supervisor is told by the kernel when this process has died, and ends its work as for
// SIGTERM. This process inherits the orphans of a supervisor that has died, and kills them. SIGINT,
// SIGTERM, SIGHUP and SIGQUIT are passed on to the supervisor, which leads a process group of its
// own; SIGHUP is not where nohup has it ignored. The caller has one thread and no children. Where
// both are killed at once, the next run of this user removes their directory.
absl::StatusOr<int> RunGuarded(const std::function<int(const std::string& directory)>& supervise);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_GUARD_H_
