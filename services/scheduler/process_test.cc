// SPDX-License-Identifier: Apache-2.0
//
// Runs the scheduler's binary with members that are processes. It shows what only real processes
// can show.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/base/test_directory.h"
#include "libs/rpc/admin_client.h"
#include "services/scheduler/testing.h"

extern char** environ;

namespace talweg::scheduler {
namespace {

// A child with a pipe to its standard input and one from its descriptor 3. The destructor kills and
// reaps it.
class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    int in[2];
    int out[2];
    REQUIRE(pipe2(in, O_CLOEXEC) == 0);
    REQUIRE(pipe2(out, O_CLOEXEC) == 0);
    in_ = in[1];
    out_ = out[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], 3);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    REQUIRE(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
  }
  ~Process() {
    Signal(SIGCONT);
    Kill();
    close(in_);
    close(out_);
  }
  Process(const Process&) = delete;

  void Signal(int number) {
    if (pid_ > 0) kill(pid_, number);
  }
  void Kill() {
    Signal(SIGKILL);
    Wait();
  }
  // Returns the status that waitpid() gave.
  int Wait() {
    int status = 0;
    if (pid_ > 0) waitpid(std::exchange(pid_, -1), &status, 0);
    return status;
  }
  // Reads up to the end of a line, or all that there is.
  std::string ReadLine() {
    std::string line;
    char byte = 0;
    while (read(out_, &byte, 1) == 1 && byte != '\n') line += byte;
    return line;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
};

// talweg-scheduler, ready to serve.
class Daemon {
 public:
  Daemon(const std::string& store, const std::string& listen, const std::string& lease = "10s")
      : process_({"services/scheduler/talweg-scheduler", "--store_path=" + store,
                  "--listen=" + listen, "--ready_fd=3", "--lease_ms=" + lease}) {
    const std::string ready = process_.ReadLine();
    const std::string key = "\"listen\":\"";
    const size_t begin = ready.find(key);
    if (begin == std::string::npos) return;  // It has ended, and said why.
    address_ = ready.substr(begin + key.size());
    address_.resize(address_.find('"'));
  }
  const std::string& address() const { return address_; }
  Process& process() { return process_; }

 private:
  Process process_;
  std::string address_;
};

Process SpawnMember(const std::string& address, int node, int members) {
  return Process({"services/scheduler/member_process", address, std::to_string(node),
                  std::to_string(members)});
}

void Pause(int ms) { poll(nullptr, 0, ms); }

TEST_CASE("Scheduler processes: an agent killed with SIGKILL is noticed at once", "[scheduler]") {
  const TestDirectory directory;
  const Daemon daemon(directory.Path("store"), "127.0.0.1:0");
  REQUIRE_FALSE(daemon.address().empty());
  TestAggregator a0(daemon.address(), "a0", 200);
  TestMember first(Link(daemon.address()), Spec(0, 2, 2));
  Process second = SpawnMember(daemon.address(), 1, 2);
  first.events.Next<rpc::ViewPublished>();
  second.Kill();
  // The scheduler notices the stream's end within milliseconds. A lapsed lease would say that the
  // agent was silent.
  CHECK(Contains(first.events.Next<rpc::JobFailed>().text,
                 "agent of node 1 (host-1, incarnation 65) closed its connection"));
}

TEST_CASE("Scheduler processes: a scheduler goes on after SIGKILL and a new start", "[scheduler]") {
  const TestDirectory directory;
  const std::string store = directory.Path("store");
  std::optional<Daemon> daemon;
  daemon.emplace(store, "127.0.0.1:0");
  const std::string address = daemon->address();
  REQUIRE_FALSE(address.empty());
  TestAggregator a0(address, "a0", 200);
  TestMember first(Link(address), Spec(0, 2, 2));
  TestMember second(Link(address), Spec(1, 2, 2));
  const JobId job = first.events.Next<rpc::Joined>().job;
  const Epoch epoch = first.events.Next<rpc::ViewPublished>().view.epoch;
  for (int life = 0; life < 3; ++life) {
    daemon->process().Kill();
    first.events.Next<rpc::Unreachable>();
    second.events.Next<rpc::Unreachable>();
    a0.events.Next<rpc::Unreachable>();
    daemon.emplace(store, address);
    REQUIRE(daemon->address() == address);
    first.events.Next<rpc::Reachable>();
    second.events.Next<rpc::Reachable>();
    a0.events.Next<rpc::Reachable>();
  }
  rpc::SchedulerAdminClient admin(address, 30 * kSecond);
  scheduler::v1::GetJobRequest request;
  request.set_job_id(job.value());
  const auto shown = admin.GetJob(request);
  REQUIRE(shown.ok());
  CHECK(shown->summary().state() == v1::JOB_STATE_RUNNING);
  CHECK(shown->summary().epoch() == epoch.value());
  CHECK_FALSE(first.events.Has<rpc::JobFailed>());
  CHECK_FALSE(first.events.Has<rpc::LeaseLost>());
  daemon->process().Signal(SIGTERM);
  const int status = daemon->process().Wait();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("Scheduler processes: a scheduler that was stopped for longer than a lease loses nobody",
          "[scheduler]") {
  const TestDirectory directory;
  Daemon daemon(directory.Path("store"), "127.0.0.1:0", "2s");
  REQUIRE_FALSE(daemon.address().empty());
  TestAggregator a0(daemon.address(), "a0", 200);
  rpc::SchedulerLinkOptions link = Link(daemon.address());
  link.call_timeout_ns = kSecond / 4;
  TestMember first(link, Spec(0, 2, 2));
  TestMember second(link, Spec(1, 2, 2));
  first.events.Next<rpc::ViewPublished>();
  daemon.process().Signal(SIGSTOP);
  first.events.Next<rpc::Unreachable>();
  second.events.Next<rpc::Unreachable>();
  Pause(2400);  // This is the fault itself: it lasts a lease and a little more.
  daemon.process().Signal(SIGCONT);
  first.events.Next<rpc::Reachable>();
  second.events.Next<rpc::Reachable>();
  CHECK_FALSE(first.events.Has<rpc::JobFailed>());
  second.client.reset();
  CHECK(Contains(first.events.Next<rpc::JobFailed>().text, "node 1"));
}

TEST_CASE("Scheduler processes: a second scheduler on the same store or port says why it ends",
          "[scheduler]") {
  const TestDirectory directory;
  const Daemon daemon(directory.Path("store"), "127.0.0.1:0");
  REQUIRE_FALSE(daemon.address().empty());
  Daemon same_store(directory.Path("store"), "127.0.0.1:0");
  CHECK(same_store.address().empty());
  CHECK(WEXITSTATUS(same_store.process().Wait()) == 1);
  Daemon same_port(directory.Path("other"), daemon.address());
  CHECK(same_port.address().empty());
  CHECK(WEXITSTATUS(same_port.process().Wait()) == 1);
}

// Whatever anybody sends to the port, the daemon goes on serving.
TEST_CASE("Scheduler processes: random bytes, half a message and a huge length do no harm",
          "[scheduler]") {
  const TestDirectory directory;
  const Daemon daemon(directory.Path("store"), "127.0.0.1:0");
  REQUIRE_FALSE(daemon.address().empty());
  const uint16_t port =
      static_cast<uint16_t>(std::stoi(daemon.address().substr(daemon.address().rfind(':') + 1)));
  const auto send_bytes = [&](const std::string& bytes) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(fd >= 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0);
    send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    close(fd);
  };
  Random random(1);
  for (int i = 0; i < 50; ++i) {
    std::string bytes;
    if (i % 2 == 0) bytes = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for (uint64_t n = random.Below(2000); n > 0; --n) {
      bytes += static_cast<char>(random.Below(256));
    }
    send_bytes(bytes);
  }
  // A SETTINGS frame, then a HEADERS frame that claims 2^24 - 1 bytes.
  send_bytes(std::string(
      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0\xff\xff\xff\1\4\0\0\0\1", 24 + 9 + 9));
  rpc::SchedulerAdminClient admin(daemon.address(), 30 * kSecond);
  CHECK(admin.GetScheduler().ok());
}

}  // namespace
}  // namespace talweg::scheduler
