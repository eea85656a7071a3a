// SPDX-License-Identifier: Apache-2.0
//
// The conformance suite on this machine's NVIDIA GPUs, only under ./test --gpu. Each peer is a
// process of its own: this program again, which TALWEG_GPU_PEER tells to serve a socket.
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/descriptor.h"
#include "libs/gpu/cuda/cuda_platform.h"
#include "libs/gpu/kernels/image.h"
#include "libs/gpu/testing/harness.h"
#include "libs/runtime/clock.h"
#include "libs/status/status.h"

extern char** environ;

namespace talweg::gpu {
namespace {

constexpr int64_t kDeadlineNs = 60'000'000'000;
constexpr char kPeerVariable[] = "TALWEG_GPU_PEER";

bool RunUntilDeadline(const std::function<bool()>& done) {
  const runtime::MonotonicClock clock;
  const int64_t deadline_ns = clock.NowNs() + kDeadlineNs;
  while (!done()) {
    if (clock.NowNs() > deadline_ns) return false;
    std::this_thread::yield();
  }
  return true;
}

// ----- A peer in a process of its own: one request at a time over a socket. -----

enum class Request : uint32_t { kShare, kWrite, kRead, kFree, kFault };

struct RequestMessage {
  Request request;
  uint32_t wait_for_taken = 0;
  uint64_t bytes = 0;
  uint64_t seed = 0;
  GpuUuid uuid;
};

struct ReplyMessage {
  int32_t code = 0;
  char text[500] = {};
  Peer::Shared shared;
  uint64_t bytes = 0;  // How many bytes follow.
};

bool WriteAll(int fd, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = send(fd, at, bytes, MSG_NOSIGNAL);
    if (written <= 0) return false;
    at += written;
    bytes -= static_cast<size_t>(written);
  }
  return true;
}

bool ReadAll(int fd, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    pollfd waiting = {.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, static_cast<int>(kDeadlineNs / 1'000'000)) <= 0) return false;
    const ssize_t got = recv(fd, at, bytes, 0);
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

ReplyMessage ReplyOf(const absl::Status& status) {
  ReplyMessage reply;
  reply.code = static_cast<int32_t>(status.code());
  std::snprintf(reply.text, sizeof(reply.text), "%s", std::string(status.message()).c_str());
  return reply;
}

// Makes a kernel read memory that is gone. Returns OK if the calls after that return what device.h
// says.
absl::Status Fault(const GpuUuid& uuid) {
  TALWEG_ASSIGN_OR_RETURN(const std::unique_ptr<Platform> platform, NewCudaPlatform({}));
  TALWEG_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, platform->Open(uuid));
  constexpr uint64_t kBytes = 64 << 20;
  TALWEG_ASSIGN_OR_RETURN(const DeviceSpan gone, device->Allocate(kBytes));
  TALWEG_ASSIGN_OR_RETURN(const DeviceSpan sum, device->Allocate(kBytes));
  TALWEG_ASSIGN_OR_RETURN(const StreamId stream, device->NewStream(StreamPriority::kHigh));
  TALWEG_ASSIGN_OR_RETURN(const EventId done, device->NewEvent(EventScope::kProcess));
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  const auto free = reinterpret_cast<int (*)(uint64_t)>(dlsym(driver, "cuMemFree_v2"));
  // Frees the memory without the device, which would refuse the calls below.
  if (free(gone.address) != 0) return absl::InternalError("cuMemFree");
  const uint64_t inputs[] = {gone.address, gone.address + kBytes / 2};
  TALWEG_RETURN_IF_ERROR(device->Reduce(stream, {.dtype = DType::kF32, .op = Op::kSum}, inputs,
                                        sum.address, kBytes / 8));
  device->Record(done, stream).IgnoreError();
  absl::Status status;
  RunUntilDeadline([&] {
    const auto query = device->Query(done);
    status = query.status();
    return !query.ok() || *query;
  });
  if (!absl::IsAborted(status)) return absl::InternalError("asked: " + status.ToString());
  status = device->Allocate(4096).status();
  if (!absl::IsAborted(status)) return absl::InternalError("used: " + status.ToString());
  device.reset();
  status = platform->Open(uuid).status();
  if (absl::IsFailedPrecondition(status)) return absl::OkStatus();
  return absl::InternalError("opened again: " + status.ToString());
}

// Returns when the parent closes its end of the socket.
int ServePeer(int fd) {
  std::unique_ptr<Peer> peer;
  RequestMessage message;
  while (ReadAll(fd, &message, sizeof(message))) {
    if (message.request == Request::kFault) {
      const ReplyMessage reply = ReplyOf(Fault(message.uuid));
      WriteAll(fd, &reply, sizeof(reply));
      continue;
    }
    if (peer == nullptr) {
      auto platform = NewCudaPlatform({});
      if (!platform.ok()) {
        const ReplyMessage reply = ReplyOf(platform.status());
        WriteAll(fd, &reply, sizeof(reply));
        continue;
      }
      peer = NewPlatformPeer(*std::move(platform), message.uuid, RunUntilDeadline);
    }
    ReplyMessage reply;
    std::vector<std::byte> follows;
    switch (message.request) {
      case Request::kShare: {
        const auto shared = peer->Share(message.bytes, message.seed);
        reply = ReplyOf(shared.status());
        if (shared.ok()) reply.shared = *shared;
        break;
      }
      case Request::kWrite:
        reply = ReplyOf(peer->Write(message.seed, message.wait_for_taken != 0));
        break;
      case Request::kRead: {
        auto read = peer->Read();
        reply = ReplyOf(read.status());
        if (read.ok()) follows = *std::move(read);
        break;
      }
      case Request::kFree: reply = ReplyOf(peer->Free()); break;
      case Request::kFault: break;
    }
    reply.bytes = follows.size();
    if (!WriteAll(fd, &reply, sizeof(reply)) || !WriteAll(fd, follows.data(), follows.size()))
      break;
  }
  return 0;
}

// Runs before main(), and before anything has touched CUDA.
__attribute__((constructor)) void MaybeServePeer() {
  const char* const fd = std::getenv(kPeerVariable);
  if (fd != nullptr) _exit(ServePeer(std::atoi(fd)));
}

class ProcessPeer final : public Peer {
 public:
  explicit ProcessPeer(const GpuUuid& uuid) : uuid_(uuid) {
    int ends[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    socket_.Reset(ends[0]);
    const Descriptor theirs(ends[1]);
    REQUIRE(fcntl(socket_.get(), F_SETFD, FD_CLOEXEC) == 0);
    std::string variable = kPeerVariable;  // One by one: g++ 12 warns of the sum of strings.
    variable += '=';
    variable += std::to_string(theirs.get());
    std::vector<char*> environment;
    for (char** at = environ; *at != nullptr; ++at) environment.push_back(*at);
    environment.push_back(const_cast<char*>(variable.c_str()));
    environment.push_back(nullptr);
    char self[] = "/proc/self/exe";
    char* const arguments[] = {self, nullptr};
    REQUIRE(posix_spawn(&pid_, self, nullptr, nullptr, arguments, environment.data()) == 0);
  }
  ~ProcessPeer() override { Kill(); }

  absl::StatusOr<Shared> Share(uint64_t bytes, uint64_t seed) override {
    const absl::Status status = Ask({.request = Request::kShare, .bytes = bytes, .seed = seed});
    if (!status.ok()) return status;
    return reply_.shared;
  }
  absl::Status Write(uint64_t seed, bool wait_for_taken) override {
    return Ask({.request = Request::kWrite, .wait_for_taken = wait_for_taken, .seed = seed});
  }
  absl::StatusOr<std::vector<std::byte>> Read() override {
    const absl::Status status = Ask({.request = Request::kRead});
    if (!status.ok()) return status;
    return follows_;
  }
  absl::Status Free() override { return Ask({.request = Request::kFree}); }
  absl::Status Fault() { return Ask({.request = Request::kFault}); }
  void Kill() override {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  absl::Status Ask(RequestMessage message) {
    message.uuid = uuid_;
    if (!WriteAll(socket_.get(), &message, sizeof(message)) ||
        !ReadAll(socket_.get(), &reply_, sizeof(reply_))) {
      return absl::InternalError("the peer's process is gone, or silent");
    }
    follows_.resize(reply_.bytes);
    if (!ReadAll(socket_.get(), follows_.data(), follows_.size())) {
      return absl::InternalError("the peer's process is gone");
    }
    return absl::Status(static_cast<absl::StatusCode>(reply_.code), reply_.text);
  }

  const GpuUuid uuid_;
  Descriptor socket_;
  pid_t pid_ = -1;
  ReplyMessage reply_;
  std::vector<std::byte> follows_;
};

class CudaHarness final : public Harness {
 public:
  explicit CudaHarness(std::unique_ptr<Platform> platform) : platform_(std::move(platform)) {}

  Platform& platform() override { return *platform_; }
  bool RunUntil(const std::function<bool()>& done) override { return RunUntilDeadline(done); }
  std::unique_ptr<Peer> NewPeer(const GpuUuid& uuid) override {
    return std::make_unique<ProcessPeer>(uuid);
  }
  uint64_t TooManyBytes(Device& device) override { return device.info().memory_bytes * 2; }
  bool HasKernels() override {
    if (!kernels::Image().empty()) return true;
    static const bool said = [] {
      std::puts("SKIPPED: this build has no GPU kernels (bazel --config=cuda); the rest ran");
      return true;
    }();
    return !said;
  }

 private:
  std::unique_ptr<Platform> platform_;
};

void SaySkipped(const std::string& why) {
  static const bool said = [&] {
    std::printf("SKIPPED: %s\n", why.c_str());
    return true;
  }();
  static_cast<void>(said);
}

}  // namespace

TEST_CASE(
    "device: a fault ends all that its process has on the GPU for good, and harms no other process",
    "[gpu]") {
  Case c;
  if (c.skipped() || !c.harness->HasKernels()) return;
  ProcessPeer peer(c.device->info().uuid);
  const absl::Status status = peer.Fault();
  INFO(status.ToString());
  CHECK(status.ok());
  const std::span<std::byte> host = c.Host(4096);
  const DeviceSpan memory = c.Memory(4096);
  const StreamId stream = c.Stream();
  FillPattern(host, 3);
  REQUIRE(c.device->CopyToDevice(stream, memory, host).ok());
  FillPattern(host, 4);
  REQUIRE(c.device->CopyToHost(stream, host, memory).ok());
  c.Finish(stream);
  CHECK(IsPattern(host, 3));
}

std::unique_ptr<Harness> NewHarness() {
  if (std::getenv("TALWEG_TEST_GPU") == nullptr) {
    SaySkipped("tests on a GPU run under ./test --gpu");
    return nullptr;
  }
  auto platform = NewCudaPlatform({});
  if (!platform.ok()) {
    SaySkipped(std::string(platform.status().message()));
    return nullptr;
  }
  return std::make_unique<CudaHarness>(*std::move(platform));
}

}  // namespace talweg::gpu
