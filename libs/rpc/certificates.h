// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_CERTIFICATES_H_
#define TALWEG_LIBS_RPC_CERTIFICATES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libs/rpc/identity.h"
#include "libs/rpc/openssl_types.h"

// Reading certificates and lists of revoked ones. For this library's sources.
namespace talweg::rpc {

// While it lives, what OpenSSL finds wrong is not left for others of this thread, which would take
// it for theirs: gRPC's threads make handshakes as well.
class OwnOpensslErrors {
 public:
  OwnOpensslErrors();
  ~OwnOpensslErrors();
  OwnOpensslErrors(const OwnOpensslErrors&) = delete;
  OwnOpensslErrors& operator=(const OwnOpensslErrors&) = delete;
};

// Has OpenSSL read the text, which outlives it.
OwnedBio ReaderOf(const std::string& text);
// The certificates of a text in PEM format, up to the first that is none.
std::vector<OwnedCertificate> CertificatesIn(const std::string& text);
// nullopt: one of its lists cannot be read, or it has none.
std::optional<std::vector<OwnedRevocationList>> RevocationListsIn(const std::string& text);

// The identity that a certificate names.
std::optional<Identity> IdentityOf(const X509* certificate);
// "node of job 'x' (number 1F00)": for texts.
std::string DescribeCertificate(const X509* certificate);

int64_t UnixSeconds(const ASN1_TIME* time);
// "2026-01-31 12:00:00 UTC".
std::string Date(int64_t unix_s);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CERTIFICATES_H_
