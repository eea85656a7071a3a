// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/data_key.h"

#include <sys/random.h>

#include <algorithm>
#include <charconv>

#include "libs/base/check.h"
#include "libs/base/shown_address.h"
#include "libs/transport/tcp/digest.h"

namespace talweg::transport {
namespace {

constexpr std::string_view kScheme = "tcp://";
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

// "<listener key>" or "<job>.<epoch>.<node>.<incarnation>.<member key>".
bool ParseKey(std::string_view text, TcpAddress* address) {
  if (text.find('.') != std::string_view::npos) {
    PeerIdentity& identity = address->identity.emplace();
    if (!TakeNumber(&text, &identity.job) || !TakeNumber(&text, &identity.epoch) ||
        !TakeNumber(&text, &identity.node) || !TakeNumber(&text, &identity.incarnation)) {
      return false;
    }
  }
  return ParseHex(text, &address->key);
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

DataKey NewDataKey() {
  DataKey key;
  // getrandom is never short for so few bytes. It fails only where the call does not exist.
  TALWEG_CHECK(getrandom(key.data(), key.size(), 0) == static_cast<ssize_t>(key.size()));
  return key;
}

DataKey MemberKey(const DataKey& listener, const PeerIdentity& identity) {
  ByteWriter claim;
  claim.Text("talweg data key");
  WriteIdentity(identity, &claim);
  return Hmac(listener, {claim.bytes()});
}

std::string TcpAddress::ToString() const {
  std::string text = std::string(kScheme) + host_port + "/" + DataSecurityName(security) + "/";
  if (identity) {
    text += std::to_string(identity->job.value()) + "." + std::to_string(identity->epoch.value()) +
            "." + std::to_string(identity->node.value()) + "." +
            std::to_string(identity->incarnation.value()) + ".";
  }
  return text + Hex(key);
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
      valid = security.has_value() && ParseKey(text.substr(second + 1), &parsed);
    }
  }
  if (valid) return parsed;
  return absl::InvalidArgumentError(
      "'" + ShownAddress(address) +
      "' is no address of Talweg's TCP: expected tcp://<host>:<port>/<data_security>/<key>, which "
      "the scheduler gives to members; what people are shown lacks the key");
}

std::string AddressForMember(const std::string& data_address, const PeerIdentity& identity) {
  std::string result;
  for (size_t begin = 0; begin < data_address.size();) {
    const size_t end = std::min(data_address.find(',', begin), data_address.size());
    std::string part = data_address.substr(begin, end - begin);
    if (part.starts_with(kScheme)) {
      absl::StatusOr<TcpAddress> parsed = ParseTcpAddress(part);
      if (parsed.ok() && !parsed->identity) {
        parsed->key = MemberKey(parsed->key, identity);
        parsed->identity = identity;
        part = parsed->ToString();
      } else {
        part = ShownAddress(part);  // Nothing that it could open.
      }
    }
    result += (result.empty() ? "" : ",") + part;
    begin = end + 1;
  }
  return result;
}

std::string SecurityOf(const std::string& data_address) {
  const std::string network = SelectAddress(data_address, /*same_host=*/false);
  if (network.empty()) return "";
  const absl::StatusOr<TcpAddress> parsed = ParseTcpAddress(network);
  return DataSecurityName(parsed.ok() ? parsed->security : DataSecurity::kNone);
}

}  // namespace talweg::transport
