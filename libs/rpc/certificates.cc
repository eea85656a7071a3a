// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

namespace talweg::rpc {
namespace {

constexpr std::string_view kListBegins = "-----BEGIN X509 CRL-----";

size_t CountOf(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

std::string NumberOf(const X509* certificate) {
  const Owned<BIGNUM, BN_free> number(
      ASN1_INTEGER_to_BN(X509_get0_serialNumber(certificate), nullptr));
  if (number == nullptr) return "?";
  char* const text = BN_bn2hex(number.get());
  std::string copy = text == nullptr ? "?" : text;
  OPENSSL_free(text);
  return copy;
}

}  // namespace

OwnOpensslErrors::OwnOpensslErrors() { ERR_set_mark(); }
OwnOpensslErrors::~OwnOpensslErrors() { ERR_pop_to_mark(); }

OwnedBio ReaderOf(const std::string& text) {
  return OwnedBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::vector<OwnedCertificate> CertificatesIn(const std::string& text) {
  const OwnOpensslErrors errors;
  const OwnedBio reader = ReaderOf(text);
  std::vector<OwnedCertificate> certificates;
  while (OwnedCertificate next{PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)}) {
    certificates.push_back(std::move(next));
  }
  return certificates;
}

std::optional<std::vector<OwnedRevocationList>> RevocationListsIn(const std::string& text) {
  const OwnOpensslErrors errors;
  const OwnedBio reader = ReaderOf(text);
  std::vector<OwnedRevocationList> lists;
  while (OwnedRevocationList next{PEM_read_bio_X509_CRL(reader.get(), nullptr, nullptr, nullptr)}) {
    lists.push_back(std::move(next));
  }
  // With only some of the lists, certificates that the others revoke would be let in.
  if (lists.empty() || lists.size() != CountOf(text, kListBegins)) return std::nullopt;
  return lists;
}

std::optional<Identity> IdentityOf(const X509* certificate) {
  const OwnOpensslErrors errors;
  auto* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  std::optional<Identity> identity;
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* uri = name->d.uniformResourceIdentifier;
    identity =
        IdentityOfUri(std::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                                       static_cast<size_t>(ASN1_STRING_length(uri))));
    if (identity) break;
  }
  GENERAL_NAMES_free(names);
  return identity;
}

std::string DescribeCertificate(const X509* certificate) {
  const std::optional<Identity> identity = IdentityOf(certificate);
  return absl::StrCat(identity ? Describe(*identity) : "nobody of Talweg", " (number ",
                      NumberOf(certificate), ")");
}

int64_t UnixSeconds(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return 0;
  return timegm(&parts);
}

std::string Date(int64_t unix_s) {
  const std::time_t time = unix_s;
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32] = "";
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text;
}

}  // namespace talweg::rpc
