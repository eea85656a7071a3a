// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/tokens.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>

#include <google/protobuf/struct.pb.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "libs/base/counted.h"
#include "libs/rpc/secret.h"
#include "libs/status/status.h"

namespace talweg::rpc {
namespace {

constexpr size_t kTokenBytesMin = 32;
constexpr size_t kTokenBytesMax = 16 * 1024;
// Allows for small differences between a cluster's clocks.
constexpr double kClockSlackS = 30;
constexpr char kSubjectPrefix[] = "system:serviceaccount:";

// Returns one of a token's parts as a JSON object.
std::optional<google::protobuf::Struct> Object(const std::string& base64) {
  std::string json;
  google::protobuf::Struct object;
  if (!absl::WebSafeBase64Unescape(base64, &json) ||
      !google::protobuf::util::JsonStringToMessage(json, &object).ok()) {
    return std::nullopt;
  }
  return object;
}

const google::protobuf::Value* Find(const google::protobuf::Struct& object,
                                    const std::string& name) {
  const auto field = object.fields().find(name);
  return field == object.fields().end() ? nullptr : &field->second;
}

std::string TextOf(const google::protobuf::Struct& object, const std::string& name) {
  const google::protobuf::Value* value = Find(object, name);
  return value == nullptr ? "" : value->string_value();
}

bool IsFor(const google::protobuf::Struct& claims, const std::string& audience) {
  const google::protobuf::Value* value = Find(claims, "aud");
  if (value == nullptr) return false;
  if (value->string_value() == audience) return true;
  for (const google::protobuf::Value& each : value->list_value().values()) {
    if (each.string_value() == audience) return true;
  }
  return false;
}

// Each begins with a JSON object in base64.
bool IsWebToken(std::string_view token) {
  return token.starts_with("eyJ") && std::count(token.begin(), token.end(), '.') == 2;
}

// Derives from a token's hash, which is all that a daemon keeps of it.
std::string TokenForServer(const Identity& server, const membership::SecretHash& token) {
  const auto in_hex = [](const membership::SecretHash& hash) {
    return absl::BytesToHexString(
        {reinterpret_cast<const char*>(hash.bytes.data()), hash.bytes.size()});
  };
  return in_hex(HashOf(absl::StrCat("talweg token for ", std::string(RoleName(server.role)), ":",
                                    server.name, "\n", in_hex(token))));
}

}  // namespace

std::optional<std::string> TokenFor(const Identity& server, const std::string& token) {
  if (server.role == Role::kScheduler) return token;
  if (!IsWebToken(token)) return TokenForServer(server, HashOf(token));
  if (server.role == Role::kAggregator) return token;
  return std::nullopt;
}

absl::StatusOr<Tokens> Tokens::Parse(const std::string& table, const std::string& keys,
                                     const std::string& audience) {
  Tokens tokens;
  tokens.audience_ = audience;
  if (!keys.empty()) {
    TALWEG_ASSIGN_OR_RETURN(tokens.keys_, WebKeys::Parse(keys));
  }
  int number = 0;
  const std::vector<std::string> lines = absl::StrSplit(table, '\n');
  for (const std::string& line : lines) {
    ++number;
    const std::vector<std::string> words =
        absl::StrSplit(line.substr(0, line.find('#')), absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
    if (words.empty()) continue;
    const auto wrong = [number](const std::string& what) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " of the tokens file ", what,
                       "; a line is ROLE token TEXT or ROLE service-account NAMESPACE:NAME"));
    };
    if (words.size() != 3) return wrong(absl::StrCat("has ", Counted(words.size(), "word")));
    const std::optional<Identity> identity = ParseIdentity(words[0]);
    if (!identity) {
      return wrong(
          absl::StrCat("begins with '", words[0],
                       "', which is not one of operator, viewer, node:JOB, aggregator:NAME"));
    }
    if (words[1] == "token") {
      if (words[2].size() < kTokenBytesMin) {
        return wrong(absl::StrCat("has a token of ", Counted(words[2].size(), "byte"),
                                  "; it must have ", kTokenBytesMin, " or more"));
      }
      tokens.texts_.push_back({HashOf(words[2]), *identity});
    } else if (words[1] == "service-account") {
      if (!tokens.keys_ || audience.empty()) {
        return wrong("names a service account, which needs token_keys_file and token_audience");
      }
      tokens.accounts_.push_back({absl::StrCat(kSubjectPrefix, words[2]), *identity});
    } else {
      return wrong(absl::StrCat("has '", words[1], "' for its second word"));
    }
  }
  return tokens;
}

absl::StatusOr<Identity> Tokens::Check(std::string_view token, const std::optional<Identity>& self,
                                       int64_t unix_s) const {
  if (token.size() > kTokenBytesMax) {
    return absl::UnauthenticatedError(
        absl::StrCat("the token is longer than ", kTokenBytesMax, " bytes"));
  }
  const membership::SecretHash hash = HashOf(token);
  for (const Text& text : texts_) {
    if (membership::SameSecret(text.hash, hash)) return text.identity;
    if (self && membership::SameSecret(HashOf(TokenForServer(*self, text.hash)), hash)) {
      return text.identity;
    }
  }
  return CheckWebToken(token, unix_s);
}

absl::StatusOr<Identity> Tokens::CheckWebToken(std::string_view token, int64_t unix_s) const {
  const std::vector<std::string> parts = absl::StrSplit(std::string(token), '.');
  std::string signature;
  if (!keys_ || parts.size() != 3 || !absl::WebSafeBase64Unescape(parts[2], &signature)) {
    return absl::UnauthenticatedError("the token is not in the daemon's tokens_file");
  }
  const std::optional<google::protobuf::Struct> header = Object(parts[0]);
  const std::string_view signed_text = token.substr(0, parts[0].size() + 1 + parts[1].size());
  if (!header ||
      !keys_->Verify(TextOf(*header, "alg"), TextOf(*header, "kid"), signed_text, signature)) {
    return absl::UnauthenticatedError("no key of token_keys_file has signed the token");
  }
  const std::optional<google::protobuf::Struct> claims = Object(parts[1]);
  if (!claims) return absl::UnauthenticatedError("the token's claims are not a JSON object");
  const google::protobuf::Value* expires = Find(*claims, "exp");
  const google::protobuf::Value* begins = Find(*claims, "nbf");
  const auto now_s = static_cast<double>(unix_s);
  if (expires == nullptr || now_s > expires->number_value() + kClockSlackS) {
    return absl::UnauthenticatedError("the token has expired, or does not say when it does");
  }
  if (begins != nullptr && now_s < begins->number_value() - kClockSlackS) {
    return absl::UnauthenticatedError("the token is not valid yet");
  }
  if (!IsFor(*claims, audience_)) {
    return absl::UnauthenticatedError(
        absl::StrCat("the token is not for the audience '", audience_, "'"));
  }
  const std::string subject = TextOf(*claims, "sub");
  for (const Account& account : accounts_) {
    if (account.subject == subject) return account.identity;
  }
  return absl::UnauthenticatedError(
      absl::StrCat("the token is that of '", subject, "', which tokens_file does not name"));
}

}  // namespace talweg::rpc
