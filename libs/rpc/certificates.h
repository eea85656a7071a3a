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

// While it lives, OpenSSL's errors do not stay in the thread's queue. gRPC's handshakes on the same
// thread would take them for their own.
class OwnOpensslErrors {
 public:
  OwnOpensslErrors();
  ~OwnOpensslErrors();
  OwnOpensslErrors(const OwnOpensslErrors&) = delete;
  OwnOpensslErrors& operator=(const OwnOpensslErrors&) = delete;
};

// Returns a BIO that reads `text`, which outlives it.
OwnedBio ReaderOf(const std::string& text);
// Returns the certificates of a text in PEM format, up to the first that cannot be read.
std::vector<OwnedCertificate> CertificatesIn(const std::string& text);
// Returns nullopt if a list cannot be read, or if there is none.
std::optional<std::vector<OwnedRevocationList>> RevocationListsIn(const std::string& text);

// Returns the identity that a certificate names.
std::optional<Identity> IdentityOf(const X509* certificate);
// Returns "node of job 'x' (number 1F00)", for messages.
std::string DescribeCertificate(const X509* certificate);

int64_t UnixSeconds(const ASN1_TIME* time);
// "2026-01-31 12:00:00 UTC".
std::string Date(int64_t unix_s);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CERTIFICATES_H_
