// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/proof/connect_token.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "libs/transport/proof/digest.h"

namespace talweg::transport {
namespace {

constexpr uint32_t kMagic = 0x46574c54;  // "TLWF"
// Version 1 had 16 bytes: a number that all members knew.
constexpr uint8_t kVersion = 2;
constexpr size_t kMacBytes = 16;
constexpr size_t kMacOffset = kConnectTokenBytes - kMacBytes;
static_assert(kMacOffset == 4 + 1 + 8 + 8 + 4 + 8 + 4);

void WriteMac(const DataKey& member_key, std::string_view use, std::span<const std::byte> message,
              std::byte* to) {
  const Digest mac = Hmac(KeyFor(member_key, use), {message});
  std::copy_n(mac.begin(), kMacBytes, to);
}

}  // namespace

ConnectToken MakeConnectToken(const DataKey& member_key, const TokenClaim& claim) {
  ByteWriter out;
  out.Number(kMagic);
  out.Number(kVersion);
  out.Number(claim.identity.job.value());
  out.Number(claim.identity.epoch.value());
  out.Number(claim.identity.node.value());
  out.Number(claim.identity.incarnation.value());
  out.Number(claim.count);
  ConnectToken token;
  std::copy(out.bytes().begin(), out.bytes().end(), token.begin());
  WriteMac(member_key, "talweg connect 2 token", out.bytes(), token.data() + kMacOffset);
  return token;
}

std::optional<TokenClaim> CheckConnectToken(const DataKey& listener,
                                            std::span<const std::byte> said) {
  if (said.size() < kConnectTokenBytes) return std::nullopt;
  if (NumberAt(said, 0, 4) != kMagic || NumberAt(said, 4, 1) != kVersion) return std::nullopt;
  const TokenClaim claim = {
      .identity = {.job = JobId(NumberAt(said, 5, 8)),
                   .epoch = Epoch(NumberAt(said, 13, 8)),
                   .node = NodeRank(static_cast<uint32_t>(NumberAt(said, 21, 4))),
                   .incarnation = Incarnation(NumberAt(said, 25, 8))},
      .count = static_cast<uint32_t>(NumberAt(said, 33, 4))};
  const ConnectToken right = MakeConnectToken(MemberKey(listener, claim.identity), claim);
  if (!SameBytes(right, said.first(kConnectTokenBytes))) return std::nullopt;
  return claim;
}

ConnectAnswer AnswerTo(const DataKey& member_key, const ConnectToken& token) {
  ConnectAnswer answer;
  WriteMac(member_key, "talweg connect 2 answer", token, answer.data());
  return answer;
}

TokenMaker::TokenMaker() { nobody_.incarnation = Incarnation(NumberAt(NewDataKey(), 0, 8)); }

TokenMaker::Made TokenMaker::Next(const AddressKey& key) {
  const PeerIdentity self = key.identity.value_or(nobody_);
  const DataKey own = key.identity ? key.key : MemberKey(key.key, self);
  const ConnectToken token = MakeConnectToken(own, {.identity = self, .count = ++count_});
  return {.token = token, .answer = AnswerTo(own, token)};
}

absl::StatusOr<TokenGate::Entry> TokenGate::Enter(std::span<const std::byte> said) {
  const std::optional<TokenClaim> claim = CheckConnectToken(listener_, said);
  if (!claim) {
    return absl::UnauthenticatedError(
        "the token was not made with a key of this listener's, which the scheduler gives to "
        "members");
  }
  const std::string why = admission_ ? admission_(claim->identity) : "";
  if (!why.empty()) return absl::FailedPreconditionError(why);
  if (!book_.Take(*claim, admission_)) {
    return absl::PermissionDeniedError("the token was used before, or is late");
  }
  ConnectToken token;
  std::copy_n(said.begin(), token.size(), token.begin());
  return Entry{.identity = claim->identity,
               .answer = AnswerTo(MemberKey(listener_, claim->identity), token)};
}

}  // namespace talweg::transport
