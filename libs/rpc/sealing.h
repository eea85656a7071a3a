// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_SEALING_H_
#define TALWEG_LIBS_RPC_SEALING_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "libs/transport/proof/data_key.h"

// How a process and a daemon prove to each other that they know the job secret, and seal what they
// say (docs/protocol.md, section 12). Bytes in, bytes out; no gRPC.
namespace talweg::rpc {

inline constexpr size_t kPublicKeyBytes = 32;
inline constexpr size_t kNonceBytes = 32;

// An X25519 key pair.
class KeyPair {
 public:
  // Draws it.
  KeyPair();
  ~KeyPair();
  KeyPair(const KeyPair&) = delete;
  KeyPair& operator=(const KeyPair&) = delete;

  const std::string& public_key() const { return public_key_; }
  // Returns what only the holders of the two private keys can compute; nullopt if `peer` is no
  // public key, or one with which everybody could.
  std::optional<transport::DataKey> SharedWith(std::string_view peer) const;

 private:
  struct Held;
  std::unique_ptr<Held> held_;
  std::string public_key_;
};

// Seals the answers of one call, or opens them, in their order.
class Answers {
 public:
  Answers(const transport::DataKey& session, uint64_t count, std::string_view salt);

  std::string Seal(std::string_view text);
  // nullopt: the bytes are not the next answer.
  std::optional<std::string> Open(std::string_view sealed);

 private:
  transport::DataKey key_;
  uint64_t number_ = 0;
};

// What a process and a daemon share. Its keys can be made by the two alone.
class SealedSession {
 public:
  // `caller` and `daemon` are their public keys.
  SealedSession(std::string_view job_secret, const transport::DataKey& shared,
                std::string_view caller, std::string_view daemon);

  // No `count` may be used for two calls.
  std::string SealCall(uint64_t count, std::string_view method, std::string_view text) const;
  // nullopt: the call was sealed by somebody else, for another method or count, or was changed.
  std::optional<std::string> OpenCall(uint64_t count, std::string_view method,
                                      std::string_view sealed) const;

  // `salt`: see NewSecret. New for each call.
  Answers AnswersTo(uint64_t count, std::string_view salt) const { return {key_, count, salt}; }

 private:
  transport::DataKey key_;
};

// The daemons that open sealed calls. The proof of one is none of the other.
enum class Daemon : uint8_t { kScheduler, kAgent };

// What texts call it: "scheduler".
std::string NameOf(Daemon daemon);

// A greeting, and who answers it.
struct Greeting {
  Daemon daemon;
  std::string_view caller;      // The caller's public key.
  std::string_view nonce;       // The caller's, new for each greeting.
  std::string_view public_key;  // The daemon's.
};

// Returns the proof that its maker knows the job secret.
std::string DaemonProof(std::string_view job_secret, const Greeting& greeting);
// Compares in a time that does not depend on the bytes.
bool IsDaemonProof(std::string_view proof, std::string_view job_secret, const Greeting& greeting);

// The calls that a daemon has opened, so that each has an effect once.
//
// Keeps a few words for each of the latest kCallersMax / 2 to kCallersMax callers. The calls of one
// caller may come in another order than they were made. One whose count is kOrderMax or more below
// the latest is refused. One owner thread, or a lock.
class CallBook {
 public:
  static constexpr size_t kCallersMax = 16'384;
  static constexpr uint64_t kOrderMax = 64;

  // Returns whether no call of `caller` with this count has come, and notes that it has.
  bool Take(const std::string& caller, uint64_t count);
  size_t size() const { return latest_.size() + older_.size(); }

 private:
  struct Seen {
    uint64_t latest = 0;
    uint64_t before = 0;  // Bit i: count latest - i has come.
  };
  static bool Note(uint64_t count, Seen* seen);

  std::map<std::string, Seen> latest_;
  std::map<std::string, Seen> older_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_SEALING_H_
