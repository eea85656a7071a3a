// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/handshake.h"

#include <algorithm>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/transport/proof/data_key.h"
#include "libs/transport/proof/digest.h"
#include "libs/transport/tcp/aes_gcm_testing.h"
#include "libs/transport/tcp/seal.h"

namespace talweg::transport {
namespace {

const PeerIdentity kMember = {
    .job = JobId(3), .epoch = Epoch(7), .node = NodeRank(1), .incarnation = Incarnation(0x7f3a)};

// A listener, and a member that has the listener's key from the scheduler.
struct Ends {
  explicit Ends(DataSecurity security = DataSecurity::kKeyed)
      : listening(listener, security), connecting(AddressOf(kMember, security)) {}

  TcpAddress AddressOf(const PeerIdentity& identity, DataSecurity security) const {
    return {.host_port = "127.0.0.1:1",
            .security = security,
            .key = {.identity = identity, .key = MemberKey(listener, identity)}};
  }

  DataKey listener = NewDataKey();
  ListeningHandshake listening;
  ConnectingHandshake connecting;
};

TEST_CASE("Handshake: both ends hold the key, and know who connects", "[transport]") {
  Ends ends;
  const auto answer = ends.listening.OnHello(ends.connecting.hello());
  REQUIRE(answer);
  const auto proof = ends.connecting.OnAnswer(*answer);
  REQUIRE(proof);
  CHECK(ends.listening.OnProof(*proof));
  CHECK(ends.listening.identity() == kMember);
  const SessionSeals ours = ends.connecting.Seals();
  const SessionSeals theirs = ends.listening.Seals();
  CHECK(ours.connecting.key == theirs.connecting.key);
  CHECK(ours.listening.key == theirs.listening.key);
  CHECK(ours.connecting.key != ours.listening.key);
  CHECK(ends.connecting.PreSharedKey() == ends.listening.PreSharedKey());
  CHECK(ends.connecting.PreSharedKey() != ours.connecting.key);
}

TEST_CASE("Handshake: a message with any byte changed is refused", "[transport]") {
  Ends ends;
  for (size_t i = 0; i < kHelloBytes; ++i) {
    HelloMessage hello = ends.connecting.hello();
    hello[i] ^= std::byte{1};
    CAPTURE(i);
    CHECK_FALSE(ends.listening.OnHello(hello));
  }
  const auto answer = ends.listening.OnHello(ends.connecting.hello());
  REQUIRE(answer);
  for (size_t i = 0; i < kAnswerBytes; ++i) {
    AnswerMessage changed = *answer;
    changed[i] ^= std::byte{0x80};
    CAPTURE(i);
    CHECK_FALSE(ends.connecting.OnAnswer(changed));
  }
  const auto proof = ends.connecting.OnAnswer(*answer);
  REQUIRE(proof);
  for (size_t i = 0; i < kProofBytes; ++i) {
    ProofMessage changed = *proof;
    changed[i] ^= std::byte{4};
    CAPTURE(i);
    CHECK_FALSE(ends.listening.OnProof(changed));
  }
}

TEST_CASE("Handshake: a member's key opens nothing for another identity", "[transport]") {
  Ends ends;
  PeerIdentity other = kMember;
  SECTION("The node is another one") { other.node = NodeRank(0); }
  SECTION("The incarnation is another one") { other.incarnation = Incarnation(0x7f3b); }
  SECTION("The job is another one") { other.job = JobId(4); }
  SECTION("The epoch is another one") { other.epoch = Epoch(8); }
  TcpAddress forged = ends.AddressOf(kMember, DataSecurity::kKeyed);
  forged.key.identity = other;
  CHECK_FALSE(ends.listening.OnHello(ConnectingHandshake(forged).hello()));
}

TEST_CASE("Handshake: another listener's key, and another setting, are refused", "[transport]") {
  Ends ends;
  Ends others;
  CHECK_FALSE(others.listening.OnHello(ends.connecting.hello()));
  ListeningHandshake tls(ends.listener, DataSecurity::kTls);
  CHECK_FALSE(tls.OnHello(ends.connecting.hello()));
  ListeningHandshake none(ends.listener, DataSecurity::kNone);
  CHECK_FALSE(none.OnHello(ends.connecting.hello()));
}

TEST_CASE("Handshake: a Hello that is sent again is useless without the key", "[transport]") {
  Ends ends;
  const HelloMessage recorded = ends.connecting.hello();
  const auto answer = ends.listening.OnHello(recorded);
  const auto proof = ends.connecting.OnAnswer(*answer);
  ListeningHandshake again(ends.listener, DataSecurity::kKeyed);
  const auto other_answer = again.OnHello(recorded);
  REQUIRE(other_answer);
  CHECK(*other_answer != *answer);
  CHECK_FALSE(again.OnProof(*proof));
}

TEST_CASE("Handshake: a message that is sent back to its maker proves nothing", "[transport]") {
  Ends ends;
  AnswerMessage reflected{};
  const HelloMessage& hello = ends.connecting.hello();
  std::copy_n(hello.end() - kAnswerBytes, kAnswerBytes, reflected.begin());
  CHECK_FALSE(ends.connecting.OnAnswer(reflected));
  const auto answer = ends.listening.OnHello(hello);
  ProofMessage from_answer{};
  std::copy_n(answer->begin() + 32, kProofBytes, from_answer.begin());
  CHECK_FALSE(ends.listening.OnProof(from_answer));
}

TEST_CASE("Seal: pieces fit once, in their order and their direction", "[transport]") {
  Ends ends;
  const auto answer = ends.listening.OnHello(ends.connecting.hello());
  REQUIRE(ends.connecting.OnAnswer(*answer));
  const SessionSeals keys = ends.connecting.Seals();
  std::vector<std::byte> first(100, std::byte{1});
  const std::vector<std::byte> second(65536, std::byte{2});
  // The two ends may use different code.
  const AesCode ours = GENERATE(from_range(AesCodes()));
  const AesCode theirs = GENERATE(from_range(AesCodes()));
  Seal sender(keys.connecting, ours);
  const Tag first_tag = sender.Next(first);
  const Tag second_tag = sender.Next(second);
  Seal receiver(keys.connecting, theirs);
  SECTION("The pieces are in order") {
    CHECK(receiver.Check(first, first_tag));
    CHECK(receiver.Check(second, second_tag));
    CHECK(receiver.Check({}, sender.Next({})));
  }
  SECTION("A piece is repeated") {
    CHECK(receiver.Check(first, first_tag));
    CHECK_FALSE(receiver.Check(first, first_tag));
  }
  SECTION("A piece is left out") { CHECK_FALSE(receiver.Check(second, second_tag)); }
  SECTION("A piece is changed") {
    first[50] ^= std::byte{1};
    CHECK_FALSE(receiver.Check(first, first_tag));
  }
  SECTION("A piece is cut") { CHECK_FALSE(receiver.Check(std::span(first).first(99), first_tag)); }
  SECTION("A piece is sent back") {
    CHECK_FALSE(Seal(keys.listening, theirs).Check(first, first_tag));
  }
}

AddressKey ListenerKey(const DataKey& key) {
  return {.identity = std::nullopt, .key = key, .is_seed = true};
}

std::string OfListener(const DataKey& key) { return ListenerKey(key).ToString(); }

TEST_CASE("TcpAddress: the address that Listen returns becomes a member's own", "[transport]") {
  const Ends ends;
  const TcpAddress listening = {.host_port = "[fe80::1%eth0]:20000",
                                .security = DataSecurity::kTls,
                                .key = ListenerKey(ends.listener)};
  const std::string told = listening.ToString();
  // The last address is of an older release, and stays as it is.
  const std::string both = told + ",local:@talweg-1,fi:tcp://a:1/0123456789abcdef";
  const std::string for_member = AddressForMember(both, kMember);
  CHECK(for_member.ends_with(",local:@talweg-1,fi:tcp://a:1/0123456789abcdef"));
  const auto parsed = ParseTcpAddress(for_member.substr(0, for_member.find(',')));
  REQUIRE(parsed.ok());
  CHECK(parsed->host_port == listening.host_port);
  CHECK(parsed->security == DataSecurity::kTls);
  CHECK(parsed->key.identity == kMember);
  CHECK(parsed->key.key == MemberKey(ends.listener, kMember));
  // Nothing of the listener's key is left, and a member's own address becomes nobody else's.
  CHECK(for_member.find(told.substr(told.rfind('/') + 1)) == std::string::npos);
  CHECK(AddressForMember(for_member.substr(0, for_member.find(',')), kMember) ==
        "tcp://[fe80::1%eth0]:20000");
  const std::string fabric =
      AddressForMember("fi:verbs://a:1/" + OfListener(ends.listener), kMember);
  const std::string key = parsed->key.ToString();
  CHECK(fabric == "fi:verbs://a:1/" + key);
  CHECK(AddressForMember(fabric, kMember) == "fi:verbs://a:1");
  CHECK(AddressForMember("fi:tcp://a:1", kMember) == "fi:tcp://a:1");
}

TEST_CASE("Data addresses: a member makes its keys from a seed in each epoch", "[transport]") {
  const DataKey listener = NewDataKey();
  const std::string both =
      "fi:tcp://a:1/" + OfListener(listener) + ",local:@talweg-1#" + OfListener(listener);
  CHECK(HasSeeds(both));
  const std::string seeds = SeedAddressForMember(both, kMember);
  PeerIdentity later = kMember;
  later.epoch = Epoch(kMember.epoch.value() + 5);
  for (const PeerIdentity& identity : {kMember, later}) {
    CHECK(AddressInEpoch(seeds, identity.epoch) == AddressForMember(both, identity));
  }
  // The seed is the same in all epochs, and is no key.
  CHECK(MemberSeed(listener, kMember) == MemberSeed(listener, later));
  CHECK(MemberSeed(listener, kMember) != MemberKey(listener, kMember));
  CHECK(MemberKey(listener, kMember) != MemberKey(listener, later));
  PeerIdentity other = kMember;
  other.incarnation = Incarnation(kMember.incarnation.value() + 1);
  CHECK(MemberSeed(listener, kMember) != MemberSeed(listener, other));
  // A member's address is the member's alone.
  CHECK(SeedAddressForMember(seeds, other) == "fi:tcp://a:1,local");
  CHECK(AddressForMember(seeds, other) == "fi:tcp://a:1,local");
}

TEST_CASE("Data addresses: a listener of an older release has no seeds", "[transport]") {
  const DataKey listener = NewDataKey();
  const std::string address = "fi:tcp://a:1/" + AddressKey{.key = listener}.ToString();
  CHECK_FALSE(HasSeeds(address));
  CHECK(HasSeeds("local:@talweg-1"));
  const std::string own = SeedAddressForMember(address, kMember);
  CHECK(own == AddressForMember(address, kMember));
  CHECK(AddressInEpoch(own, Epoch(99)) == own);
  // That release makes the key of one epoch like this.
  ByteWriter claim;
  claim.Text("talweg data key");
  WriteIdentity(kMember, &claim);
  const DataKey key(Hmac(listener, {claim.bytes()}));
  CHECK(own == "fi:tcp://a:1/" + AddressKey{kMember, key}.ToString());
}

TEST_CASE("TcpAddress: an invalid address is refused, and its key is not shown", "[transport]") {
  const std::string key(64, 'a');
  for (const std::string& address : std::vector<std::string>{
           "tcp://", "tcp://h:1", "tcp://h:1/keyed", "tcp://h:1/" + key,
           "tcp://h:1/keyed/" + key + "a", "tcp://h:1/open/" + key, "tcp://h:1/keyed/1.2.3." + key,
           "tcp://h:1/keyed/1.2.4294967296.4." + key, "tcp://h:1/keyed/1.2.3.-4." + key,
           "tcp://h:1/keyed/" + std::string(64, 'g'), "fi:tcp://h:1/keyed/" + key}) {
    CAPTURE(address);
    const auto parsed = ParseTcpAddress(address);
    REQUIRE_FALSE(parsed.ok());
    CHECK(std::string(parsed.status().message()).find("aaaa") == std::string::npos);
  }
}

}  // namespace
}  // namespace talweg::transport
