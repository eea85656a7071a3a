// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/testing/harness.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <utility>

#include "libs/base/check.h"
#include "libs/base/fingerprint.h"

namespace talweg::transport {
namespace {

using SteadyClock = std::chrono::steady_clock;

// Sleeps until one of the endpoints has something to do, for at most `timeout_ms`.
void WaitForWork(const std::vector<Endpoint*>& endpoints, int timeout_ms) {
  std::vector<pollfd> descriptors;
  for (const Endpoint* endpoint : endpoints) {
    if (!endpoint->transport->PrepareToSleep()) return;
    descriptors.push_back({endpoint->transport->WaitDescriptor(), POLLIN, 0});
  }
  poll(descriptors.data(), descriptors.size(), timeout_ms);
}

}  // namespace

DeviceMemory RemoteDevice::Allocate(size_t bytes) {
  const uint64_t address = next_address_;
  next_address_ += bytes + 4096;
  memory_[address].resize(bytes);
  return {.address = address, .bytes = bytes};
}

std::span<std::byte> RemoteDevice::At(uint64_t address, size_t bytes) {
  auto at = memory_.upper_bound(address);
  TALWEG_CHECK(at != memory_.begin());
  --at;
  const uint64_t offset = address - at->first;
  TALWEG_CHECK(offset <= at->second.size() && bytes <= at->second.size() - offset);
  return std::span(at->second).subspan(offset, bytes);
}

void RemoteDevice::Store(const DeviceMemory& memory, std::span<const std::byte> bytes) {
  memcpy(At(memory.address, bytes.size()).data(), bytes.data(), bytes.size());
}

std::vector<std::byte> RemoteDevice::Load(const DeviceMemory& memory) {
  const std::span<std::byte> bytes = At(memory.address, memory.bytes);
  return {bytes.begin(), bytes.end()};
}

std::unique_ptr<Transport> Harness::NewWatchful(const runtime::Clock* /*clock*/,
                                                const Hearts& /*hearts*/) {
  return nullptr;
}

int Harness::ConnectRaw(const std::string&) { return -1; }

void RecordingSink::OnAccepted(ConnectionId connection) {
  CheckAlive(connection);
  accepted.push_back(connection);
}

void RecordingSink::OnConnected(ConnectionId connection) {
  CheckAlive(connection);
  connected.push_back(connection);
}

void RecordingSink::OnDisconnected(ConnectionId connection, const std::string& reason) {
  CheckAlive(connection);
  over_.insert(connection);
  disconnected.emplace_back(connection, reason);
}

void RecordingSink::OnFrame(ConnectionId connection, std::span<const std::byte> frame) {
  CheckAlive(connection);
  frames.emplace_back(connection, std::vector<std::byte>(frame.begin(), frame.end()));
  if (on_frame) on_frame(connection, frame);
}

void RecordingSink::OnWriteDone(ConnectionId connection, uint64_t context) {
  CheckAlive(connection);
  writes_done.push_back({connection, context});
  if (on_write_done) on_write_done(connection, context);
}

void RecordingSink::CheckAlive(ConnectionId connection) const {
  TALWEG_CHECK(!over_.contains(connection));
}

bool PollUntil(const std::vector<Endpoint*>& endpoints, const std::function<bool()>& done) {
  const auto deadline = SteadyClock::now() + std::chrono::minutes(1);
  while (!done()) {
    int work = 0;
    for (Endpoint* endpoint : endpoints) work += endpoint->Poll();
    if (work > 0) continue;
    if (SteadyClock::now() > deadline) return false;
    // The wait is bounded, because the condition may become true without an event of these
    // endpoints.
    WaitForWork(endpoints, 100);
  }
  return true;
}

void PollUntilIdle(const std::vector<Endpoint*>& endpoints) {
  for (int idle = 0; idle < 20;) {
    int work = 0;
    for (Endpoint* endpoint : endpoints) work += endpoint->Poll();
    idle = work == 0 ? idle + 1 : 0;
    if (work == 0) WaitForWork(endpoints, 2);
  }
}

Pair::Pair(Harness& harness) {
  client.transport = harness.NewTransport();
  server.transport = harness.NewTransport();
  const absl::StatusOr<std::string> listening = server.transport->Listen(ListenSpec{});
  TALWEG_CHECK(listening.ok());
  address = *listening;
  const absl::StatusOr<ConnectionId> connection = client.transport->Connect(address);
  TALWEG_CHECK(connection.ok());
  to_server = *connection;
  connected = PollUntil({&client, &server}, [&] {
    return !client.sink.connected.empty() && !server.sink.accepted.empty();
  });
  if (connected) to_client = server.sink.accepted.front();
}

std::vector<std::byte> Pattern(uint64_t seed, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    const uint64_t word = Mix64(seed * 0x10001 + i);
    memcpy(bytes.data() + i, &word, std::min(sizeof(word), size - i));
  }
  return bytes;
}

bool IsPattern(std::span<const std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
    const uint64_t word = Mix64(seed * 0x10001 + i);
    if (memcmp(bytes.data() + i, &word, std::min(sizeof(word), bytes.size() - i)) != 0) {
      return false;
    }
  }
  return true;
}

std::vector<std::byte> FrameOf(uint64_t number, size_t size) {
  std::vector<std::byte> frame = Pattern(number, std::max(size, sizeof(number)));
  memcpy(frame.data(), &number, sizeof(number));
  return frame;
}

uint64_t NumberOf(std::span<const std::byte> frame) {
  uint64_t number = 0;
  memcpy(&number, frame.data(), std::min(sizeof(number), frame.size()));
  return number;
}

ChildProcess::ChildProcess(const std::function<void(int)>& work) {
  int ends[2];
  TALWEG_CHECK(pipe(ends) == 0);
  const int parent = getpid();
  pid_ = fork();
  TALWEG_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    close(ends[0]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) work(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  pipe_ = ends[0];
}

void ChildProcess::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
  close(pipe_);
}

void ChildProcess::Stop() {
  kill(pid_, SIGSTOP);
  waitpid(pid_, nullptr, WUNTRACED);
}

void ChildProcess::Continue() { kill(pid_, SIGCONT); }

std::string ChildProcess::ReadLine() {
  std::string line;
  char c = 0;
  while (read(pipe_, &c, 1) == 1 && c != '\n') line += c;
  return line;
}

}  // namespace talweg::transport
