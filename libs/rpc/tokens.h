// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_TOKENS_H_
#define TALWEG_LIBS_RPC_TOKENS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "libs/membership/records.h"
#include "libs/rpc/identity.h"

// The bearer tokens that a daemon accepts: texts from a file, and Kubernetes' service-account
// tokens (JSON Web Tokens, RFC 7519), which the cluster's API server signs.
namespace talweg::rpc {

// The public keys of a JSON Web Key Set (RFC 7517): RSA keys for RS256, P-256 keys for ES256. A
// cluster publishes its own at /openid/v1/jwks.
class WebKeys {
 public:
  // INVALID_ARGUMENT: not a key set, or one without a supported key.
  static absl::StatusOr<WebKeys> Parse(const std::string& json);
  WebKeys(WebKeys&&) noexcept;
  WebKeys& operator=(WebKeys&&) noexcept;
  ~WebKeys();

  // Returns whether one of the keys has signed `text`. `key_id` selects the key; "" if unknown.
  bool Verify(std::string_view algorithm, std::string_view key_id, std::string_view text,
              std::string_view signature) const;

 private:
  struct Key;
  WebKeys();
  std::vector<Key> keys_;
};

// Returns what a client shows to `server` in place of `token`, so that `server` cannot use it
// anywhere else: only daemons of that identity accept it. Returns nullopt if no such form exists: a
// daemon cannot check one of a service-account token. The scheduler gets the token itself, and an
// aggregator a service account's.
std::optional<std::string> TokenFor(const Identity& server, const std::string& token);

class Tokens {
 public:
  // `table` has one line for each token; '#' begins a comment:
  //
  //   viewer          token            1b7f...   (at least 32 bytes without spaces)
  //   operator        service-account  monitoring:talweg-admin
  //   node:resnet     service-account  training:worker
  //
  // Service accounts need `keys` (a key set), and `audience` must be among a token's audiences. The
  // error names the line and the problem.
  static absl::StatusOr<Tokens> Parse(const std::string& table, const std::string& keys,
                                      const std::string& audience);

  // Returns the identity of a token at the time `unix_s`, or of what TokenFor(`self`) made of one;
  // `self` is the daemon's own identity. UNAUTHENTICATED says why the token is not accepted,
  // without a byte of it.
  absl::StatusOr<Identity> Check(std::string_view token, const std::optional<Identity>& self,
                                 int64_t unix_s) const;

  bool empty() const { return texts_.empty() && accounts_.empty(); }

 private:
  struct Text {
    membership::SecretHash hash;
    Identity identity;
  };
  struct Account {
    std::string subject;  // As Kubernetes writes it: system:serviceaccount:NAMESPACE:NAME.
    Identity identity;
  };

  absl::StatusOr<Identity> CheckWebToken(std::string_view token, int64_t unix_s) const;

  std::vector<Text> texts_;
  std::vector<Account> accounts_;
  std::optional<WebKeys> keys_;
  std::string audience_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_TOKENS_H_
