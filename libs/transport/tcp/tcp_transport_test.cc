// SPDX-License-Identifier: Apache-2.0
// What only Talweg's own TCP does: who is let in, and what somebody on the path can do.
#include "libs/transport/tcp/tcp_transport.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/runtime/manual_clock.h"
#include "libs/transport/tcp/handshake.h"
#include "libs/transport/tcp/tcp_harness.h"
#include "libs/transport/testing/no_descriptors.h"

namespace talweg::transport {

std::unique_ptr<Harness> NewHarness() { return std::make_unique<TcpHarness>(DataSecurity::kKeyed); }

namespace {

const PeerIdentity kMember = {
    .job = JobId(3), .epoch = Epoch(7), .node = NodeRank(1), .incarnation = Incarnation(0x7f3a)};

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Returns the same address with another port of loopback.
std::string WithPort(const std::string& address, uint16_t port) {
  TcpAddress parsed = *ParseTcpAddress(address);
  parsed.host_port = "127.0.0.1:" + std::to_string(port);
  return parsed.ToString();
}

bool IsOver(int socket) {
  char byte;
  const ssize_t got = recv(socket, &byte, 1, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN);
}

struct Server {
  explicit Server(TcpHarness& harness, TcpOptions options, const runtime::Clock* clock = nullptr)
      : endpoint{harness.New(options, clock, &counters)},
        address(*endpoint.transport->Listen({})) {}

  uint64_t refused() { return counters.Get("transport_connections_refused").value(); }

  telemetry::CounterSet counters;
  Endpoint endpoint;
  std::string address;
};

TEST_CASE("Tcp: the listener knows which member has connected", "[transport]") {
  const auto security = GENERATE(DataSecurity::kNone, DataSecurity::kKeyed, DataSecurity::kTls);
  TcpHarness harness(security);
  Server server(harness, {.security = security});
  Endpoint client{harness.NewTransport()};
  const auto connection = client.transport->Connect(AddressForMember(server.address, kMember));
  REQUIRE(connection.ok());
  client.transport->PostFrame(*connection, FrameOf(1));
  REQUIRE(PollUntil({&client, &server.endpoint},
                    [&] { return server.endpoint.sink.frames.size() == 1; }));
  const ConnectionId accepted = server.endpoint.sink.accepted[0];
  CHECK(server.endpoint.transport->ProvenIdentity(accepted) == kMember);
  CHECK(client.transport->ProvenIdentity(*connection) == std::nullopt);
}

TEST_CASE("Tcp: only its own member may write to a region", "[transport]") {
  TcpHarness harness(DataSecurity::kKeyed);
  Server server(harness, {.security = DataSecurity::kKeyed});
  PeerIdentity other = kMember;
  other.node = NodeRank(2);
  std::vector<std::byte> memory(4096);
  const auto region = server.endpoint.transport->RegisterFor(memory, kMember);
  REQUIRE(region.ok());
  Endpoint client{harness.NewTransport()};
  std::vector<std::byte> source(4096, std::byte{1});
  const auto from = client.transport->Register(source);
  const auto write_as = [&](const PeerIdentity& identity) {
    const auto connection = client.transport->Connect(AddressForMember(server.address, identity));
    client.transport->PostWrite(*connection, from->Slice(0, 4096), region->Ref(), 1);
    client.transport->PostFrame(*connection, FrameOf(1));
  };
  write_as(other);
  REQUIRE(PollUntil({&client, &server.endpoint},
                    [&] { return !server.endpoint.sink.disconnected.empty(); }));
  CHECK(Contains(server.endpoint.sink.disconnected[0].second, "not given to it"));
  CHECK(std::count(memory.begin(), memory.end(), std::byte{1}) == 0);
  // The member is the same in a later epoch.
  PeerIdentity later = kMember;
  later.epoch = Epoch(8);
  write_as(later);
  REQUIRE(PollUntil({&client, &server.endpoint},
                    [&] { return server.endpoint.sink.frames.size() == 1; }));
  CHECK(memory == source);
}

TEST_CASE("Tcp: peers of different settings hear both settings", "[transport]") {
  TcpHarness harness(DataSecurity::kTls);
  Server server(harness, {.security = DataSecurity::kKeyed});
  Endpoint client{harness.NewTransport()};
  const auto connection = client.transport->Connect(server.address);
  REQUIRE_FALSE(connection.ok());
  const std::string text(connection.status().message());
  CHECK(Contains(text, "data_security=keyed"));
  CHECK(Contains(text, "data_security=tls"));
  CHECK_FALSE(Contains(text, server.address.substr(server.address.rfind('/'))));
  const auto fabric = client.transport->Connect("fi:tcp://127.0.0.1:1/0123");
  REQUIRE_FALSE(fabric.ok());
  CHECK(Contains(std::string(fabric.status().message()), "data_security=none"));
  CHECK(Contains(std::string(fabric.status().message()), "data_security=tls"));
}

TEST_CASE("Tcp: a wrong key is refused at once, and no event reports it", "[transport]") {
  const auto security = GENERATE(DataSecurity::kNone, DataSecurity::kKeyed, DataSecurity::kTls);
  TcpHarness harness(security);
  Server server(harness, {.security = security});
  TcpAddress address = *ParseTcpAddress(AddressForMember(server.address, kMember));
  SECTION("The key is another one") { address.key.key[5] ^= std::byte{1}; }
  SECTION("The identity is not the key's") { address.key.identity->node = NodeRank(0); }
  Endpoint client{harness.NewTransport()};
  REQUIRE(client.transport->Connect(address.ToString()).ok());
  REQUIRE(
      PollUntil({&client, &server.endpoint}, [&] { return !client.sink.disconnected.empty(); }));
  const std::string& reason = client.sink.disconnected[0].second;
  INFO(reason);
  CHECK(Contains(reason, "tcp://127.0.0.1:"));
  CHECK_FALSE(Contains(reason, "no answer"));
  CHECK(server.endpoint.sink.accepted.empty());
  CHECK(server.refused() == 1);
}

TEST_CASE("Tcp: a listener without the key gets nothing", "[transport]") {
  const auto security = GENERATE(DataSecurity::kNone, DataSecurity::kKeyed);
  // Somebody listens where an aggregator did. He answers with what he has seen others answer.
  TestPort port;
  port.Listen();
  TcpHarness harness(security);
  Server server(harness, {.security = security});
  Endpoint client{harness.NewTransport()};
  REQUIRE(client.transport->Connect(WithPort(server.address, port.port())).ok());
  client.transport->PostFrame(ConnectionId(1), FrameOf(1));
  const Descriptor stranger = port.Accept();
  const std::vector<std::byte> answer(kAnswerBytes, std::byte{7});
  REQUIRE(send(stranger.get(), answer.data(), answer.size(), MSG_NOSIGNAL) > 0);
  REQUIRE(PollUntil({&client}, [&] { return !client.sink.disconnected.empty(); }));
  CHECK(Contains(client.sink.disconnected[0].second, "did not prove"));
  // The Hello is all that he has got.
  std::vector<std::byte> got(1000);
  CHECK(recv(stranger.get(), got.data(), got.size(), MSG_DONTWAIT) == kHelloBytes);
}

TEST_CASE("Tcp: a peer that does not send what is due in time is dropped", "[transport]") {
  const auto security = GENERATE(DataSecurity::kKeyed, DataSecurity::kTls);
  TcpHarness harness(security);
  runtime::ManualClock clock{1'000'000'000};
  Server server(harness, {.security = security}, &clock);
  const Descriptor silent(ConnectToPort(PortOf(server.address)));
  const Descriptor slow(ConnectToPort(PortOf(server.address)));
  const ConnectingHandshake handshake(*ParseTcpAddress(AddressForMember(server.address, kMember)));
  // The Hello is right, except that its last byte does not come.
  REQUIRE(send(slow.get(), handshake.hello().data(), kHelloBytes - 1, MSG_NOSIGNAL) > 0);
  const Descriptor unproven(ConnectToPort(PortOf(server.address)));
  REQUIRE(send(unproven.get(), handshake.hello().data(), kHelloBytes, MSG_NOSIGNAL) > 0);
  PollUntilIdle({&server.endpoint});
  CHECK_FALSE(IsOver(silent.get()));
  CHECK_FALSE(IsOver(slow.get()));
  clock.Advance(5'000'000'000);
  PollUntilIdle({&server.endpoint});
  CHECK(IsOver(silent.get()));
  CHECK(IsOver(slow.get()));
  char answer[kAnswerBytes];
  if (security == DataSecurity::kKeyed) {
    CHECK(recv(unproven.get(), answer, sizeof(answer), MSG_DONTWAIT) == kAnswerBytes);
  }
  CHECK(IsOver(unproven.get()));
  CHECK(server.endpoint.sink.accepted.empty());
  CHECK(server.refused() == 3);
}

TEST_CASE("Tcp: strangers who stay connected take nobody else's place", "[transport]") {
  TcpHarness harness(DataSecurity::kKeyed);
  Server server(harness, {.security = DataSecurity::kKeyed, .unproven_of_host_max = 8});
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 40; ++i) {
    strangers.emplace_back(ConnectToPort(PortOf(server.address)));
    server.endpoint.Poll();
  }
  PollUntilIdle({&server.endpoint});
  CHECK(std::count_if(strangers.begin(), strangers.end(),
                      [](const Descriptor& each) { return !IsOver(each.get()); }) == 8);
  Endpoint client{harness.NewTransport()};
  REQUIRE(client.transport->Connect(server.address).ok());
  REQUIRE(PollUntil({&client, &server.endpoint}, [&] { return !client.sink.connected.empty(); }));
}

TEST_CASE("Tcp: a peer that connects when no descriptor is left does not wait", "[transport]") {
  TcpHarness harness(DataSecurity::kKeyed);
  Server server(harness, {.security = DataSecurity::kKeyed});
  const Descriptor unlucky(ConnectToPort(PortOf(server.address)));
  const NoDescriptors none;
  server.endpoint.Poll();
  CHECK_FALSE(IsReadable(server.endpoint.transport->WaitDescriptor()));
  CHECK(IsOver(unlucky.get()));
  CHECK(server.refused() == 1);
}

TEST_CASE("Tcp: a recorded Hello and a recorded Proof let nobody in", "[transport]") {
  const auto security = GENERATE(DataSecurity::kNone, DataSecurity::kKeyed, DataSecurity::kTls);
  TcpHarness harness(security);
  Server server(harness, {.security = security});
  // Records what a member sends, and passes it on.
  TestPort port;
  port.Listen();
  Endpoint client{harness.NewTransport()};
  const std::string through = WithPort(AddressForMember(server.address, kMember), port.port());
  REQUIRE(client.transport->Connect(through).ok());
  client.transport->PostFrame(ConnectionId(1), FrameOf(1));
  const Descriptor left = port.Accept();
  const Descriptor right(ConnectToPort(PortOf(server.address)));
  std::vector<std::byte> recorded;
  const auto pass_on = [&](int from, int to, std::vector<std::byte>* record) {
    std::byte bytes[4096];
    const ssize_t got = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0) return;
    if (record != nullptr) record->insert(record->end(), bytes, bytes + got);
    send(to, bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
  };
  REQUIRE(PollUntil({&client, &server.endpoint}, [&] {
    pass_on(left.get(), right.get(), &recorded);
    pass_on(right.get(), left.get(), nullptr);
    return server.endpoint.sink.frames.size() == 1;
  }));
  const Descriptor replay(ConnectToPort(PortOf(server.address)));
  REQUIRE(send(replay.get(), recorded.data(), recorded.size(), MSG_NOSIGNAL) > 0);
  REQUIRE(PollUntil({&server.endpoint}, [&] { return server.refused() == 1; }));
  CHECK(server.endpoint.sink.accepted.size() == 1);
  CHECK(server.endpoint.sink.frames.size() == 1);
}

// Somebody on the path between a client and a server. Bytes go through him, and he changes them.
class OnPath {
 public:
  OnPath(TcpHarness& harness, DataSecurity security)
      : server(harness, {.security = security}), client{harness.NewTransport()} {
    port_.Listen();
    connection = *client.transport->Connect(
        WithPort(AddressForMember(server.address, kMember), port_.port()));
    left_ = port_.Accept();
    right_ = Descriptor(ConnectToPort(PortOf(server.address)));
    connected = Until(
        [&] { return !client.sink.connected.empty() && !server.endpoint.sink.accepted.empty(); });
    // Nothing is under way, so the next byte begins a piece.
    PollUntilIdle({&client, &server.endpoint});
    Until([&] { return true; });
  }

  bool Until(const std::function<bool()>& done) {
    return PollUntil({&client, &server.endpoint}, [&] {
      PassOn(left_.get(), right_.get(), &to_server);
      PassOn(right_.get(), left_.get(), &to_client);
      return done();
    });
  }
  void SendToServer(std::span<const std::byte> bytes) {
    send(right_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }

  using Change = std::function<std::vector<std::byte>(std::vector<std::byte>)>;
  Server server;
  Endpoint client;
  ConnectionId connection;
  Change to_server;
  Change to_client;
  bool connected = false;

 private:
  static void PassOn(int from, int to, const Change* change) {
    std::byte bytes[64 * 1024];
    const ssize_t got = recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got <= 0) return;
    std::vector<std::byte> passed(bytes, bytes + got);
    if (*change) passed = (*change)(std::move(passed));
    size_t sent = 0;
    while (sent < passed.size()) {
      const ssize_t n = send(to, passed.data() + sent, passed.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return;
      sent += static_cast<size_t>(n);
    }
  }

  TestPort port_;
  Descriptor left_;
  Descriptor right_;
};

TEST_CASE("Tcp: somebody on the path who touches bytes ends the connection", "[transport]") {
  const auto security = GENERATE(DataSecurity::kKeyed, DataSecurity::kTls);
  CAPTURE(DataSecurityName(security));
  TcpHarness harness(security);
  OnPath path(harness, security);
  REQUIRE(path.connected);
  std::vector<std::byte> source = Pattern(1, 300'000);
  std::vector<std::byte> target(300'000);
  const auto from = path.client.transport->Register(source);
  const auto to = path.server.endpoint.transport->Register(target);
  // One message passes untouched.
  path.client.transport->PostFrame(path.connection, FrameOf(1));
  REQUIRE(path.Until([&] { return path.server.endpoint.sink.frames.size() == 1; }));

  std::vector<std::byte> kept;
  bool once = true;
  const auto touch = [&](const OnPath::Change& change) {
    path.to_server = [&, change](std::vector<std::byte> bytes) {
      return std::exchange(once, false) ? change(std::move(bytes)) : bytes;
    };
  };
  SECTION("He changes a byte of a header") {
    touch([](std::vector<std::byte> bytes) {
      bytes[9] ^= std::byte{1};
      return bytes;
    });
  }
  SECTION("He changes a byte after a header") {
    touch([](std::vector<std::byte> bytes) {
      bytes[2000] ^= std::byte{1};
      return bytes;
    });
  }
  SECTION("He puts bytes before a piece") {
    touch([](std::vector<std::byte> bytes) {
      bytes.insert(bytes.begin(), 40, std::byte{0});
      return bytes;
    });
  }
  SECTION("He sends everything twice") {
    touch([](std::vector<std::byte> bytes) {
      const std::vector<std::byte> again = bytes;
      bytes.insert(bytes.end(), again.begin(), again.end());
      return bytes;
    });
  }
  SECTION("He leaves out the beginning") {
    touch([](std::vector<std::byte> bytes) {
      bytes.erase(bytes.begin(), bytes.begin() + 40);
      return bytes;
    });
  }
  path.client.transport->PostWrite(path.connection, from->Slice(0, source.size()), to->Ref(), 1);
  path.client.transport->PostFrame(path.connection, FrameOf(2));
  REQUIRE(path.Until([&] { return !path.server.endpoint.sink.disconnected.empty(); }));
  INFO(path.server.endpoint.sink.disconnected[0].second);
  CHECK(Contains(path.server.endpoint.sink.disconnected[0].second, "on their way"));
  CHECK(path.server.endpoint.sink.frames.size() == 1);
}

TEST_CASE("Tcp: bytes that are sent back to their sender end the connection", "[transport]") {
  const auto security = GENERATE(DataSecurity::kKeyed, DataSecurity::kTls);
  TcpHarness harness(security);
  OnPath path(harness, security);
  REQUIRE(path.connected);
  std::vector<std::byte> kept;
  path.to_server = [&](std::vector<std::byte> bytes) {
    kept = bytes;
    return bytes;
  };
  path.client.transport->PostFrame(path.connection, FrameOf(1));
  REQUIRE(path.Until([&] { return path.server.endpoint.sink.frames.size() == 1; }));
  path.to_client = [&](std::vector<std::byte>) { return kept; };
  path.server.endpoint.transport->PostFrame(path.server.endpoint.sink.accepted[0], FrameOf(2));
  REQUIRE(path.Until([&] { return !path.client.sink.disconnected.empty(); }));
  CHECK(path.client.sink.frames.empty());
}

TEST_CASE("Tcp: only tls hides what is sent", "[transport]") {
  const auto security = GENERATE(DataSecurity::kKeyed, DataSecurity::kTls);
  TcpHarness harness(security);
  OnPath path(harness, security);
  REQUIRE(path.connected);
  std::vector<std::byte> seen;
  path.to_server = [&](std::vector<std::byte> bytes) {
    seen.insert(seen.end(), bytes.begin(), bytes.end());
    return bytes;
  };
  const std::vector<std::byte> frame = FrameOf(5, 500);
  path.client.transport->PostFrame(path.connection, frame);
  REQUIRE(path.Until([&] { return path.server.endpoint.sink.frames.size() == 1; }));
  const bool is_seen =
      std::search(seen.begin(), seen.end(), frame.begin(), frame.end()) != seen.end();
  CHECK(is_seen == (security == DataSecurity::kKeyed));
}

TEST_CASE("Tcp: the options say where to listen", "[transport]") {
  TcpHarness harness(DataSecurity::kKeyed);
  const auto transport = harness.NewTransport();
  SECTION("A port is taken, and a range has a free one") {
    const auto first = transport->Listen({});
    REQUIRE(first.ok());
    const uint16_t port = PortOf(*first);
    const auto second = harness.NewTransport()->Listen({.port_first = port, .port_last = port});
    CHECK(absl::IsAlreadyExists(second.status()));
    const auto last = static_cast<uint16_t>(std::min(65535, port + 100));
    const auto third = harness.NewTransport()->Listen({.port_first = port, .port_last = last});
    REQUIRE(third.ok());
    CHECK(PortOf(*third) > port);
  }
  SECTION("It advertises another host") {
    const auto address = transport->Listen({.advertise_host = "gateway.example"});
    REQUIRE(address.ok());
    CHECK(address->starts_with("tcp://gateway.example:"));
    CHECK(HostOf(*address) == "gateway.example");
    CHECK(WithHost(*address, "10.0.0.1").starts_with("tcp://10.0.0.1:"));
  }
  SECTION("The address belongs to another host") {
    const auto address = transport->Listen({.bind_address = "192.0.2.77"});
    REQUIRE_FALSE(address.ok());
    CHECK(Contains(std::string(address.status().message()), "192.0.2.77"));
  }
  SECTION("It listens on IPv6, where the host has it") {
    const auto address = transport->Listen({.bind_address = "::1"});
    if (address.ok()) CHECK(address->starts_with("tcp://[::1]:"));
  }
}

}  // namespace
}  // namespace talweg::transport
