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

// Where they come from. docs/security.md tells people how to set them up.
struct CredentialSources {
  std::string tls_directory;  // See tls_files.h. Empty: no TLS.
  // A client shows the text of this file as its bearer token. It is read for every call, so that
  // it may change. Empty: none.
  std::string token_file;
  // What a server accepts, see Tokens::Parse. Texts, not files.
  std::string accepted_tokens = {};
  std::string token_keys = {};
  std::string token_audience = {};
  // Is told, on a thread of the credentials, why certificates that have changed are not used, and
  // which connections end since their peers' certificates are not good any more.
  std::function<void(const std::string& text)> on_warning = {};
};

// What a process shows its peers on TCP connections, and what it demands of them. Certificates are
// read anew when their files change; while the new ones are defective, those before are used.
// Connections end when their peers' certificates are over or revoked. On Unix sockets nothing of
// this is used: the directory's mode says who may connect.
//
// Immutable; any thread.
class Credentials {
 public:
  // The error names the file and the remedy. A null pointer: no TLS.
  static absl::StatusOr<std::shared_ptr<const Credentials>> Load(const CredentialSources& sources);
  ~Credentials();

  // What this process's certificate says; nullopt: it shows none, and can serve nobody.
  const std::optional<Identity>& identity() const;
  // When the first of its certificates ends.
  int64_t expires_unix_s() const;

 private:
  friend class CredentialsAccess;  // For this library's sources, which may include gRPC's headers.
  struct Impl;
  explicit Credentials(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CREDENTIALS_H_
