// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/libfabric/fabric_transport.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>

#include <catch2/catch.hpp>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"
#include "libs/base/random.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/manual_clock.h"
#include "libs/telemetry/counter.h"
#include "libs/transport/libfabric/half_open.h"
#include "libs/transport/proof/connect_token.h"
#include "libs/transport/testing/harness.h"
#include "libs/transport/testing/test_port.h"

namespace talweg::transport {
namespace {

// Memory of fake GPUs, which is the host's.
class HostDevice final : public TestDevice {
 public:
  DeviceMemory Allocate(size_t bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(bytes));
    return {.address = reinterpret_cast<uint64_t>(memory_.back().get()), .bytes = bytes};
  }
  void Store(const DeviceMemory& memory, std::span<const std::byte> bytes) override {
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<std::byte*>(memory.address));
  }
  std::vector<std::byte> Load(const DeviceMemory& memory) override {
    const auto* const bytes = reinterpret_cast<const std::byte*>(memory.address);
    return {bytes, bytes + memory.bytes};
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

class FabricHarness final : public Harness {
 public:
  std::unique_ptr<Transport> NewTransport() override {
    auto transport =
        NewFabricTransport({.devices = FabricOptions::Devices::kFake}, &clock_, nullptr);
    TALWEG_CHECK(transport.ok());
    return *std::move(transport);
  }
  std::unique_ptr<Transport> NewWatchful(const runtime::Clock* clock,
                                         const Hearts& hearts) override {
    auto transport = NewFabricTransport(
        {.heartbeat_ns = hearts.heartbeat_ns, .silence_ns = hearts.silence_ns}, clock, nullptr);
    TALWEG_CHECK(transport.ok());
    return *std::move(transport);
  }
  std::string NobodysAddress() override {
    return "fi:tcp://127.0.0.1:" + std::to_string(deaf_.port());
  }
  int ConnectRaw(const std::string& address) override {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    Descriptor descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(descriptor.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) != 0) return -1;
    return descriptor.Release();
  }
  TestDevice* device() override { return &device_; }

 private:
  runtime::MonotonicClock clock_;
  HostDevice device_;
  TestPort deaf_;
};

}  // namespace

std::unique_ptr<Harness> NewHarness() { return std::make_unique<FabricHarness>(); }

namespace {

std::unique_ptr<Transport> NewTcp(const runtime::Clock* clock, const FabricOptions& options = {}) {
  auto transport = NewFabricTransport(options, clock, nullptr);
  REQUIRE(transport.ok());
  return *std::move(transport);
}

bool Contains(const absl::Status& status, const std::string& part) {
  return std::string(status.message()).find(part) != std::string::npos;
}

TEST_CASE("Fabric: an unknown provider is refused, and the text names those that exist",
          "[transport]") {
  runtime::MonotonicClock clock;
  const auto transport = NewFabricTransport({.provider = "carrier-pigeon"}, &clock, nullptr);
  REQUIRE_FALSE(transport.ok());
  CHECK(Contains(transport.status(), "carrier-pigeon"));
  CHECK(Contains(transport.status(), "tcp"));
}

TEST_CASE("Fabric: tcp takes no GPU's memory, and works without", "[transport]") {
  runtime::MonotonicClock clock;
  const auto transport = NewTcp(&clock, {.devices = FabricOptions::Devices::kCuda});
  const absl::Status takes = transport->TakesDeviceMemory();
  CHECK(absl::IsUnimplemented(takes));
  CHECK(Contains(takes, "libfabric's provider 'tcp'"));
  CHECK(transport->RegisterDevice({.address = 4096, .bytes = 4096}).status() == takes);
  std::vector<std::byte> bytes(100);
  CHECK(transport->Register(bytes).ok());
  CHECK(transport->Listen({}).ok());
}

TEST_CASE("Fabric: it works over IPv6, where the host has that", "[transport]") {
  runtime::MonotonicClock clock;
  Endpoint server{NewTcp(&clock)};
  const auto address = server.transport->Listen({.bind_address = "::1"});
  if (!address.ok()) {
    WARN("SKIPPED: no IPv6 loopback here: " << std::string(address.status().message()));
    return;
  }
  CHECK(address->starts_with("fi:tcp://[::1]:"));
  Endpoint client{NewTcp(&clock)};
  const auto connection = client.transport->Connect(*address);
  REQUIRE(connection.ok());
  client.transport->PostFrame(*connection, FrameOf(6));
  REQUIRE(PollUntil({&client, &server}, [&] { return server.sink.frames.size() == 1; }));
}

TEST_CASE("Fabric: the options say where to listen", "[transport]") {
  runtime::MonotonicClock clock;
  const auto transport = NewTcp(&clock);
  SECTION("The port is taken") {
    const auto first = transport->Listen({});
    REQUIRE(first.ok());
    const auto port = static_cast<uint16_t>(std::stoi(first->substr(first->rfind(':') + 1)));
    const auto second = NewTcp(&clock)->Listen({.port_first = port, .port_last = port});
    CHECK(absl::IsAlreadyExists(second.status()));
    CHECK(Contains(second.status(), "127.0.0.1:" + std::to_string(port)));
  }
  SECTION("The first free port of a range is taken") {
    const auto first = transport->Listen({});
    REQUIRE(first.ok());
    const auto port = static_cast<uint16_t>(std::stoi(first->substr(first->rfind(':') + 1)));
    // Nobody promises that the next port is free, but one of a hundred is.
    const auto last = static_cast<uint16_t>(std::min(65535, port + 100));
    const auto second = NewTcp(&clock)->Listen({.port_first = port, .port_last = last});
    REQUIRE(second.ok());
    const int chosen = std::stoi(second->substr(second->rfind(':') + 1));
    CHECK(chosen > port);
    CHECK(chosen <= last);
  }
  SECTION("It listens on an interface") {
    const auto address = transport->Listen({.bind_interface = "lo"});
    REQUIRE(address.ok());
    CHECK(address->starts_with("fi:tcp://127."));
  }
  SECTION("The interface does not exist") {
    const auto address = transport->Listen({.bind_interface = "eth99"});
    REQUIRE_FALSE(address.ok());
    CHECK(Contains(address.status(), "eth99"));
    CHECK(Contains(address.status(), "lo"));
  }
  SECTION("It listens on all addresses, and tells peers one that they can use") {
    const auto address = transport->Listen({.bind_address = ""});
    REQUIRE(address.ok());
    CHECK(address->find("0.0.0.0") == std::string::npos);
    Endpoint client{NewTcp(&clock)};
    Endpoint server{std::unique_ptr<Transport>()};
    REQUIRE(client.transport->Connect(*address).ok());
  }
  SECTION("It listens on all addresses, at the given port") {
    const auto port = [](const absl::StatusOr<std::string>& address) {
      return static_cast<uint16_t>(std::stoi(address->substr(address->rfind(':') + 1)));
    };
    const auto first = transport->Listen({.bind_address = "0.0.0.0"});
    REQUIRE(first.ok());
    const uint16_t taken = port(first);
    const auto second = NewTcp(&clock)->Listen(
        {.bind_address = "0.0.0.0", .port_first = taken, .port_last = taken});
    CHECK(absl::IsAlreadyExists(second.status()));
    const auto last = static_cast<uint16_t>(std::min(65535, taken + 100));
    for (const std::string host : {"0.0.0.0", "::"}) {
      const auto third =
          NewTcp(&clock)->Listen({.bind_address = host, .port_first = taken, .port_last = last});
      REQUIRE(third.ok());
      CHECK(port(third) > taken);
      CHECK(port(third) <= last);
    }
  }
  SECTION("It advertises another host") {
    const auto address = transport->Listen({.advertise_host = "gateway.example"});
    REQUIRE(address.ok());
    CHECK(address->starts_with("fi:tcp://gateway.example:"));
  }
  SECTION("The address belongs to another host") {
    const auto address = transport->Listen({.bind_address = "192.0.2.77"});
    REQUIRE_FALSE(address.ok());
    CHECK(Contains(address.status(), "192.0.2.77"));
  }
}

TEST_CASE("Fabric: a peer that accepts and never answers is given up", "[transport]") {
  // It listens, and its kernel accepts. Nobody answers.
  TestPort mute;
  mute.Listen();
  runtime::MonotonicClock clock;
  Endpoint client{NewTcp(&clock, {.connect_timeout_ns = 50'000'000})};
  const std::string address = "fi:tcp://127.0.0.1:" + std::to_string(mute.port());
  REQUIRE(client.transport->Connect(address).ok());
  // The client sleeps only on the descriptor, so the time limit must wake it.
  REQUIRE(PollUntil({&client}, [&] { return !client.sink.disconnected.empty(); }));
  CHECK(client.sink.disconnected[0].second.find(address) != std::string::npos);
  CHECK(client.sink.disconnected[0].second.find("50 ms") != std::string::npos);
}

TEST_CASE("Fabric: writes longer than the provider's limit arrive in parts", "[transport]") {
  runtime::MonotonicClock clock;
  Endpoint client{NewTcp(&clock)};
  Endpoint server{NewTcp(&clock)};
  const auto address = server.transport->Listen({});
  REQUIRE(address.ok());
  const auto connection = client.transport->Connect(*address);
  REQUIRE(connection.ok());
  // This is past the 64 MiB that one transfer carries.
  std::vector<std::byte> source = Pattern(3, 80 * 1000 * 1000 + 1);
  std::vector<std::byte> target(source.size());
  const auto from = client.transport->Register(source);
  const auto to = server.transport->Register(target);
  client.transport->PostWrite(*connection, from->Slice(0, source.size()), to->Ref(), 4);
  client.transport->PostFrame(*connection, FrameOf(1));
  REQUIRE(PollUntil({&client, &server}, [&] { return server.sink.frames.size() == 1; }));
  CHECK(target == source);
  CHECK(client.sink.writes_done.size() == 1);
}

const PeerIdentity kMember = {
    .job = JobId(3), .epoch = Epoch(7), .node = NodeRank(1), .incarnation = Incarnation(0x7f3a)};
const PeerIdentity kOther = {
    .job = JobId(3), .epoch = Epoch(7), .node = NodeRank(0), .incarnation = Incarnation(0x1111)};

// Returns what a client sends to connect, so that a stranger can send the same. It has the key of
// `address`.
std::vector<std::byte> RecordConnectRequest(const std::string& address = "") {
  TestPort port;
  port.Listen();
  runtime::MonotonicClock clock;
  Endpoint client{NewTcp(&clock)};
  const std::string key = address.empty() ? "" : address.substr(address.rfind('/'));
  REQUIRE(
      client.transport->Connect("fi:tcp://127.0.0.1:" + std::to_string(port.port()) + key).ok());
  const Descriptor accepted = port.Accept();
  std::vector<std::byte> request(4096);
  ssize_t got = -1;
  REQUIRE(PollUntil({&client}, [&] {
    got = recv(accepted.get(), request.data(), request.size(), MSG_DONTWAIT);
    return got > 0;
  }));
  request.resize(static_cast<size_t>(got));
  return request;
}

TEST_CASE("Fabric: a stranger who can connect but has no key does no harm", "[transport]") {
  const std::vector<std::byte> request = RecordConnectRequest();
  FabricHarness harness;
  telemetry::CounterSet counters;
  runtime::MonotonicClock clock;
  auto transport = NewFabricTransport({}, &clock, &counters);
  REQUIRE(transport.ok());
  Endpoint server{*std::move(transport)};
  const auto address = server.transport->Listen({});
  REQUIRE(address.ok());
  Random random(8);
  for (uint64_t i = 0; i < 100; ++i) {
    const Descriptor stranger(harness.ConnectRaw(*address));
    std::vector<std::byte> noise = request;
    // The request is whole, or has another length field or token, or is cut. Noise follows it.
    if (i % 3 != 0) noise[random.Below(noise.size())] = std::byte(random.Below(256));
    if (i % 5 == 0) noise.resize(random.Below(noise.size()) + 1);
    const std::vector<std::byte> more = Pattern(i, random.Below(200));
    noise.insert(noise.end(), more.begin(), more.end());
    send(stranger.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
    server.Poll();
    if (i % 8 == 0) shutdown(stranger.get(), SHUT_RDWR);
  }
  PollUntilIdle({&server});
  CHECK(server.sink.accepted.empty());
  CHECK(counters.Get("transport_connections_refused").value() > 0);

  Endpoint client{harness.NewTransport()};
  const auto connection = client.transport->Connect(*address);
  REQUIRE(connection.ok());
  client.transport->PostFrame(*connection, FrameOf(1));
  REQUIRE(PollUntil({&client, &server}, [&] { return server.sink.frames.size() == 1; }));
}

// Sends the bytes, and reads the server's answer, until the server hangs up.
std::vector<std::byte> Say(Endpoint& server, int socket, std::span<const std::byte> said) {
  REQUIRE(send(socket, said.data(), said.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(said.size()));
  std::vector<std::byte> answer(4096);
  ssize_t got = -1;
  REQUIRE(PollUntil({&server}, [&] {
    got = recv(socket, answer.data(), answer.size(), MSG_DONTWAIT);
    return got >= 0 || errno == ECONNRESET;
  }));
  answer.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return answer;
}

TEST_CASE("Fabric: a member proves who it is", "[transport]") {
  runtime::MonotonicClock clock;
  Endpoint server{NewTcp(&clock)};
  const std::string address = *server.transport->Listen({});
  Endpoint client{NewTcp(&clock)};
  for (size_t i = 0; i < 2; ++i) {  // It can connect again.
    REQUIRE(client.transport->Connect(AddressForMember(address, kMember)).ok());
    REQUIRE(PollUntil({&client, &server}, [&] {
      return server.sink.accepted.size() == i + 1 && client.sink.connected.size() == i + 1;
    }));
    CHECK(server.transport->ProvenIdentity(server.sink.accepted[i]) == kMember);
    CHECK_FALSE(client.transport->ProvenIdentity(client.sink.connected[i]));
  }
}

TEST_CASE("Fabric: a member's key lets in nobody as another member", "[transport]") {
  runtime::MonotonicClock clock;
  telemetry::CounterSet counters;
  Endpoint server{*NewFabricTransport({}, &clock, &counters)};
  const std::string address = *server.transport->Listen({});
  const std::string own = AddressForMember(address, kMember);
  const size_t key = own.rfind('/') + 1;
  AddressKey forged = *ParseAddressKey(own.substr(key));
  forged.identity = kOther;
  Endpoint client{NewTcp(&clock)};
  REQUIRE(client.transport->Connect(own.substr(0, key) + forged.ToString()).ok());
  REQUIRE(PollUntil({&client, &server}, [&] { return !client.sink.disconnected.empty(); }));
  CHECK(server.sink.accepted.empty());
  CHECK(counters.Get("transport_connections_refused").value() == 1);
}

TEST_CASE("Fabric: a recorded token is accepted once", "[transport]") {
  FabricHarness harness;
  runtime::MonotonicClock clock;
  telemetry::CounterSet counters;
  Endpoint server{*NewFabricTransport({}, &clock, &counters)};
  const std::string address = *server.transport->Listen({});
  const std::vector<std::byte> request = RecordConnectRequest(AddressForMember(address, kMember));
  // A stranger who is not on the path gets no more bytes than this parsed.
  CHECK(request.size() == 32 + kConnectTokenBytes);
  // Whoever kept the token from its listener may send it first. So that needs somebody on the path.
  const Descriptor first(harness.ConnectRaw(address));
  CHECK(Say(server, first.get(), request).size() == 32 + kConnectAnswerBytes);
  CHECK(server.sink.accepted.size() == 1);
  CHECK(counters.Get("transport_connections_refused").value() == 0);
  for (uint64_t i = 1; i <= 3; ++i) {
    const Descriptor again(harness.ConnectRaw(address));
    Say(server, again.get(), request);
    CHECK(counters.Get("transport_connections_refused").value() == i);
  }
  CHECK(server.sink.accepted.size() == 1);
}

TEST_CASE("Fabric: a process with a listener's port, but not its key, is found out",
          "[transport]") {
  FabricHarness harness;
  runtime::MonotonicClock clock;
  Endpoint server{NewTcp(&clock)};
  const std::string listener = *server.transport->Listen({});
  const std::string address = AddressForMember(listener, kMember);
  const Descriptor recorder(harness.ConnectRaw(listener));
  const std::vector<std::byte> answer =
      Say(server, recorder.get(), RecordConnectRequest(AddressForMember(listener, kOther)));
  REQUIRE(answer.size() == 32 + kConnectAnswerBytes);

  TestPort port;
  port.Listen();
  const std::string elsewhere =
      "fi:tcp://127.0.0.1:" + std::to_string(port.port()) + address.substr(address.rfind('/'));
  Endpoint client{NewTcp(&clock)};
  const auto connection = client.transport->Connect(elsewhere);
  REQUIRE(connection.ok());
  client.transport->PostFrame(*connection, FrameOf(1));
  const Descriptor accepted = port.Accept();
  std::vector<std::byte> got(4096);
  REQUIRE(PollUntil(
      {&client}, [&] { return recv(accepted.get(), got.data(), got.size(), MSG_DONTWAIT) > 0; }));
  // A listener with the key has sent this answer to somebody else.
  REQUIRE(send(accepted.get(), answer.data(), answer.size(), MSG_NOSIGNAL) > 0);
  REQUIRE(PollUntil({&client}, [&] { return !client.sink.disconnected.empty(); }));
  CHECK(client.sink.connected.empty());
  CHECK(client.sink.disconnected[0].second.find("does not hold its key") != std::string::npos);
  // The stranger was sent nothing.
  CHECK(recv(accepted.get(), got.data(), got.size(), MSG_DONTWAIT) <= 0);
}

TEST_CASE("Fabric: a member that the admission refuses hears why", "[transport]") {
  runtime::MonotonicClock clock;
  Endpoint server{NewTcp(&clock)};
  const std::string address = *server.transport->Listen({});
  std::vector<PeerIdentity> asked;
  server.transport->SetAdmission([&asked](const PeerIdentity& peer) {
    asked.push_back(peer);
    if (peer == kMember) return std::string();
    return "node 0 has left\n" + std::string(300, 'x');
  });
  Endpoint client{NewTcp(&clock)};
  REQUIRE(client.transport->Connect(AddressForMember(address, kOther)).ok());
  REQUIRE(PollUntil({&client, &server}, [&] { return !client.sink.disconnected.empty(); }));
  const std::string& reason = client.sink.disconnected[0].second;
  CHECK(reason.find(": it refused: node 0 has left?xxx") != std::string::npos);
  CHECK(reason.size() < 250);
  REQUIRE(client.transport->Connect(AddressForMember(address, kMember)).ok());
  REQUIRE(PollUntil({&client, &server}, [&] { return server.sink.accepted.size() == 1; }));
  CHECK(asked == std::vector{kOther, kMember});
}

TEST_CASE("Fabric: the key of another release is refused with the remedy", "[transport]") {
  runtime::MonotonicClock clock;
  const auto status = NewTcp(&clock)->Connect("fi:tcp://127.0.0.1:1/0123456789abcdef").status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(Contains(status, "install the same release everywhere"));
  CHECK_FALSE(Contains(status, "0123456789abcdef"));
}

TEST_CASE("Fabric: a stranger who hangs up before he has named himself is dropped", "[transport]") {
  FabricHarness harness;
  runtime::MonotonicClock clock;
  Endpoint server{NewTcp(&clock)};
  const auto address = server.transport->Listen({});
  REQUIRE(address.ok());
  for (const size_t said : {0, 1, 20}) {
    const Descriptor stranger(harness.ConnectRaw(*address));
    const std::vector<std::byte> bytes(said);
    REQUIRE(send(stranger.get(), bytes.data(), said, MSG_NOSIGNAL) == static_cast<ssize_t>(said));
    REQUIRE(shutdown(stranger.get(), SHUT_WR) == 0);
    INFO(said << " bytes");
    CHECK(PollUntil({&server}, [&] {
      char byte;
      const ssize_t got = recv(stranger.get(), &byte, 1, MSG_DONTWAIT);
      const bool is_over = got == 0 || (got < 0 && errno == ECONNRESET);
      errno = EAGAIN;  // Another socket of the thread may leave it like this.
      return is_over;
    }));
  }
}

bool IsOver(int socket) {
  char byte;
  const ssize_t got = recv(socket, &byte, 1, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN);
}

TEST_CASE("Fabric: a stranger who does not name himself in time is dropped", "[transport]") {
  FabricHarness harness;
  runtime::ManualClock clock{1'000'000'000};
  telemetry::CounterSet counters;
  Endpoint server{*NewFabricTransport({}, &clock, &counters)};
  const auto address = server.transport->Listen({.bind_address = GENERATE("127.0.0.1", "")});
  REQUIRE(address.ok());
  Endpoint member{harness.NewTransport()};
  REQUIRE(member.transport->Connect(WithHost(*address, "127.0.0.1")).ok());
  REQUIRE(PollUntil({&server, &member}, [&] { return !server.sink.accepted.empty(); }));
  const Descriptor silent(harness.ConnectRaw(*address));
  PollUntilIdle({&server});
  clock.Advance(2 * HalfOpen::kLookNs);
  PollUntilIdle({&server});
  clock.Advance(4'900'000'000);
  PollUntilIdle({&server});
  CHECK_FALSE(IsOver(silent.get()));
  clock.Advance(200'000'000);
  CHECK(PollUntil({&server}, [&] { return IsOver(silent.get()); }));
  CHECK(counters.Get("transport_connections_refused").value() == 1);
  // The member's connection goes on.
  member.transport->PostFrame(ConnectionId(1), FrameOf(1));
  REQUIRE(PollUntil({&member, &server}, [&] { return server.sink.frames.size() == 1; }));
  CHECK(member.sink.disconnected.empty());
}

TEST_CASE("Fabric: strangers who stay connected take nobody else's place", "[transport]") {
  FabricHarness harness;
  runtime::ManualClock clock{1'000'000'000};
  Endpoint server{NewTcp(&clock, {.unproven_of_host_max = 8})};
  const auto address = server.transport->Listen({});
  REQUIRE(address.ok());
  std::vector<Descriptor> strangers;
  const auto count = [&] {
    return std::count_if(strangers.begin(), strangers.end(),
                         [](const Descriptor& each) { return !IsOver(each.get()); });
  };
  for (int i = 0; i < 40; ++i) {
    strangers.emplace_back(harness.ConnectRaw(*address));
    server.Poll();
    clock.Advance(HalfOpen::kLookNs / 4);
  }
  CHECK(count() < 40);  // Some have gone already.
  CHECK(PollUntil({&server}, [&] {
    clock.Advance(HalfOpen::kLookNs);
    return count() == 8;
  }));
  CHECK_FALSE(IsOver(strangers.back().get()));  // The oldest ones have gone.
  Endpoint client{harness.NewTransport()};
  REQUIRE(client.transport->Connect(*address).ok());
  REQUIRE(PollUntil({&client, &server}, [&] { return !client.sink.connected.empty(); }));
}

TEST_CASE("Fabric: a burst of strangers leaves descriptors free, even if no time passes",
          "[transport]") {
  FabricHarness harness;
  runtime::ManualClock clock{1'000'000'000};
  constexpr size_t kOfHost = 8;
  Endpoint server{NewTcp(&clock, {.unproven_of_host_max = kOfHost})};
  const auto address = server.transport->Listen({});
  REQUIRE(address.ok());
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.emplace_back(harness.ConnectRaw(*address));
    PollUntilIdle({&server});
    const auto held = std::count_if(strangers.begin(), strangers.end(),
                                    [](const Descriptor& each) { return !IsOver(each.get()); });
    REQUIRE(held <=
            static_cast<int64_t>(kOfHost) + HalfOpen::kBurstMax + HalfOpen::kCallsForEachProbe);
  }
  Endpoint client{harness.NewTransport()};
  REQUIRE(client.transport->Connect(*address).ok());
  REQUIRE(PollUntil({&client, &server}, [&] { return !client.sink.connected.empty(); }));
}

TEST_CASE("Fabric: an address of the process that had this port before is refused at once",
          "[transport]") {
  runtime::MonotonicClock clock;
  Endpoint server{NewTcp(&clock)};
  std::string address = *server.transport->Listen({});
  SECTION("The key is another one") { address.back() = address.back() == '0' ? '1' : '0'; }
  SECTION("There is no key") { address.resize(address.rfind('/')); }
  Endpoint client{NewTcp(&clock)};
  REQUIRE(client.transport->Connect(address).ok());
  REQUIRE(PollUntil({&client, &server}, [&] { return !client.sink.disconnected.empty(); }));
  CHECK(server.sink.accepted.empty());
  const std::string& reason = client.sink.disconnected[0].second;
  INFO(reason);
  CHECK(reason.find("no answer") == std::string::npos);
  CHECK(reason.find(address.substr(0, address.rfind(':'))) != std::string::npos);
}

TEST_CASE("Transport: the host of an address is found", "[transport]") {
  CHECK(HostOf("fi:tcp://node-3.example:20000/abc") == "node-3.example");
  CHECK(HostOf("fi:tcp://[fe80::1%eth0]:20000") == "fe80::1%eth0");
  for (const char* other : {"local:/tmp/x", "", "fi:tcp://", "fi:tcp://[::1", "fi:tcp://host"}) {
    CHECK(HostOf(other) == "");
    CHECK(WithHost(other, "10.0.0.1") == other);
  }
  CHECK(WithHost("fi:tcp://node-3:20000/abc", "10.0.0.1") == "fi:tcp://10.0.0.1:20000/abc");
  CHECK(WithHost("fi:tcp://node-3:20000/abc", "::1") == "fi:tcp://[::1]:20000/abc");
}

TEST_CASE("Fabric: a region of no bytes is refused", "[transport]") {
  runtime::MonotonicClock clock;
  CHECK_FALSE(NewTcp(&clock)->Register({}).ok());
}

}  // namespace
}  // namespace talweg::transport
