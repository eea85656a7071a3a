// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/tls_trust.h"

#include <openssl/x509_vfy.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "libs/rpc/certificates.h"

namespace talweg::rpc {
namespace {

// An overdue list still counts: to trust nobody would end every job, and to ignore the list would
// let its certificates in. An authority need not have a list.
int OnVerifyError(int good, X509_STORE_CTX* context) {
  if (good == 1) return 1;
  switch (X509_STORE_CTX_get_error(context)) {
    case X509_V_ERR_UNABLE_TO_GET_CRL:
    case X509_V_ERR_CRL_HAS_EXPIRED:
    case X509_V_ERR_CRL_NOT_YET_VALID: return 1;
    default: return 0;
  }
}

struct StackFreer {
  void operator()(STACK_OF(X509) * certificates) const { sk_X509_free(certificates); }
};
using OwnedCertificates = std::unique_ptr<STACK_OF(X509), StackFreer>;

absl::Status Revoked(const X509* certificate) {
  return absl::PermissionDeniedError(
      absl::StrCat("the certificate of ", DescribeCertificate(certificate),
                   " is revoked: ca.crl names it; give its process a new one (talweg certs makes "
                   "one)"));
}

}  // namespace

struct TlsTrust::Impl {
  OwnedStore store{X509_STORE_new()};
};

TlsTrust::TlsTrust(const TlsTexts& texts)
    : impl_([&texts] {
        auto impl = std::make_unique<Impl>();
        for (const OwnedCertificate& authority : CertificatesIn(texts.authority)) {
          X509_STORE_add_cert(impl->store.get(), authority.get());
        }
        // As gRPC does.
        unsigned long flags = X509_V_FLAG_PARTIAL_CHAIN | X509_V_FLAG_TRUSTED_FIRST;
        if (const auto lists = RevocationListsIn(texts.revoked); lists) {
          for (const OwnedRevocationList& list : *lists)
            X509_STORE_add_crl(impl->store.get(), list.get());
          flags |= X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL;
        }
        X509_STORE_set_flags(impl->store.get(), flags);
        X509_STORE_set_verify_cb(impl->store.get(), OnVerifyError);
        return impl;
      }()) {}

TlsTrust::~TlsTrust() = default;

absl::StatusOr<int64_t> TlsTrust::GoodUntil(const PeerCertificate& peer, int64_t now_unix_s) const {
  const OwnOpensslErrors errors;
  const std::vector<OwnedCertificate> own = CertificatesIn(peer.certificate);
  if (own.empty()) return absl::UnauthenticatedError("the certificate cannot be read");
  const std::vector<OwnedCertificate> chain = CertificatesIn(peer.chain);
  const OwnedCertificates between(sk_X509_new_null());
  for (const OwnedCertificate& each : chain) sk_X509_push(between.get(), each.get());
  const OwnedStoreContext context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), impl_->store.get(), own.front().get(), between.get());
  X509_STORE_CTX_set_time(context.get(), 0, now_unix_s);
  if (X509_verify_cert(context.get()) != 1) {
    const int error = X509_STORE_CTX_get_error(context.get());
    if (error == X509_V_ERR_CERT_REVOKED) {
      return Revoked(X509_STORE_CTX_get_current_cert(context.get()));
    }
    return absl::UnauthenticatedError(
        absl::StrCat("the certificate of ", DescribeCertificate(own.front().get()),
                     " is not good any more: ", X509_verify_cert_error_string(error)));
  }
  int64_t until_unix_s = INT64_MAX;
  const STACK_OF(X509)* const verified = X509_STORE_CTX_get0_chain(context.get());
  for (int i = 0; i < sk_X509_num(verified); ++i) {
    const X509* const each = sk_X509_value(verified, i);
    until_unix_s = std::min(until_unix_s, UnixSeconds(X509_get0_notAfter(each)));
  }
  return until_unix_s;
}

}  // namespace talweg::rpc
