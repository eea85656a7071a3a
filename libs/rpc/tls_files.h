// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_TLS_FILES_H_
#define TALWEG_LIBS_RPC_TLS_FILES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "libs/rpc/identity.h"

// A directory with certificates, under the names that Kubernetes gives them in a TLS secret.
namespace talweg::rpc {

// What is in them.
struct TlsTexts {
  std::string authority;
  std::string certificate;
  std::string key;
  std::string revoked;

  friend bool operator==(const TlsTexts&, const TlsTexts&) = default;
};

struct TlsFiles {
  std::string authority;               // ca.crt: the certificate authorities that are trusted.
  std::string certificate;             // tls.crt, or "": this process shows no certificate.
  std::string key;                     // tls.key, as above.
  std::string revoked;                 // ca.crl: lists of revoked certificates, or "": none.
  std::optional<Identity> identity;    // What tls.crt says.
  int64_t expires_unix_s = INT64_MAX;  // When tls.crt or the authority ends, whichever is first.
  std::string expires_first;           // The file of that one.
  int64_t revoked_until_unix_s = INT64_MAX;  // When the first of the lists should be renewed.
  TlsTexts texts;                            // What was checked: the files may change meanwhile.
};

// Finds and checks them: they can be read, nobody but owner and group may read the key, the key
// fits the certificate, an authority has signed it, it names an identity, and it is valid now. An
// authority has signed each list of revoked certificates. The error names the file and the remedy.
absl::StatusOr<TlsFiles> CheckTlsFiles(const std::string& directory);

// FAILED_PRECONDITION: they revoke their own certificate. Others' may still be judged by them.
absl::Status CheckNotRevoked(const TlsFiles& files);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_TLS_FILES_H_
