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
  // DNS names and IP addresses of the machine, for clients that check those (grpcurl). Daemons and
  // the tool check the identity alone.
  std::vector<std::string> hosts = {};
  int64_t life_s = 365 * kSecondsADay;
};

// Writes ca.crt and ca.key (mode 0600) into the directory, which is made if it is missing.
// ALREADY_EXISTS: there is an authority, which stays as it is.
absl::Status MakeAuthority(const std::string& directory, const std::string& trust_domain, int days);

// Writes ca.crt, tls.crt and tls.key (mode 0600) into `directory`, signed by the authority in
// `authority_directory`, and that one's ca.crl, if there is one. What lay there is replaced, so
// that a new certificate takes the place of one that expires; a daemon that runs takes it up.
// NOT_FOUND: there is no authority.
absl::Status MakeCertificate(const std::string& authority_directory, const std::string& directory,
                             const CertificateOptions& options);

// Puts the first certificate in the file `certificate` on the authority's list, its ca.crl, which
// is made if it is missing. One that is on it stays. The list holds until the authority ends.
// INVALID_ARGUMENT: the authority has not signed this certificate.
absl::Status RevokeCertificate(const std::string& authority_directory,
                               const std::string& certificate);
// Writes the authority's ca.crl into `directory`, if there is one.
absl::Status CopyRevocations(const std::string& authority_directory, const std::string& directory);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_MAKE_CERTIFICATES_H_
