// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TESTING_HARNESS_H_
#define TALWEG_LIBS_TRANSPORT_TESTING_HARNESS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/runtime/clock.h"
#include "libs/transport/transport.h"

// Shared by the tests of transports. The conformance suite (conformance_*.cc) is linked into the
// test of each implementation, which defines NewHarness.
namespace talweg::transport {

// Memory of a test's accelerator, which transports reach and the CPU does not.
class TestDevice {
 public:
  virtual ~TestDevice() = default;
  // The memory lives as long as this object.
  virtual DeviceMemory Allocate(size_t bytes) = 0;
  virtual void Store(const DeviceMemory& memory, std::span<const std::byte> bytes) = 0;
  virtual std::vector<std::byte> Load(const DeviceMemory& memory) = 0;
};

// Devices whose memory lies elsewhere and has addresses of its own.
class RemoteDevice final : public TestDevice {
 public:
  DeviceMemory Allocate(size_t bytes) override;
  void Store(const DeviceMemory& memory, std::span<const std::byte> bytes) override;
  std::vector<std::byte> Load(const DeviceMemory& memory) override;
  // For the transport's use.
  std::span<std::byte> At(uint64_t address, size_t bytes);

 private:
  std::map<uint64_t, std::vector<std::byte>> memory_;
  uint64_t next_address_ = 0x7000'0000'0000;
};

// How a transport notices stopped peers: the options of the implementations.
struct Hearts {
  int64_t heartbeat_ns = 2'000'000'000;
  int64_t silence_ns = 20'000'000'000;  // 0: no silence ends a connection.
};

// An implementation under test. All its transports can reach each other.
class Harness {
 public:
  virtual ~Harness() = default;
  virtual std::unique_ptr<Transport> NewTransport() = 0;
  // Like NewTransport. Returns null if no peer can fall silent in this implementation. `clock`
  // outlives the transport.
  virtual std::unique_ptr<Transport> NewWatchful(const runtime::Clock* clock, const Hearts& hearts);
  // Returns a well-formed address at which nobody listens.
  virtual std::string NobodysAddress() = 0;
  // Returns whether peers may live in different processes and threads.
  virtual bool CrossesProcesses() const { return true; }
  // Returns a socket that is connected to a transport's listener, for bytes that no transport would
  // send, or -1 if the implementation has no sockets.
  virtual int ConnectRaw(const std::string& address);
  // Returns null if its transports take no device's memory.
  virtual TestDevice* device() { return nullptr; }
};

std::unique_ptr<Harness> NewHarness();

// Records all events.
class RecordingSink final : public EventSink {
 public:
  struct WriteDone {
    ConnectionId connection;
    uint64_t context;
  };

  void OnAccepted(ConnectionId connection) override;
  void OnConnected(ConnectionId connection) override;
  void OnDisconnected(ConnectionId connection, const std::string& reason) override;
  void OnFrame(ConnectionId connection, std::span<const std::byte> frame) override;
  void OnWriteDone(ConnectionId connection, uint64_t context) override;

  std::vector<ConnectionId> accepted;
  std::vector<ConnectionId> connected;
  std::vector<std::pair<ConnectionId, std::string>> disconnected;
  std::deque<std::pair<ConnectionId, std::vector<std::byte>>> frames;
  std::vector<WriteDone> writes_done;
  // Called for each frame, when set. The frame is recorded too.
  std::function<void(ConnectionId, std::span<const std::byte>)> on_frame;
  std::function<void(ConnectionId, uint64_t)> on_write_done;

 private:
  // No event follows the end of a connection.
  void CheckAlive(ConnectionId connection) const;
  std::set<ConnectionId> over_;
};

// A transport and its recorded events.
struct Endpoint {
  std::unique_ptr<Transport> transport;
  RecordingSink sink;

  int Poll(int events_max = 64) { return transport->Poll(sink, events_max); }
};

// Polls all endpoints until `done`. Sleeps on their descriptors when none has work. Returns false
// after a minute.
bool PollUntil(const std::vector<Endpoint*>& endpoints, const std::function<bool()>& done);
// Polls all endpoints until none has had work for a while. Use it to check that something does not
// happen.
void PollUntilIdle(const std::vector<Endpoint*>& endpoints);

// Two endpoints and a connection from the first to the second.
struct Pair {
  explicit Pair(Harness& harness);

  Endpoint client;
  Endpoint server;
  std::string address;
  ConnectionId to_server;
  ConnectionId to_client;
  bool connected = false;
};

std::vector<std::byte> Pattern(uint64_t seed, size_t size);
bool IsPattern(std::span<const std::byte> bytes, uint64_t seed);
std::vector<std::byte> FrameOf(uint64_t number, size_t size = sizeof(uint64_t));
uint64_t NumberOf(std::span<const std::byte> frame);

// A child process that runs `work` with its end of a pipe. It is killed and reaped by the
// destructor at the latest, and dies with its parent.
class ChildProcess {
 public:
  explicit ChildProcess(const std::function<void(int pipe)>& work);
  ~ChildProcess() { Kill(); }

  void Kill();
  void Stop();
  void Continue();
  // Returns the child's next line.
  std::string ReadLine();

 private:
  int pid_ = -1;
  int pipe_ = -1;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TESTING_HARNESS_H_
