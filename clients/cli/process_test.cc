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

// A shell with these variables, and no others. It does not outlive this object.
class Shell {
 public:
  // Returns once the shell runs.
  Shell(const char* script, const std::vector<std::string>& variables) {
    std::vector<char*> environment;
    for (const std::string& each : variables) {
      environment.push_back(const_cast<char*>(each.c_str()));
    }
    environment.push_back(nullptr);
    char* const args[] = {const_cast<char*>("sh"), const_cast<char*>("-c"),
                          const_cast<char*>(script), nullptr};
    int fds[2];
    REQUIRE(pipe2(fds, O_CLOEXEC) == 0);
    pid_ = fork();
    if (pid_ == 0) {
      execve("/bin/sh", args, environment.data());
      _exit(127);
    }
    close(fds[1]);
    char byte;
    CHECK(read(fds[0], &byte, 1) == 0);  // Closed by execve.
    close(fds[0]);
    REQUIRE(pid_ > 0);
  }
  ~Shell() {
    if (has_ended_) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Shell(const Shell&) = delete;
  Shell& operator=(const Shell&) = delete;

  bool runs() const { return waitpid(pid_, nullptr, WNOHANG) == 0; }

  // Returns once the shell has stopped itself.
  void AwaitStop() {
    int status = 0;
    REQUIRE(waitpid(pid_, &status, WUNTRACED) == pid_);
    has_ended_ = !WIFSTOPPED(status);
    REQUIRE_FALSE(has_ended_);
  }

  void Signal(int number) const { kill(pid_, number); }

  // Returns the signal that has ended the shell, once it has ended.
  int EndedBy() {
    int status = 0;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    has_ended_ = true;
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  }

 private:
  pid_t pid_ = -1;
  bool has_ended_ = false;
};

TEST_CASE("KillDescendants: it kills those that were started with the variable", "[cli]") {
  Shell with("exec sleep 1000", {kMark, "PATH=/usr/bin:/bin"});
  Shell without("exec sleep 1000", {"PATH=/usr/bin:/bin"});
  REQUIRE(KillDescendants(kMark) == 1);
  CHECK(with.EndedBy() == SIGKILL);
  CHECK(without.runs());
  without.Signal(SIGTERM);
  CHECK(without.EndedBy() == SIGTERM);
}

TEST_CASE("KillDescendants: it waits for a process that shows no variables yet", "[cli]") {
  // The kernel shows none while it replaces a program either. Here that takes until the shell is
  // told to go on. No program runs between the two: it would have variables, but not this one.
  Shell shell("trap 'TALWEG_TEST_MARK=1 exec sleep 1000' USR1; kill -STOP $$; while :; do :; done",
              {});
  shell.AwaitStop();
  shell.Signal(SIGUSR1);
  shell.Signal(SIGCONT);
  REQUIRE(KillDescendants(kMark, 60'000) == 1);
  CHECK(shell.EndedBy() == SIGKILL);
}

TEST_CASE("KillDescendants: it does not wait for ever for one without variables", "[cli]") {
  Shell shell("exec sleep 1000", {});
  CHECK(KillDescendants(kMark) == 0);
  CHECK(shell.runs());
  shell.Signal(SIGTERM);
  CHECK(shell.EndedBy() == SIGTERM);
}

}  // namespace
}  // namespace talweg::cli
