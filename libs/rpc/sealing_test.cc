// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/sealing.h"

#include <optional>
#include <string>

#include <catch2/catch.hpp>

namespace talweg::rpc {
namespace {

const std::string kSecret(64, 's');
const std::string kAnother(64, 't');
const std::string kNonce(kNonceBytes, 'n');
const std::string kSalt(kNonceBytes, 'x');
constexpr char kJoin[] = "/talweg.scheduler.v1.MembershipService/Join";

// A process and a scheduler that have met.
struct Met {
  explicit Met(const std::string& callers = kSecret, const std::string& schedulers = kSecret)
      : at_caller(callers, *caller.SharedWith(scheduler.public_key()), caller.public_key(),
                  scheduler.public_key()),
        at_scheduler(schedulers, *scheduler.SharedWith(caller.public_key()), caller.public_key(),
                     scheduler.public_key()) {}

  KeyPair caller;
  KeyPair scheduler;
  SealedSession at_caller;
  SealedSession at_scheduler;
};

TEST_CASE("Sealing: a call and its answers open at the other end, in their order", "[rpc]") {
  const Met met;
  const std::string sealed = met.at_caller.SealCall(1, kJoin, "a secret");
  CHECK(sealed.find("secret") == std::string::npos);
  CHECK(met.at_scheduler.OpenCall(1, kJoin, sealed) == "a secret");
  CHECK(met.at_scheduler.OpenCall(2, kJoin, met.at_caller.SealCall(2, kJoin, "")) == "");

  Answers said = met.at_scheduler.AnswersTo(1, kSalt);
  const std::string first = said.Seal("one");
  const std::string second = said.Seal("two");
  Answers heard = met.at_caller.AnswersTo(1, kSalt);
  CHECK(heard.Open(first) == "one");
  CHECK(heard.Open(second) == "two");
  // Nothing is left out, comes twice, or answers another call.
  Answers jumped = met.at_caller.AnswersTo(1, kSalt);
  CHECK_FALSE(jumped.Open(second));
  Answers repeated = met.at_caller.AnswersTo(1, kSalt);
  CHECK(repeated.Open(first));
  CHECK_FALSE(repeated.Open(first));
  CHECK_FALSE(met.at_caller.AnswersTo(2, kSalt).Open(first));
  CHECK_FALSE(met.at_caller.AnswersTo(1, std::string(kNonceBytes, 'y')).Open(first));
}

TEST_CASE("Sealing: a call opens only as it was made, and at the scheduler that was greeted",
          "[rpc]") {
  const Met met;
  const std::string sealed = met.at_caller.SealCall(7, kJoin, "a secret");
  CHECK_FALSE(met.at_scheduler.OpenCall(8, kJoin, sealed));
  CHECK_FALSE(met.at_scheduler.OpenCall(7, "/talweg.scheduler.v1.MembershipService/Leave", sealed));
  for (size_t i = 0; i < sealed.size(); ++i) {
    std::string changed = sealed;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    CHECK_FALSE(met.at_scheduler.OpenCall(7, kJoin, changed));
  }
  for (size_t size = 0; size < sealed.size(); ++size) {
    CHECK_FALSE(met.at_scheduler.OpenCall(7, kJoin, sealed.substr(0, size)));
  }
  // The scheduler's next life has another key, and so has another process.
  const KeyPair next;
  const SealedSession at_next(kSecret, *next.SharedWith(met.caller.public_key()),
                              met.caller.public_key(), next.public_key());
  CHECK_FALSE(at_next.OpenCall(7, kJoin, sealed));
  // Its own call is not its answer.
  CHECK_FALSE(met.at_caller.AnswersTo(7, kSalt).Open(sealed));
}

TEST_CASE("Sealing: without the job secret nobody opens, and with it alone neither", "[rpc]") {
  const Met met(kSecret, kAnother);
  const std::string sealed = met.at_caller.SealCall(1, kJoin, "a secret");
  CHECK_FALSE(met.at_scheduler.OpenCall(1, kJoin, sealed));
  // Somebody who knows the secret, and has read both public keys.
  const KeyPair own;
  const SealedSession reader(kSecret, *own.SharedWith(met.caller.public_key()),
                             met.caller.public_key(), met.scheduler.public_key());
  CHECK_FALSE(reader.OpenCall(1, kJoin, sealed));
}

TEST_CASE("Sealing: a daemon's proof is of its secret, its kind, its key, and this greeting",
          "[rpc]") {
  const KeyPair caller;
  const KeyPair scheduler;
  const KeyPair another;
  const Daemon daemon = GENERATE(Daemon::kScheduler, Daemon::kAgent);
  const Greeting greeting{.daemon = daemon,
                          .caller = caller.public_key(),
                          .nonce = kNonce,
                          .public_key = scheduler.public_key()};
  const std::string proof = DaemonProof(kSecret, greeting);
  const auto is_proof = [&](const std::string& shown, const std::string& secret,
                            const KeyPair& greets, const std::string& nonce,
                            const KeyPair& greeted) {
    return IsDaemonProof(shown, secret,
                         {.daemon = daemon,
                          .caller = greets.public_key(),
                          .nonce = nonce,
                          .public_key = greeted.public_key()});
  };
  CHECK(is_proof(proof, kSecret, caller, kNonce, scheduler));
  // Nobody hands an agent's proof on as the scheduler's, or the other way round.
  Greeting other = greeting;
  other.daemon = daemon == Daemon::kAgent ? Daemon::kScheduler : Daemon::kAgent;
  CHECK_FALSE(IsDaemonProof(proof, kSecret, other));
  CHECK_FALSE(is_proof(proof, kAnother, caller, kNonce, scheduler));
  CHECK_FALSE(is_proof(proof, kSecret, another, kNonce, scheduler));
  CHECK_FALSE(is_proof(proof, kSecret, caller, std::string(kNonceBytes, 'm'), scheduler));
  CHECK_FALSE(is_proof(proof, kSecret, caller, kNonce, another));
  CHECK_FALSE(is_proof(proof.substr(0, 31), kSecret, caller, kNonce, scheduler));
  CHECK_FALSE(is_proof("", kSecret, caller, kNonce, scheduler));
  Greeting keyless = greeting;
  keyless.public_key = "";
  CHECK_FALSE(IsDaemonProof(proof, kSecret, keyless));
}

TEST_CASE("Sealing: a public key with which everybody could compute the keys is none", "[rpc]") {
  const KeyPair own;
  CHECK_FALSE(own.SharedWith(std::string(kPublicKeyBytes, '\0')));
  CHECK_FALSE(own.SharedWith("\1" + std::string(kPublicKeyBytes - 1, '\0')));
  CHECK_FALSE(own.SharedWith(std::string(kPublicKeyBytes - 1, 'a')));
  CHECK_FALSE(own.SharedWith(""));
}

TEST_CASE("CallBook: each call counts once, in the order in which it comes", "[rpc]") {
  CallBook book;
  CHECK(book.Take("a", 1));
  CHECK_FALSE(book.Take("a", 1));
  CHECK(book.Take("a", 3));
  CHECK(book.Take("a", 2));
  CHECK_FALSE(book.Take("a", 2));
  CHECK_FALSE(book.Take("a", 3));
  CHECK(book.Take("b", 3));
  CHECK(book.Take("a", 3 + CallBook::kOrderMax));
  CHECK_FALSE(book.Take("a", 3));
  CHECK(book.Take("a", 4));
  CHECK_FALSE(book.Take("a", 0));
  CHECK(book.Take("a", 1'000'000));
  CHECK_FALSE(book.Take("a", 1'000'000));
}

TEST_CASE("CallBook: many callers take no more than their room, and the latest are remembered",
          "[rpc]") {
  CallBook book;
  for (size_t i = 0; i < 3 * CallBook::kCallersMax; ++i) {
    REQUIRE(book.Take("caller " + std::to_string(i), 1));
    REQUIRE(book.size() <= CallBook::kCallersMax);
    // One that goes on calling is not forgotten.
    REQUIRE(book.Take("steady", i + 1));
    REQUIRE_FALSE(book.Take("steady", i + 1));
  }
  CHECK_FALSE(book.Take("caller " + std::to_string(3 * CallBook::kCallersMax - 1), 1));
}

}  // namespace
}  // namespace talweg::rpc
