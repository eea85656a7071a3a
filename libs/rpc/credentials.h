// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_CREDENTIALS_H_
#define TALWEG_LIBS_RPC_CREDENTIALS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "libs/rpc/identity.h"

namespace talweg::rpc {

// Where credentials come from. docs/security.md says how to set them up.
struct CredentialSources {
  std::string tls_directory;  // See tls_files.h. Empty: no TLS.
  // A client shows the text of this file as its bearer token. The file is read for every call, so
  // it may change. Empty: no token.
  std::string token_file;
  // The tokens that a server accepts: see Tokens::Parse. Texts, not files.
  std::string accepted_tokens = {};
  std::string token_keys = {};
  std::string token_audience = {};
  // Called, on a thread of the credentials, with the reason why changed certificates are not used,
  // or why connections end whose peers' certificates are no longer good.
  std::function<void(const std::string& text)> on_warning = {};
};

// What a process shows its peers on TCP connections, and what it demands of them. Reads
// certificates again when their files change, and keeps the old ones while the new ones are
// defective. Ends connections whose peers' certificates are expired or revoked. Not used on Unix
// sockets: the directory's mode decides who may connect.
//
// Immutable; any thread.
class Credentials {
 public:
  // Returns null for no TLS. The error names the file and the remedy.
  static absl::StatusOr<std::shared_ptr<const Credentials>> Load(const CredentialSources& sources);
  ~Credentials();

  // The identity in this process's certificate. nullopt: it has none, and cannot be a server.
  const std::optional<Identity>& identity() const;
  // When the first of its certificates expires.
  int64_t expires_unix_s() const;

 private:
  friend class CredentialsAccess;  // For this library's sources, which may include gRPC's headers.
  struct Impl;
  explicit Credentials(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CREDENTIALS_H_
