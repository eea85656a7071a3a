// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/proof/data_key.h"

#include <openssl/crypto.h>
#include <sys/random.h>

#include <algorithm>
#include <charconv>

#include "libs/base/check.h"
#include "libs/base/shown_address.h"
#include "libs/transport/proof/digest.h"

namespace talweg::transport {
namespace {

constexpr std::string_view kScheme = "tcp://";
constexpr char kSeedMark = 's';  // Not a digit of a number or a key.
constexpr std::string_view kDigits = "0123456789abcdef";

std::string Hex(const DataKey& key) {
  std::string text;
  for (const std::byte byte : key) {
    text += kDigits[static_cast<size_t>(byte >> 4)];
    text += kDigits[static_cast<size_t>(byte & std::byte{15})];
  }
  return text;
}

bool ParseHex(std::string_view text, DataKey* key) {
  if (text.size() != 2 * key->size()) return false;
  for (size_t i = 0; i < key->size(); ++i) {
    const size_t high = kDigits.find(text[2 * i]);
    const size_t low = kDigits.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) return false;
    (*key)[i] = static_cast<std::byte>(high << 4 | low);
  }
  return true;
}

// Takes "<number>." off the front of `text`.
template <typename Id>
bool TakeNumber(std::string_view* text, Id* id) {
  typename Id::Value value = 0;
  const size_t dot = text->find('.');
  if (dot == std::string_view::npos) return false;
  const char* const end = text->data() + dot;
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || stop != end) return false;
  *id = Id(value);
  text->remove_prefix(dot + 1);
  return true;
}

// Returns where the key begins in one address of any transport, or npos if it has none.
size_t KeyPlace(std::string_view address) {
  if (address.starts_with("local:")) {
    const size_t mark = address.rfind(kLocalKeyMark);
    return mark == std::string_view::npos ? mark : mark + 1;
  }
  const size_t host = address.find("://");
  if (host == std::string_view::npos) return std::string_view::npos;
  const size_t slash = address.rfind('/');
  return slash < host + 3 ? std::string_view::npos : slash + 1;
}

// Derives a member's key as a listener of an older release does.
DataKey OlderMemberKey(const DataKey& listener, const PeerIdentity& identity) {
  ByteWriter claim;
  claim.Text("talweg data key");
  WriteIdentity(identity, &claim);
  return DataKey(Hmac(listener, {claim.bytes()}));
}

// Applies `change` to each of the addresses that commas join.
template <typename Change>
std::string EachAddress(const std::string& data_address, const Change& change) {
  std::string result;
  for (size_t begin = 0; begin < data_address.size();) {
    const size_t end = std::min(data_address.find(',', begin), data_address.size());
    result += (result.empty() ? "" : ",") + change(data_address.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

std::string ForMember(const std::string& address, const PeerIdentity& identity, bool as_seed) {
  const size_t place = KeyPlace(address);
  if (place == std::string::npos) return address;
  std::optional<AddressKey> key = ParseAddressKey(std::string_view(address).substr(place));
  const bool is_tcp = address.starts_with(kScheme);
  if (is_tcp && !ParseTcpAddress(address).ok()) key.reset();
  if (!key && !is_tcp) return address;  // An older release's address.
  // Shows no key that would open anything.
  if (!key || key->identity) return ShownAddress(address);
  if (!key->is_seed) {
    key->key = OlderMemberKey(key->key, identity);
  } else {
    key->key = as_seed ? MemberSeed(key->key, identity) : MemberKey(key->key, identity);
    key->is_seed = as_seed;
  }
  key->identity = identity;
  return address.substr(0, place) + key->ToString();
}

}  // namespace

const char* DataSecurityName(DataSecurity security) {
  switch (security) {
    case DataSecurity::kNone: return "none";
    case DataSecurity::kKeyed: return "keyed";
    case DataSecurity::kTls: return "tls";
  }
  return "unknown";
}

std::optional<DataSecurity> DataSecurityNamed(std::string_view name) {
  for (const DataSecurity each : {DataSecurity::kNone, DataSecurity::kKeyed, DataSecurity::kTls}) {
    if (name == DataSecurityName(each)) return each;
  }
  return std::nullopt;
}

DataKey::DataKey(std::array<std::byte, 32>&& made) : array(made) {
  OPENSSL_cleanse(made.data(), made.size());
}

DataKey::~DataKey() { OPENSSL_cleanse(data(), size()); }

DataKey NewDataKey() {
  DataKey key;
  // getrandom is never short for so few bytes. It fails only where the call does not exist.
  TALWEG_CHECK(getrandom(key.data(), key.size(), 0) == static_cast<ssize_t>(key.size()));
  return key;
}

DataKey MemberSeed(const DataKey& listener, const PeerIdentity& identity) {
  PeerIdentity member = identity;
  member.epoch = Epoch{};
  ByteWriter claim;
  claim.Text("talweg data seed");
  WriteIdentity(member, &claim);
  return DataKey(Hmac(listener, {claim.bytes()}));
}

DataKey KeyInEpoch(const DataKey& seed, Epoch epoch) {
  ByteWriter claim;
  claim.Text("talweg data key");
  claim.Number(epoch.value());
  return DataKey(Hmac(seed, {claim.bytes()}));
}

DataKey MemberKey(const DataKey& listener, const PeerIdentity& identity) {
  return KeyInEpoch(MemberSeed(listener, identity), identity.epoch);
}

DataKey KeyFor(const DataKey& key, std::string_view use) {
  DataKey made;
  Hkdf(key, {}, use, made);
  return made;
}

std::string AddressKey::ToString() const {
  std::string text(is_seed ? 1 : 0, kSeedMark);
  if (identity) {
    text += std::to_string(identity->job.value()) + "." + std::to_string(identity->epoch.value()) +
            "." + std::to_string(identity->node.value()) + "." +
            std::to_string(identity->incarnation.value()) + ".";
  }
  return text + Hex(key);
}

std::optional<AddressKey> ParseAddressKey(std::string_view text) {
  AddressKey parsed;
  parsed.is_seed = text.starts_with(kSeedMark);
  if (parsed.is_seed) text.remove_prefix(1);
  if (text.find('.') != std::string_view::npos) {
    PeerIdentity& identity = parsed.identity.emplace();
    if (!TakeNumber(&text, &identity.job) || !TakeNumber(&text, &identity.epoch) ||
        !TakeNumber(&text, &identity.node) || !TakeNumber(&text, &identity.incarnation)) {
      return std::nullopt;
    }
  }
  if (!ParseHex(text, &parsed.key)) return std::nullopt;
  return parsed;
}

std::string TcpAddress::ToString() const {
  return std::string(kScheme) + host_port + "/" + DataSecurityName(security) + "/" + key.ToString();
}

absl::StatusOr<TcpAddress> ParseTcpAddress(const std::string& address) {
  TcpAddress parsed;
  std::string_view text = address;
  bool valid = text.starts_with(kScheme);
  if (valid) {
    text.remove_prefix(kScheme.size());
    const size_t first = text.find('/');
    const size_t second = first == std::string_view::npos ? first : text.find('/', first + 1);
    valid = second != std::string_view::npos;
    if (valid) {
      parsed.host_port = text.substr(0, first);
      const auto security = DataSecurityNamed(text.substr(first + 1, second - first - 1));
      parsed.security = security.value_or(DataSecurity::kNone);
      const std::optional<AddressKey> key = ParseAddressKey(text.substr(second + 1));
      valid = security.has_value() && key.has_value();
      if (valid) parsed.key = *key;
    }
  }
  if (valid) return parsed;
  return absl::InvalidArgumentError(
      "'" + ShownAddress(address) +
      "' is not an address of Talweg's TCP: expected tcp://<host>:<port>/<data_security>/<key>, "
      "which "
      "the scheduler gives to members; what people are shown lacks the key");
}

std::string AddressForMember(const std::string& data_address, const PeerIdentity& identity) {
  return EachAddress(data_address, [&identity](const std::string& address) {
    return ForMember(address, identity, /*as_seed=*/false);
  });
}

std::string SeedAddressForMember(const std::string& data_address, const PeerIdentity& identity) {
  return EachAddress(data_address, [&identity](const std::string& address) {
    return ForMember(address, identity, /*as_seed=*/true);
  });
}

bool HasSeeds(const std::string& data_address) {
  bool has_seeds = true;
  EachAddress(data_address, [&has_seeds](const std::string& address) {
    const size_t place = KeyPlace(address);
    if (place == std::string::npos) return address;
    const std::optional<AddressKey> key = ParseAddressKey(std::string_view(address).substr(place));
    has_seeds = has_seeds && (!key || key->is_seed);
    return address;
  });
  return has_seeds;
}

std::string AddressInEpoch(const std::string& data_address, Epoch epoch) {
  return EachAddress(data_address, [epoch](const std::string& address) {
    const size_t place = KeyPlace(address);
    if (place == std::string::npos) return address;
    std::optional<AddressKey> key = ParseAddressKey(std::string_view(address).substr(place));
    if (!key || !key->identity || !key->is_seed) return address;
    key->key = KeyInEpoch(key->key, epoch);
    key->identity->epoch = epoch;
    key->is_seed = false;
    return address.substr(0, place) + key->ToString();
  });
}

std::string SecurityOf(const std::string& data_address) {
  const std::string network = SelectAddress(data_address, /*same_host=*/false);
  if (network.empty()) return "";
  const absl::StatusOr<TcpAddress> parsed = ParseTcpAddress(network);
  return DataSecurityName(parsed.ok() ? parsed->security : DataSecurity::kNone);
}

}  // namespace talweg::transport
