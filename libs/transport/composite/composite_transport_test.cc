// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/composite/composite_transport.h"

#include <cstdlib>

#include <catch2/catch.hpp>

#include "libs/base/check.h"
#include "libs/runtime/clock.h"
#include "libs/transport/libfabric/fabric_transport.h"
#include "libs/transport/proof/data_key.h"
#include "libs/transport/testing/harness.h"

namespace talweg::transport {
namespace {

class CompositeHarness final : public Harness {
 public:
  std::unique_ptr<Transport> NewTransport() override {
    auto network = NewFabricTransport({}, &clock_, nullptr);
    auto local = NewLocalTransport({}, &clock_, nullptr);
    TALWEG_CHECK(network.ok() && local.ok());
    auto both = NewCompositeTransport(*std::move(network), *std::move(local));
    TALWEG_CHECK(both.ok());
    return *std::move(both);
  }
  std::string NobodysAddress() override {
    return "local:@talweg-nobody-listens-here#" + std::string(64, '0');
  }

 private:
  runtime::MonotonicClock clock_;
};

}  // namespace

std::unique_ptr<Harness> NewHarness() { return std::make_unique<CompositeHarness>(); }

namespace {

TEST_CASE("Composite: one region is written to over the network and on the host", "[transport]") {
  CompositeHarness harness;
  Endpoint server{harness.NewTransport()};
  Endpoint remote{harness.NewTransport()};
  Endpoint neighbour{harness.NewTransport()};
  const auto addresses = server.transport->Listen({});
  REQUIRE(addresses.ok());
  const std::string over_network = SelectAddress(*addresses, /*same_host=*/false);
  const std::string on_host = SelectAddress(*addresses, /*same_host=*/true);
  CHECK(over_network.substr(0, 9) == "fi:tcp://");
  CHECK(on_host.substr(0, 6) == "local:");

  std::vector<std::byte> target(8192);
  const auto to = server.transport->Register(target);
  REQUIRE(to.ok());
  std::vector<std::byte> source = Pattern(1, 4096);
  std::vector<ConnectionId> connections;
  std::vector<Region> regions;
  for (const auto& [endpoint, address, offset] : {std::tuple(&remote, over_network, size_t{0}),
                                                  std::tuple(&neighbour, on_host, size_t{4096})}) {
    const auto connection = endpoint->transport->Connect(address);
    REQUIRE(connection.ok());
    auto from = endpoint->transport->Register(source);
    REQUIRE(from.ok());
    endpoint->transport->PostWrite(*connection, from->Slice(0, 4096), to->Ref(offset), 1);
    endpoint->transport->PostFrame(*connection, FrameOf(offset));
    regions.push_back(*std::move(from));
  }
  REQUIRE(
      PollUntil({&server, &remote, &neighbour}, [&] { return server.sink.frames.size() == 2; }));
  CHECK(server.sink.accepted.size() == 2);
  CHECK(server.sink.accepted[0] != server.sink.accepted[1]);
  CHECK(IsPattern(std::span(target).first(4096), 1));
  CHECK(IsPattern(std::span(target).last(4096), 1));
}

TEST_CASE("Composite: a member proves itself over both, and writes to its own region on the host",
          "[transport]") {
  CompositeHarness harness;
  Endpoint server{harness.NewTransport()};
  const std::string addresses = *server.transport->Listen({});
  const PeerIdentity member = {
      .job = JobId(3), .epoch = Epoch(7), .node = NodeRank(1), .incarnation = Incarnation(0x7f3a)};
  PeerIdentity other = member;
  other.node = NodeRank(2);
  for (const bool on_host : {false, true}) {
    CAPTURE(on_host);
    std::vector<std::byte> target(100);
    const auto to = server.transport->RegisterFor(target, member);
    REQUIRE(to.ok());
    for (const PeerIdentity& writer : {other, member}) {
      Endpoint client{harness.NewTransport()};
      std::vector<std::byte> source(target.size(), std::byte{1});
      const auto from = client.transport->Register(source);
      const auto connection =
          client.transport->Connect(SelectAddress(AddressForMember(addresses, writer), on_host));
      REQUIRE(connection.ok());
      REQUIRE(PollUntil({&client, &server}, [&] { return !client.sink.connected.empty(); }));
      REQUIRE(PollUntil({&server}, [&] {
        return server.transport->ProvenIdentity(server.sink.accepted.back()) == writer;
      }));
      if (!on_host) continue;  // libfabric does not check who writes.
      const size_t frames = server.sink.frames.size();
      const size_t ends = server.sink.disconnected.size();
      client.transport->PostWrite(*connection, from->Slice(0, source.size()), to->Ref(), 1);
      client.transport->PostFrame(*connection, FrameOf(1));
      REQUIRE(PollUntil({&client, &server}, [&] {
        return server.sink.frames.size() > frames || server.sink.disconnected.size() > ends;
      }));
      CHECK((server.sink.frames.size() > frames) == (writer == member));
      CHECK((target == source) == (writer == member));
    }
  }
}

TEST_CASE("SelectAddress: only processes of a host use that host's own memory", "[transport]") {
  CHECK(SelectAddress("fi:tcp://a:1,local:@b", true) == "local:@b");
  CHECK(SelectAddress("fi:tcp://a:1,local:@b", false) == "fi:tcp://a:1");
  CHECK(SelectAddress("local:@b,fi:tcp://a:1,fi:tcp://c:2", false) == "fi:tcp://a:1");
  CHECK(SelectAddress("fi:tcp://a:1", true) == "fi:tcp://a:1");
  CHECK(SelectAddress("local:@b", false).empty());
  CHECK(SelectAddress("", true).empty());
}

}  // namespace
}  // namespace talweg::transport
