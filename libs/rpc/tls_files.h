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

// The files' contents.
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
  int64_t expires_unix_s = INT64_MAX;  // When tls.crt or the authority expires, whichever is first.
  std::string expires_first;           // The file of that one.
  int64_t revoked_until_unix_s = INT64_MAX;  // When the first of the lists should be renewed.
  // The contents that were checked: the files may change later.
  TlsTexts texts;
};

// Finds and checks the files: they can be read; only owner and group may read the key; the key fits
// the certificate; an authority has signed the certificate; it names an identity and is valid now;
// an authority has signed each list of revoked certificates. The error names the file and the
// remedy.
absl::StatusOr<TlsFiles> CheckTlsFiles(const std::string& directory);

// FAILED_PRECONDITION: the lists revoke the files' own certificate. Peers' certificates may still
// be judged by these files.
absl::Status CheckNotRevoked(const TlsFiles& files);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_TLS_FILES_H_
