// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_MAKE_CERTIFICATES_H_
#define TALWEG_LIBS_RPC_MAKE_CERTIFICATES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "libs/rpc/identity.h"

// A certificate authority, certificates, and the list of those that it has revoked, for a first
// cluster. Keys are P-256.
namespace talweg::rpc {

inline constexpr int64_t kSecondsADay = 86'400;

struct CertificateOptions {
  Identity identity;
  // DNS names and IP addresses of the machine, for clients that check them (grpcurl). Daemons and
  // the tool check only the identity.
  std::vector<std::string> hosts = {};
  int64_t life_s = 365 * kSecondsADay;
};

// Writes ca.crt and ca.key (mode 0600) into the directory. Makes the directory if it is missing.
// ALREADY_EXISTS: there is an authority, which is left unchanged.
absl::Status MakeAuthority(const std::string& directory, const std::string& trust_domain, int days);

// Writes ca.crt, tls.crt and tls.key (mode 0600) into `directory`, signed by the authority in
// `authority_directory`, and the authority's ca.crl, if there is one. Replaces older files, so that
// a new certificate can replace one that expires; a running daemon picks it up. NOT_FOUND: there is
// no authority.
absl::Status MakeCertificate(const std::string& authority_directory, const std::string& directory,
                             const CertificateOptions& options);

// Adds the first certificate in the file `certificate` to the authority's list, its ca.crl. Makes
// the list if it is missing. Does nothing if the certificate is on it. The list is valid until the
// authority expires. INVALID_ARGUMENT: the authority has not signed this certificate.
absl::Status RevokeCertificate(const std::string& authority_directory,
                               const std::string& certificate);
// Writes the authority's ca.crl into `directory`, if there is one.
absl::Status CopyRevocations(const std::string& authority_directory, const std::string& directory);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_MAKE_CERTIFICATES_H_
