// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/sealing.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <span>
#include <utility>

#include "libs/base/check.h"
#include "libs/transport/proof/digest.h"
#include "libs/transport/tcp/aes_gcm.h"

namespace talweg::rpc {
namespace {

using transport::DataKey;

// Each key and each MAC has a label of its own.
constexpr std::string_view kProofKey = "talweg sealed 1 scheduler proof key";
constexpr std::string_view kSchedulerProof = "talweg sealed 1 scheduler proof";
constexpr std::string_view kAgentProof = "talweg sealed 1 agent proof";
constexpr std::string_view kSecretKey = "talweg sealed 1 job secret";
constexpr std::string_view kSessionKey = "talweg sealed 1 session";
constexpr std::string_view kCallKey = "talweg sealed 1 call";
constexpr std::string_view kAnswerKey = "talweg sealed 1 answer";

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

DataKey Derived(std::span<const std::byte> key, std::span<const std::byte> salt,
                std::string_view use) {
  DataKey made;
  transport::Hkdf(key, salt, use, made);
  return made;
}

DataKey CallKey(const DataKey& session, uint64_t count) {
  transport::ByteWriter salt;
  salt.Number(count);
  return Derived(session, salt.bytes(), kCallKey);
}

transport::AesNonce NonceOf(uint64_t number) {
  transport::AesNonce nonce{};
  for (size_t i = 0; i < sizeof number; ++i) nonce[i] = static_cast<std::byte>(number >> (8 * i));
  return nonce;
}

// The text, encrypted, and then its tag, which covers `header` too.
std::string Sealed(const DataKey& key, uint64_t number, std::string_view header,
                   std::string_view text) {
  const auto cipher = MakeAesGcm(transport::AesCode::kOpenSsl, key, transport::AesGcm::Use::kSeals);
  cipher->Begin(NonceOf(number), Bytes(header));
  std::string sealed(text.size() + transport::kTagBytes, '\0');
  const auto out = std::as_writable_bytes(std::span(sealed));
  if (!text.empty()) cipher->Crypt(Bytes(text), out.data());
  const transport::Tag tag = cipher->MakeTag();
  std::copy(tag.begin(), tag.end(), out.begin() + static_cast<ptrdiff_t>(text.size()));
  return sealed;
}

std::optional<std::string> Opened(const DataKey& key, uint64_t number, std::string_view header,
                                  std::string_view sealed) {
  if (sealed.size() < transport::kTagBytes) return std::nullopt;
  const std::span<const std::byte> in = Bytes(sealed);
  const size_t size = sealed.size() - transport::kTagBytes;
  const auto cipher = MakeAesGcm(transport::AesCode::kOpenSsl, key, transport::AesGcm::Use::kOpens);
  cipher->Begin(NonceOf(number), Bytes(header));
  std::string text(size, '\0');
  if (size > 0) cipher->Crypt(in.first(size), std::as_writable_bytes(std::span(text)).data());
  transport::Tag tag;
  std::copy_n(in.begin() + static_cast<ptrdiff_t>(size), tag.size(), tag.begin());
  if (!cipher->IsTag(tag)) return std::nullopt;
  return text;
}

}  // namespace

struct KeyPair::Held {
  explicit Held(EVP_PKEY* key) : key(key) {}
  ~Held() { EVP_PKEY_free(key); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  EVP_PKEY* const key;
};

KeyPair::KeyPair()
    : held_(std::make_unique<Held>(EVP_PKEY_Q_keygen(nullptr, nullptr, "X25519"))),
      public_key_(kPublicKeyBytes, '\0') {
  TALWEG_CHECK(held_->key != nullptr);
  size_t size = public_key_.size();
  TALWEG_CHECK(EVP_PKEY_get_raw_public_key(
                   held_->key, reinterpret_cast<unsigned char*>(public_key_.data()), &size) == 1);
  TALWEG_CHECK(size == kPublicKeyBytes);
}

KeyPair::~KeyPair() = default;

std::optional<DataKey> KeyPair::SharedWith(std::string_view peer) const {
  if (peer.size() != kPublicKeyBytes) return std::nullopt;
  const Held theirs(EVP_PKEY_new_raw_public_key(
      EVP_PKEY_X25519, nullptr, reinterpret_cast<const unsigned char*>(peer.data()), peer.size()));
  if (theirs.key == nullptr) return std::nullopt;
  struct ContextFreer {
    void operator()(EVP_PKEY_CTX* context) const { EVP_PKEY_CTX_free(context); }
  };
  const std::unique_ptr<EVP_PKEY_CTX, ContextFreer> context(EVP_PKEY_CTX_new(held_->key, nullptr));
  TALWEG_CHECK(context != nullptr);
  TALWEG_CHECK(EVP_PKEY_derive_init(context.get()) == 1);
  DataKey shared;
  size_t size = shared.size();
  // OpenSSL refuses a point of small order, with which the secret would be zeros.
  if (EVP_PKEY_derive_set_peer(context.get(), theirs.key) != 1 ||
      EVP_PKEY_derive(context.get(), reinterpret_cast<unsigned char*>(shared.data()), &size) != 1 ||
      size != shared.size()) {
    return std::nullopt;
  }
  return shared;
}

Answers::Answers(const DataKey& session, uint64_t count, std::string_view salt) {
  transport::ByteWriter bytes;
  bytes.Number(count);
  bytes.Text(salt);
  key_ = Derived(session, bytes.bytes(), kAnswerKey);
}

std::string Answers::Seal(std::string_view text) { return Sealed(key_, number_++, "", text); }

std::optional<std::string> Answers::Open(std::string_view sealed) {
  return Opened(key_, number_++, "", sealed);
}

SealedSession::SealedSession(std::string_view job_secret, const DataKey& shared,
                             std::string_view caller, std::string_view daemon) {
  // Both go in: who knows the job secret alone cannot read what others say, and who has one of the
  // two private keys, and not the job secret, can say nothing.
  const DataKey secret = Derived(Bytes(job_secret), {}, kSecretKey);
  std::array<std::byte, 2 * sizeof(DataKey)> both;
  std::copy(secret.begin(), secret.end(), both.begin());
  std::copy(shared.begin(), shared.end(), both.begin() + secret.size());
  transport::ByteWriter salt;
  salt.Text(caller);
  salt.Text(daemon);
  key_ = Derived(both, salt.bytes(), kSessionKey);
  OPENSSL_cleanse(both.data(), both.size());
}

std::string SealedSession::SealCall(uint64_t count, std::string_view method,
                                    std::string_view text) const {
  return Sealed(CallKey(key_, count), 0, method, text);
}

std::optional<std::string> SealedSession::OpenCall(uint64_t count, std::string_view method,
                                                   std::string_view sealed) const {
  return Opened(CallKey(key_, count), 0, method, sealed);
}

std::string NameOf(Daemon daemon) { return daemon == Daemon::kScheduler ? "scheduler" : "agent"; }

std::string DaemonProof(std::string_view job_secret, const Greeting& greeting) {
  const DataKey key = Derived(Bytes(job_secret), {}, kProofKey);
  const std::string_view label =
      greeting.daemon == Daemon::kScheduler ? kSchedulerProof : kAgentProof;
  const transport::Digest proof = transport::Hmac(
      key,
      {Bytes(label), Bytes(greeting.caller), Bytes(greeting.nonce), Bytes(greeting.public_key)});
  return {reinterpret_cast<const char*>(proof.data()), proof.size()};
}

bool IsDaemonProof(std::string_view proof, std::string_view job_secret, const Greeting& greeting) {
  // All have fixed lengths, so no two sets of them are the same bytes.
  if (greeting.public_key.size() != kPublicKeyBytes) return false;
  return transport::SameBytes(Bytes(proof), Bytes(DaemonProof(job_secret, greeting)));
}

bool CallBook::Note(uint64_t count, Seen* seen) {
  if (count > seen->latest) {
    const uint64_t shift = count - seen->latest;
    seen->before = (shift < kOrderMax ? seen->before << shift : 0) | 1;
    seen->latest = count;
    return true;
  }
  const uint64_t back = seen->latest - count;
  if (back >= kOrderMax) return false;
  const uint64_t bit = uint64_t{1} << back;
  if ((seen->before & bit) != 0) return false;
  seen->before |= bit;
  return true;
}

bool CallBook::Take(const std::string& caller, uint64_t count) {
  auto found = latest_.find(caller);
  if (found == latest_.end()) {
    if (latest_.size() >= kCallersMax / 2) older_ = std::exchange(latest_, {});
    const auto older = older_.find(caller);
    found = latest_.emplace(caller, older == older_.end() ? Seen{} : older->second).first;
    if (older != older_.end()) older_.erase(older);
  }
  return Note(count, &found->second);
}

}  // namespace talweg::rpc
