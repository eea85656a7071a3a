// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/guard.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "clients/cli/command.h"
#include "clients/cli/process.h"
#include "libs/base/descriptor.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

// A file in a run's directory, locked as long as one of the run's two processes lives.
constexpr char kLockName[] = "lock";

// Removes the directories of this user's runs whose two processes were killed at once.
void RemoveLeftDirectories() {
  for (const std::string& parent : RunParents()) {
    DIR* const entries = opendir(parent.c_str());
    if (entries == nullptr) continue;
    while (const dirent* entry = readdir(entries)) {
      if (!absl::StartsWith(entry->d_name, kRunPrefix)) continue;
      const std::string path = absl::StrCat(parent, "/", entry->d_name);
      const Descriptor lock(
          open(absl::StrCat(path, "/", kLockName).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
      struct stat status;
      if (!lock.valid() || fstat(lock.get(), &status) != 0 || status.st_uid != geteuid()) continue;
      if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) RemoveTree(path);
    }
    closedir(entries);
  }
}

// The lock ends with the last process that has the descriptor.
absl::StatusOr<Descriptor> Lock(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kLockName);
  const std::string unlocked = path + ".new";
  Descriptor lock(open(unlocked.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  // No other process may lock it first.
  if (!lock.valid() || flock(lock.get(), LOCK_EX) != 0 ||
      rename(unlocked.c_str(), path.c_str()) != 0) {
    return status::ErrnoStatus(errno, absl::StrCat("lock ", path));
  }
  return lock;
}

absl::StatusOr<std::string> MakePrivateDirectory() {
  const std::string parent = RunParents().front();
  std::string path = absl::StrCat(parent, "/", kRunPrefix, "XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return status::ErrnoStatus(
        errno, absl::StrCat("make a directory in ", parent, " (TMPDIR names another)"));
  }
  return path;
}

// Returns whether no other user can replace what this user makes in the directory.
bool IsKept(const char* directory) {
  struct stat found;
  if (access(directory, W_OK | X_OK) != 0 || stat(directory, &found) != 0) return false;
  const bool is_shared = (found.st_mode & S_IWOTH) != 0 && (found.st_mode & S_ISVTX) == 0;
  return (found.st_uid == 0 || found.st_uid == geteuid()) && !is_shared;
}

[[noreturn]] void BecomeSupervisor(pid_t parent, const std::string& directory,
                                   const std::function<int(const std::string&)>& supervise) {
  setpgid(0, 0);
  // A background group may be stopped for writing to the terminal. This process writes for all.
  signal(SIGTTOU, SIG_IGN);
  // Like all others here, the signal is blocked until the supervisor takes it.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  int status = 0;
  if (getppid() == parent) status = supervise(directory);
  RemoveTree(directory);
  std::fflush(nullptr);
  _exit(status);
}

}  // namespace

std::vector<std::string> RunParents() {
  constexpr size_t kParentBytesMax = 60;  // A socket's path has at most 107 bytes.
  std::vector<std::string> parents;
  for (const char* variable : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* told = std::getenv(variable);
    // Ranks may change their directory, and a relative path then means another place.
    if (told == nullptr || *told != '/' || std::string(told).size() > kParentBytesMax) continue;
    if (IsKept(told)) parents.emplace_back(told);
  }
  parents.emplace_back("/tmp");
  return parents;
}

absl::StatusOr<int> RunGuarded(const std::function<int(const std::string&)>& supervise) {
  TALWEG_RETURN_IF_ERROR(AdoptOrphans());
  // Before anything exists that a signal could leave behind.
  const sigset_t mask = RunSignals();
  sigset_t before;
  sigprocmask(SIG_BLOCK, &mask, &before);
  RemoveLeftDirectories();
  TALWEG_ASSIGN_OR_RETURN(const std::string directory, MakePrivateDirectory());
  const absl::StatusOr<Descriptor> lock = Lock(directory);
  if (!lock.ok()) {
    RemoveTree(directory);
    return lock.status();
  }
  const pid_t parent = getpid();
  const pid_t supervisor = fork();
  if (supervisor < 0) {
    const int error_number = errno;
    RemoveTree(directory);
    return status::ErrnoStatus(error_number,
                               "start the supervisor (limit of processes: ulimit -u)");
  }
  if (supervisor == 0) BecomeSupervisor(parent, directory, supervise);

  int wait_status = 0;
  for (;;) {
    siginfo_t info;
    const int number = sigwaitinfo(&mask, &info);
    if (number < 0) continue;  // Stopped and continued.
    if (number != SIGCHLD) {
      kill(supervisor, number);
    } else if (waitpid(supervisor, &wait_status, WNOHANG) == supervisor) {
      break;
    }
  }
  if (!EndDescendants(10'000)) PrintError("some processes could not be killed; see ps");
  RemoveTree(directory);
  sigprocmask(SIG_SETMASK, &before, nullptr);
  const ExitStatus status = ExitStatusOf(wait_status);
  if (status.signal_number != 0) {
    PrintError(absl::StrCat("the supervisor was ", status.ToString(), "; everything was ended"));
  }
  return status.ShellStatus();
}

}  // namespace talweg::cli
