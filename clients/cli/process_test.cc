// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::cli {
namespace {

constexpr char kMark[] = "TALWEG_TEST_MARK=1";

// Starts a shell with these variables, and no others. Returns its PID once it runs.
pid_t StartShell(const char* script, const std::vector<std::string>& variables) {
  std::vector<char*> environment;
  for (const std::string& each : variables) environment.push_back(const_cast<char*>(each.c_str()));
  environment.push_back(nullptr);
  char* const args[] = {const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>(script),
                        nullptr};
  int fds[2];
  REQUIRE(pipe2(fds, O_CLOEXEC) == 0);
  const pid_t pid = fork();
  REQUIRE(pid >= 0);
  if (pid == 0) {
    execve("/bin/sh", args, environment.data());
    _exit(127);
  }
  close(fds[1]);
  char byte;
  REQUIRE(read(fds[0], &byte, 1) == 0);  // Closed by execve.
  close(fds[0]);
  return pid;
}

// Returns the signal that has ended the process.
int EndedBy(pid_t pid) {
  int status = 0;
  REQUIRE(waitpid(pid, &status, 0) == pid);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST_CASE("KillDescendants: it kills those that were started with the variable", "[cli]") {
  const pid_t with = StartShell("exec sleep 1000", {kMark, "PATH=/usr/bin:/bin"});
  const pid_t without = StartShell("exec sleep 1000", {"PATH=/usr/bin:/bin"});
  CHECK(KillDescendants(kMark) == 1);
  CHECK(EndedBy(with) == SIGKILL);
  CHECK(waitpid(without, nullptr, WNOHANG) == 0);
  kill(without, SIGTERM);
  CHECK(EndedBy(without) == SIGTERM);
}

TEST_CASE("KillDescendants: it waits for a process that shows no variables yet", "[cli]") {
  // The kernel shows none while it replaces a program either. Here that takes until the shell is
  // told to go on.
  const pid_t pid = StartShell(
      "trap 'exec env TALWEG_TEST_MARK=1 sleep 1000' USR1; kill -STOP $$; while :; do :; done", {});
  int status = 0;
  REQUIRE(waitpid(pid, &status, WUNTRACED) == pid);
  REQUIRE(WIFSTOPPED(status));
  kill(pid, SIGUSR1);
  kill(pid, SIGCONT);
  CHECK(KillDescendants(kMark, 60'000) == 1);
  CHECK(EndedBy(pid) == SIGKILL);
}

TEST_CASE("KillDescendants: it does not wait for ever for one without variables", "[cli]") {
  const pid_t pid = StartShell("exec sleep 1000", {});
  CHECK(KillDescendants(kMark) == 0);
  CHECK(waitpid(pid, nullptr, WNOHANG) == 0);
  kill(pid, SIGTERM);
  CHECK(EndedBy(pid) == SIGTERM);
}

}  // namespace
}  // namespace talweg::cli
