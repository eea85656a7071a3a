// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/proof/connect_token.h"

#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/random.h"

namespace talweg::transport {
namespace {

const PeerIdentity kMember = {
    .job = JobId(3), .epoch = Epoch(7), .node = NodeRank(1), .incarnation = Incarnation(0x7f3a)};

TokenClaim Claim(uint32_t count, uint64_t epoch = 7) {
  TokenClaim claim = {.identity = kMember, .count = count};
  claim.identity.epoch = Epoch(epoch);
  return claim;
}

const Admission kEverybody;

TEST_CASE("ConnectToken: a listener finds out whose token it is from its own key alone",
          "[transport]") {
  const DataKey listener = NewDataKey();
  const ConnectToken token = MakeConnectToken(MemberKey(listener, kMember), Claim(41));
  const auto claim = CheckConnectToken(listener, token);
  REQUIRE(claim);
  CHECK(claim->identity == kMember);
  CHECK(claim->count == 41);
  // A provider that fills its message up hands it over like this.
  std::vector<std::byte> padded(token.begin(), token.end());
  padded.resize(64);
  CHECK(CheckConnectToken(listener, padded));
}

TEST_CASE("ConnectToken: a token with any byte changed or left out is nobody's", "[transport]") {
  const DataKey listener = NewDataKey();
  const ConnectToken token = MakeConnectToken(MemberKey(listener, kMember), Claim(1));
  for (size_t i = 0; i < token.size(); ++i) {
    ConnectToken changed = token;
    changed[i] ^= std::byte{0x10};
    CAPTURE(i);
    CHECK_FALSE(CheckConnectToken(listener, changed));
    CHECK_FALSE(CheckConnectToken(listener, std::span(token).first(i)));
  }
  CHECK_FALSE(CheckConnectToken(NewDataKey(), token));
}

TEST_CASE("ConnectToken: a member's key makes no token for another member", "[transport]") {
  const DataKey listener = NewDataKey();
  const DataKey own = MemberKey(listener, kMember);
  TokenClaim other = Claim(1);
  SECTION("The node is another one") { other.identity.node = NodeRank(0); }
  SECTION("The incarnation is another one") { other.identity.incarnation = Incarnation(0x7f3b); }
  SECTION("The job is another one") { other.identity.job = JobId(4); }
  SECTION("The epoch is another one") { other.identity.epoch = Epoch(8); }
  CHECK_FALSE(CheckConnectToken(listener, MakeConnectToken(own, other)));
}

TEST_CASE("ConnectToken: a listener shows that it has the key, for this token alone",
          "[transport]") {
  const DataKey key = MemberKey(NewDataKey(), kMember);
  const ConnectToken first = MakeConnectToken(key, Claim(1));
  const ConnectToken second = MakeConnectToken(key, Claim(2));
  CHECK(AnswerTo(key, first) == AnswerTo(key, first));
  CHECK(AnswerTo(key, first) != AnswerTo(key, second));
  CHECK(AnswerTo(key, first) != AnswerTo(MemberKey(NewDataKey(), kMember), first));
  // A listener's answer is no part of a token, and a token has no part of it.
  const ConnectAnswer answer = AnswerTo(key, first);
  CHECK_FALSE(std::equal(answer.begin(), answer.end(), first.end() - kConnectAnswerBytes));
}

TEST_CASE("TokenBook: each token is accepted once, in whatever order tokens come", "[transport]") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    TokenBook book;
    Random random(seed);
    std::set<uint32_t> taken;
    uint32_t latest = 0;
    for (int i = 0; i < 400; ++i) {
      const uint32_t back = static_cast<uint32_t>(random.Below(100));
      uint32_t count = latest + static_cast<uint32_t>(random.Below(random.OneIn(10) ? 300 : 4));
      if (random.OneIn(2)) count = latest > back ? latest - back : 1;
      if (count == 0) count = 1;
      const bool is_behind = count + TokenBook::kOrderMax <= latest;
      const bool is_good = !taken.contains(count) && !is_behind;
      CAPTURE(seed, i, count, latest);
      REQUIRE(book.Take(Claim(count), kEverybody) == is_good);
      taken.insert(count);
      latest = std::max(latest, count);
    }
    CHECK(book.size() == 1);
  }
}

TEST_CASE("TokenBook: the highest count and the first one are accepted", "[transport]") {
  TokenBook book;
  CHECK(book.Take(Claim(0), kEverybody));
  CHECK_FALSE(book.Take(Claim(0), kEverybody));
  CHECK(book.Take(Claim(0xffffffff), kEverybody));
  CHECK_FALSE(book.Take(Claim(0xffffffff), kEverybody));
  CHECK(book.Take(Claim(0xffffffff - 63), kEverybody));
  CHECK_FALSE(book.Take(Claim(0xffffffff - 64), kEverybody));
}

TEST_CASE("TokenBook: a token of an older epoch than the latest is late", "[transport]") {
  TokenBook book;
  CHECK(book.Take(Claim(1, 7), kEverybody));
  CHECK(book.Take(Claim(3, 8), kEverybody));
  CHECK_FALSE(book.Take(Claim(2, 7), kEverybody));
  CHECK_FALSE(book.Take(Claim(4, 7), kEverybody));
  CHECK(book.Take(Claim(2, 8), kEverybody));
}

TEST_CASE("TokenBook: one member's tokens do not affect another's", "[transport]") {
  TokenBook book;
  TokenClaim other = Claim(1);
  CHECK(book.Take(Claim(1000), kEverybody));
  SECTION("The node is another one") { other.identity.node = NodeRank(0); }
  SECTION("The incarnation is another one") { other.identity.incarnation = Incarnation(0x7f3b); }
  SECTION("The job is another one") { other.identity.job = JobId(4); }
  CHECK(book.Take(other, kEverybody));
  CHECK_FALSE(book.Take(other, kEverybody));
}

TEST_CASE("TokenBook: members that may not come any more are forgotten, and no others",
          "[transport]") {
  TokenBook book;
  uint64_t gone = 0;  // The members up to this node have gone.
  const Admission admission = [&gone](const PeerIdentity& peer) {
    return std::string(peer.node.value() >= gone ? "" : "it is gone");
  };
  TokenClaim claim = Claim(1);
  constexpr uint32_t kMembers = 10'000;
  for (uint32_t node = 0; node < kMembers; ++node) {
    gone = node < 100 ? 0 : node - 100;
    claim.identity.node = NodeRank(node);
    REQUIRE(book.Take(claim, admission));
  }
  CHECK(book.size() < 2000);
  for (uint32_t node = static_cast<uint32_t>(gone); node < kMembers; ++node) {
    claim.identity.node = NodeRank(node);
    CHECK_FALSE(book.Take(claim, admission));
  }
}

TEST_CASE("TokenGate: a member is let in with each of its tokens once", "[transport]") {
  const DataKey listener = NewDataKey();
  TokenGate gate(listener);
  TokenMaker maker;
  const AddressKey own = {.identity = kMember, .key = MemberKey(listener, kMember)};
  const TokenMaker::Made first = maker.Next(own);
  const TokenMaker::Made second = maker.Next(own);
  for (const TokenMaker::Made& made : {second, first}) {
    const auto entry = gate.Enter(made.token);
    REQUIRE(entry.ok());
    CHECK(entry->identity == kMember);
    CHECK(entry->answer == made.answer);
    CHECK(absl::IsPermissionDenied(gate.Enter(made.token).status()));
  }
  // A member of the same process in the next view.
  AddressKey next = own;
  next.identity->epoch = Epoch(8);
  next.key = MemberKey(listener, *next.identity);
  CHECK(gate.Enter(maker.Next(next).token).ok());
  CHECK(absl::IsPermissionDenied(gate.Enter(maker.Next(own).token).status()));
}

TEST_CASE("TokenGate: a member that is not let in hears why, and a stranger does not",
          "[transport]") {
  const DataKey listener = NewDataKey();
  TokenGate gate(listener);
  TokenMaker maker;
  CHECK(absl::IsUnauthenticated(gate.Enter(maker.Next({.key = NewDataKey()}).token).status()));
  CHECK(absl::IsUnauthenticated(gate.Enter({}).status()));
  const AddressKey own = {.identity = kMember, .key = MemberKey(listener, kMember)};
  gate.SetAdmission(
      [](const PeerIdentity& peer) { return std::string(peer == kMember ? "it has left" : ""); });
  CHECK(gate.Enter(maker.Next(own).token).status() == absl::FailedPreconditionError("it has left"));
  // The listener's own key names no member. Each of its makers has one anonymous identity.
  const auto nobody = gate.Enter(maker.Next({.key = listener}).token);
  REQUIRE(nobody.ok());
  CHECK(nobody->identity.job == JobId(0));
  CHECK(gate.Enter(maker.Next({.key = listener}).token)->identity == nobody->identity);
  CHECK(gate.Enter(TokenMaker().Next({.key = listener}).token)->identity != nobody->identity);
}

}  // namespace
}  // namespace talweg::transport
