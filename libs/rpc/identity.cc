// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/identity.h"

#include <array>
#include <utility>

namespace talweg::rpc {
namespace {

struct RoleRow {
  Role role;
  std::string_view name;
  bool has_name;  // Whether the role needs a name.
};
constexpr std::array kRoles = {
    RoleRow{Role::kScheduler, "scheduler", false},
    RoleRow{Role::kAggregator, "aggregator", true},
    RoleRow{Role::kNode, "node", true},
    RoleRow{Role::kOperator, "operator", false},
    RoleRow{Role::kViewer, "viewer", false},
};

constexpr std::string_view kScheme = "spiffe://";
constexpr std::string_view kPath = "/talweg/";
constexpr std::string_view kHexDigits = "0123456789ABCDEF";

bool IsUnreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_';
}

std::string Encode(std::string_view name) {
  std::string text;
  for (const char c : name) {
    if (IsUnreserved(c)) {
      text += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      text += '%';
      text += kHexDigits[byte >> 4];
      text += kHexDigits[byte & 15];
    }
  }
  return text;
}

std::optional<std::string> Decode(std::string_view text) {
  std::string name;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      if (!IsUnreserved(text[i])) return std::nullopt;
      name += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const size_t high = kHexDigits.find(text[i + 1]);
    const size_t low = kHexDigits.find(text[i + 2]);
    if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
    name += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return name;
}

std::optional<Identity> FromParts(std::string_view role, std::optional<std::string> name) {
  for (const RoleRow& row : kRoles) {
    if (row.name != role || row.has_name != name.has_value()) continue;
    if (row.has_name && name->empty()) return std::nullopt;
    return Identity{row.role, name.value_or("")};
  }
  return std::nullopt;
}

}  // namespace

std::string_view RoleName(Role role) {
  for (const RoleRow& row : kRoles) {
    if (row.role == role) return row.name;
  }
  return "unknown";
}

std::string Describe(const Identity& identity) {
  std::string text(RoleName(identity.role));
  if (identity.role == Role::kNode) text += " of job '" + identity.name + "'";
  if (identity.role == Role::kAggregator) text += " '" + identity.name + "'";
  return text;
}

std::optional<Identity> ParseIdentity(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return FromParts(text, std::nullopt);
  return FromParts(text.substr(0, colon), std::string(text.substr(colon + 1)));
}

std::optional<Identity> IdentityOfUri(std::string_view uri) {
  if (!uri.starts_with(kScheme)) return std::nullopt;
  uri.remove_prefix(kScheme.size());
  const size_t path = uri.find('/');
  if (path == 0 || path == std::string_view::npos) return std::nullopt;
  uri.remove_prefix(path);
  if (!uri.starts_with(kPath)) return std::nullopt;
  uri.remove_prefix(kPath.size());
  const size_t slash = uri.find('/');
  if (slash == std::string_view::npos) return FromParts(uri, std::nullopt);
  std::optional<std::string> name = Decode(uri.substr(slash + 1));
  if (!name) return std::nullopt;
  return FromParts(uri.substr(0, slash), std::move(name));
}

std::string UriOf(const Identity& identity, std::string_view trust_domain) {
  std::string uri = std::string(kScheme) + std::string(trust_domain) + std::string(kPath) +
                    std::string(RoleName(identity.role));
  if (!identity.name.empty()) uri += "/" + Encode(identity.name);
  return uri;
}

}  // namespace talweg::rpc
