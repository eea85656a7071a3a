// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_TLS_TRUST_H_
#define TALWEG_LIBS_RPC_TLS_TRUST_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "libs/rpc/tls_files.h"

namespace talweg::rpc {

// The certificates of a peer from a TLS handshake, in PEM format.
struct PeerCertificate {
  std::string certificate;
  std::string chain;  // The same, followed by those between it and an authority.
};

// Judges certificates by one reading of a directory's ca.crt and ca.crl. Immutable; any thread.
class TlsTrust {
 public:
  // `texts` are those of good files (tls_files.h).
  explicit TlsTrust(const TlsTexts& texts);
  ~TlsTrust();
  TlsTrust(const TlsTrust&) = delete;
  TlsTrust& operator=(const TlsTrust&) = delete;

  // Returns until when this certificate is good, if nothing else changes. PERMISSION_DENIED: it, or
  // one of its chain, is revoked. UNAUTHENTICATED: it is not good for another reason. The texts
  // name the certificate's owner.
  absl::StatusOr<int64_t> GoodUntil(const PeerCertificate& peer, int64_t now_unix_s) const;

 private:
  struct Impl;
  const std::unique_ptr<const Impl> impl_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_TLS_TRUST_H_
