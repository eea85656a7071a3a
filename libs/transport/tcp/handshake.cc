// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/handshake.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <string_view>

#include "libs/base/check.h"
#include "libs/transport/proof/digest.h"

namespace talweg::transport {
namespace {

constexpr uint32_t kMagic = 0x4b574c54;  // "TLWK"
constexpr uint8_t kVersion = 1;
constexpr size_t kIdentityOffset = 8;
constexpr size_t kNonceOffset = kIdentityOffset + kIdentityBytes;
constexpr size_t kNonceBytes = 32;
constexpr size_t kHelloMacOffset = kNonceOffset + kNonceBytes;
static_assert(kHelloMacOffset + sizeof(Digest) == kHelloBytes);
static_assert(kNonceBytes + sizeof(Digest) == kAnswerBytes);
static_assert(sizeof(Digest) == kProofBytes);

Digest MacOf(const DataKey& key, std::string_view label,
             std::initializer_list<std::span<const std::byte>> messages) {
  // Messages have fixed sizes and labels of one size, so no two inputs are equal.
  TALWEG_CHECK(label.size() == 13);
  ByteWriter all;
  all.Text(label);
  for (const std::span<const std::byte> message : messages) all.Bytes(message);
  return Hmac(KeyFor(key, "talweg tcp 1 proof"), {all.bytes()});
}

Digest HelloMac(const DataKey& key, std::span<const std::byte> hello) {
  return MacOf(key, "client hello ", {hello.first(kHelloMacOffset)});
}
Digest AnswerMac(const DataKey& key, std::span<const std::byte> hello,
                 std::span<const std::byte> answer) {
  return MacOf(key, "server answer", {hello, answer.first(kNonceBytes)});
}
Digest ProofMac(const DataKey& key, std::span<const std::byte> hello,
                std::span<const std::byte> answer) {
  return MacOf(key, "client proof ", {hello, answer});
}

// Returns the first bytes of a Hello: magic, version, setting, and bytes that must be zero.
std::array<std::byte, kIdentityOffset> Preamble(DataSecurity security) {
  ByteWriter out;
  out.Number(kMagic);
  out.Number(kVersion);
  out.Number(static_cast<uint8_t>(security));
  out.Number(uint16_t{0});
  std::array<std::byte, kIdentityOffset> bytes;
  std::copy_n(out.bytes().begin(), bytes.size(), bytes.begin());
  return bytes;
}

SessionSeals SealsOf(const DataKey& key, const HelloMessage& hello, const AnswerMessage& answer) {
  ByteWriter salt;
  salt.Bytes(std::span(hello).subspan(kNonceOffset, kNonceBytes));
  salt.Bytes(std::span(answer).first(kNonceBytes));
  std::array<std::byte, 2 * sizeof(SealKey)> made;
  Hkdf(key, salt.bytes(), "talweg tcp 1 seal", made);
  SessionSeals seals;
  auto at = made.begin();
  for (SealKey* const seal : {&seals.connecting, &seals.listening}) {
    std::copy_n(at, seal->key.size(), seal->key.begin());
    at += static_cast<ptrdiff_t>(seal->key.size());
    std::copy_n(at, seal->salt.size(), seal->salt.begin());
    at += static_cast<ptrdiff_t>(seal->salt.size());
  }
  OPENSSL_cleanse(made.data(), made.size());
  return seals;
}

}  // namespace

ConnectingHandshake::ConnectingHandshake(const TcpAddress& address)
    : key_(address.key.identity ? address.key.key : MemberKey(address.key.key, {})) {
  ByteWriter out;
  out.Bytes(Preamble(address.security));
  WriteIdentity(address.key.identity.value_or(PeerIdentity{}), &out);
  out.Bytes(NewDataKey());
  std::copy(out.bytes().begin(), out.bytes().end(), hello_.begin());
  const Digest mac = HelloMac(key_, hello_);
  std::copy(mac.begin(), mac.end(), hello_.begin() + kHelloMacOffset);
}

std::optional<ProofMessage> ConnectingHandshake::OnAnswer(const AnswerMessage& answer) {
  if (!SameBytes(AnswerMac(key_, hello_, answer), std::span(answer).subspan(kNonceBytes))) {
    return std::nullopt;
  }
  answer_ = answer;
  return ProofMac(key_, hello_, answer_);
}

SessionSeals ConnectingHandshake::Seals() const { return SealsOf(key_, hello_, answer_); }

DataKey ConnectingHandshake::PreSharedKey() const { return KeyFor(key_, "talweg tcp 1 tls"); }

std::optional<AnswerMessage> ListeningHandshake::OnHello(const HelloMessage& hello) {
  const std::span<const std::byte, kHelloBytes> bytes(hello);
  const auto identity = ReadIdentity(bytes.subspan<kIdentityOffset, kIdentityBytes>());
  if (!identity || !std::ranges::equal(bytes.first<kIdentityOffset>(), Preamble(security_))) {
    return std::nullopt;
  }
  key_ = MemberKey(listener_, *identity);
  if (!SameBytes(HelloMac(key_, hello), bytes.subspan(kHelloMacOffset))) return std::nullopt;
  identity_ = *identity;
  hello_ = hello;
  const DataKey nonce = NewDataKey();
  std::copy(nonce.begin(), nonce.end(), answer_.begin());
  const Digest mac = AnswerMac(key_, hello_, answer_);
  std::copy(mac.begin(), mac.end(), answer_.begin() + kNonceBytes);
  return answer_;
}

bool ListeningHandshake::OnProof(const ProofMessage& proof) const {
  return SameBytes(ProofMac(key_, hello_, answer_), proof);
}

SessionSeals ListeningHandshake::Seals() const { return SealsOf(key_, hello_, answer_); }

DataKey ListeningHandshake::PreSharedKey() const { return KeyFor(key_, "talweg tcp 1 tls"); }

}  // namespace talweg::transport
