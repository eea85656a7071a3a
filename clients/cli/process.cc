// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/process.h"

#include <absl/strings/str_cat.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <set>
#include <system_error>

#include "libs/runtime/kernel_file.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

constexpr useconds_t kLookAgainUs = 1'000;

struct Pipe {
  Descriptor read_end;
  Descriptor write_end;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return status::ErrnoStatus(errno, "make a pipe (limit of open files: ulimit -n)");
  }
  return Pipe{Descriptor(fds[0]), Descriptor(fds[1])};
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// Runs in the new process until the program runs. It shares only the pipes with the caller.
[[noreturn]] void BecomeProgram(pid_t parent, char* const* args, char* const* environment,
                                int output_fd, int errors_fd, int ready_fd, int failure_fd) {
  const auto fail = [failure_fd] {
    const int error_number = errno;
    [[maybe_unused]] const ssize_t bytes = write(failure_fd, &error_number, sizeof error_number);
    _exit(127);
  };
  setpgid(0, 0);
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) fail();
  if (getppid() != parent) _exit(127);  // The parent had died before the line above.
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  // SIGHUP stays as the caller had it: nohup's programs outlive the terminal.
  for (const int number : {SIGPIPE, SIGINT, SIGTERM, SIGQUIT, SIGCHLD}) signal(number, SIG_DFL);
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 || dup2(output_fd, STDOUT_FILENO) < 0 ||
      dup2(errors_fd, STDERR_FILENO) < 0) {
    fail();
  }
  // The program must not get descriptors that the tool's caller had left open. Old kernels lack
  // this call; the tool's own are close-on-exec.
  close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  if (ready_fd >= 0 && fcntl(ready_fd, F_SETFD, 0) != 0) fail();
  execvpe(args[0], args, environment);
  fail();
  __builtin_unreachable();
}

struct Process {
  pid_t parent = 0;
  char state = 0;  // As in /proc/<pid>/stat. 'Z': it has ended.
};

// Returns the processes of this machine.
std::map<pid_t, Process> Processes() {
  std::map<pid_t, Process> found;
  DIR* directory = opendir("/proc");
  if (directory == nullptr) return found;
  while (const dirent* entry = readdir(directory)) {
    const pid_t pid = static_cast<pid_t>(std::strtol(entry->d_name, nullptr, 10));
    if (pid <= 0) continue;
    const std::string stat = runtime::ReadKernelFile(absl::StrCat("/proc/", pid, "/stat"));
    // "12 (any name) S 11 ...": the name may hold spaces and parentheses.
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || name_end + 4 >= stat.size()) continue;
    const long parent = std::strtol(stat.c_str() + name_end + 4, nullptr, 10);
    found[pid] = {static_cast<pid_t>(parent), stat[name_end + 2]};
  }
  closedir(directory);
  return found;
}

std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  for (const auto& [pid, process] : Processes()) {
    if (process.parent == getpid()) children.push_back(pid);
  }
  return children;
}

enum class Carries { kYes, kNo, kUnknown };

// Returns whether the process was started with the variable, given as "NAME=VALUE". kUnknown: it
// shows no variables at all. That is so while the kernel replaces its program (execve).
Carries Carried(pid_t pid, const std::string& variable) {
  const std::string path = absl::StrCat("/proc/", pid, "/environ");
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string all(1, '\0');
  char bytes[4096];
  for (ssize_t count; file.valid() && (count = read(file.get(), bytes, sizeof bytes)) > 0;) {
    all.append(bytes, static_cast<size_t>(count));
  }
  if (all.size() == 1) return Carries::kUnknown;
  // Each variable stands between two NULs.
  std::string wanted(1, '\0');
  wanted.append(variable).push_back('\0');
  return all.find(wanted) != std::string::npos ? Carries::kYes : Carries::kNo;
}

bool IsDescendant(pid_t pid, const std::map<pid_t, Process>& processes) {
  // Bounded, because numbers may be used again while /proc is read.
  for (size_t depth = 0; depth < processes.size() && pid != getpid(); ++depth) {
    const auto found = processes.find(pid);
    if (found == processes.end()) return false;
    pid = found->second.parent;
  }
  return pid == getpid();
}

}  // namespace

absl::StatusOr<StartedChild> StartChild(const ChildSpec& spec) {
  TALWEG_ASSIGN_OR_RETURN(Pipe output, MakePipe());
  TALWEG_ASSIGN_OR_RETURN(Pipe errors, MakePipe());
  TALWEG_ASSIGN_OR_RETURN(Pipe failure, MakePipe());
  Pipe ready;
  std::vector<std::string> arg_texts = spec.args;
  if (spec.is_daemon) {
    TALWEG_ASSIGN_OR_RETURN(ready, MakePipe());
    arg_texts.push_back(absl::StrCat("--ready_fd=", ready.write_end.get()));
  }
  std::vector<std::string> variables;
  for (const auto& [name, value] : spec.environment) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  const std::vector<char*> args = Pointers(arg_texts);
  const std::vector<char*> environment = Pointers(variables);

  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    return status::ErrnoStatus(
        errno, absl::StrCat("start ", spec.name, " (limit of processes: ulimit -u)"));
  }
  if (pid == 0) {
    BecomeProgram(parent, args.data(), environment.data(), output.write_end.get(),
                  errors.write_end.get(), ready.write_end.get(), failure.write_end.get());
  }
  // Parent and child both do it, because the group must exist before it is signalled.
  setpgid(pid, pid);
  failure.write_end.Reset();
  int error_number = 0;
  ssize_t bytes;
  do {  // Ends when the program runs (close-on-exec) or the process has died.
    bytes = read(failure.read_end.get(), &error_number, sizeof error_number);
  } while (bytes < 0 && errno == EINTR);
  if (bytes == static_cast<ssize_t>(sizeof error_number)) {
    waitpid(pid, nullptr, 0);
    return status::ErrnoStatus(error_number,
                               absl::StrCat("start ", spec.name, ": execute '", spec.args[0], "'"));
  }
  for (const Pipe* pipe : {&output, &errors, &ready}) {
    if (pipe->read_end.valid()) fcntl(pipe->read_end.get(), F_SETFL, O_NONBLOCK);
  }
  return StartedChild{pid, std::move(output.read_end), std::move(errors.read_end),
                      std::move(ready.read_end)};
}

std::string ExitStatus::ToString() const {
  if (signal_number == 0) return absl::StrCat("exit status ", exit_code);
  return absl::StrCat("killed by signal ", signal_number, " (", strsignal(signal_number), ")");
}

ExitStatus ExitStatusOf(int wait_status) {
  ExitStatus status;
  if (WIFSIGNALED(wait_status)) {
    status.signal_number = WTERMSIG(wait_status);
  } else {
    status.exit_code = WEXITSTATUS(wait_status);
  }
  return status;
}

absl::Status AdoptOrphans() {
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) == 0) return absl::OkStatus();
  return status::ErrnoStatus(errno, "become the reaper of orphaned children");
}

bool EndDescendants(int64_t timeout_ms) {
  const int64_t deadline_ns = NowNs() + timeout_ms * 1'000'000;
  for (;;) {
    for (const pid_t pid : Children()) kill(pid, SIGKILL);
    for (;;) {
      const pid_t pid = waitpid(-1, nullptr, WNOHANG);
      if (pid < 0 && errno == ECHILD) return true;
      if (pid == 0) break;  // Some children still run.
    }
    const int64_t left_ns = deadline_ns - NowNs();
    if (left_ns <= 0) return false;
    // The end of a child interrupts the wait. The next turn sees its children, which are now this
    // process's.
    sigset_t child_ended;
    sigemptyset(&child_ended);
    sigaddset(&child_ended, SIGCHLD);
    sigset_t before;
    sigprocmask(SIG_BLOCK, &child_ended, &before);
    const timespec wait = {0, std::min<int64_t>(left_ns, 20'000'000)};
    sigtimedwait(&child_ended, nullptr, &wait);
    sigprocmask(SIG_SETMASK, &before, nullptr);
  }
}

int KillDescendants(const std::string& variable, int64_t exec_max_ms) {
  std::set<pid_t> killed;
  const int64_t deadline_ns = NowNs() + exec_max_ms * 1'000'000;
  // One that is about to be killed may start another one meanwhile, and one that replaces its
  // program soon shows its variables again.
  for (bool looks_again = true; looks_again;) {
    looks_again = false;
    bool has_unknown = false;
    const std::map<pid_t, Process> processes = Processes();
    for (const auto& [pid, process] : processes) {
      if (process.state == 'Z' || !IsDescendant(process.parent, processes)) continue;
      const Carries carries = Carried(pid, variable);
      has_unknown |= carries == Carries::kUnknown;
      if (carries != Carries::kYes || kill(pid, SIGKILL) != 0) continue;
      looks_again |= killed.insert(pid).second;
    }
    if (!looks_again && has_unknown && NowNs() < deadline_ns) {
      looks_again = true;
      usleep(kLookAgainUs);
    }
  }
  return static_cast<int>(killed.size());
}

void RemoveTree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

sigset_t RunSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGQUIT}) sigaddset(&signals, number);
  struct sigaction hangup;
  const bool is_ignored = sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
  if (!is_ignored) sigaddset(&signals, SIGHUP);
  return signals;
}

int64_t NowNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace talweg::cli
