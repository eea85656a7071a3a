// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/tls_files.h"

#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <memory>
#include <vector>

#include "libs/rpc/openssl_types.h"
#include "libs/status/status.h"

namespace talweg::rpc {
namespace {

using Store = Owned<X509_STORE, X509_STORE_free>;
using StoreContext = Owned<X509_STORE_CTX, X509_STORE_CTX_free>;
using OwnedBio = Owned<BIO, BIO_free>;

constexpr size_t kFileBytesMax = size_t{1} << 20;

absl::StatusOr<OwnedFile> Open(const std::string& path) {
  OwnedFile file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return status::ErrnoStatus(errno, "open " + path);
  return file;
}

absl::StatusOr<std::string> ReadText(std::FILE* file, const std::string& path) {
  std::string text(kFileBytesMax + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  if (std::ferror(file) != 0) return status::ErrnoStatus(errno, "read " + path);
  if (text.size() <= kFileBytesMax) return text;
  return absl::InvalidArgumentError(path + " is too large to be a certificate or a key");
}

OwnedBio ReaderOf(const std::string& text) {
  return OwnedBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

absl::StatusOr<std::vector<OwnedCertificate>> ReadCertificates(const std::string& path,
                                                               std::string& text) {
  TALWEG_ASSIGN_OR_RETURN(const OwnedFile file, Open(path));
  TALWEG_ASSIGN_OR_RETURN(text, ReadText(file.get(), path));
  const OwnedBio reader = ReaderOf(text);
  std::vector<OwnedCertificate> certificates;
  while (OwnedCertificate next{PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)}) {
    certificates.push_back(std::move(next));
  }
  if (!certificates.empty()) return certificates;
  return absl::InvalidArgumentError(path + " holds no certificate in PEM format");
}

absl::StatusOr<OwnedKey> ReadKey(const std::string& path, std::string& text) {
  TALWEG_ASSIGN_OR_RETURN(const OwnedFile file, Open(path));
  struct stat status;
  if (fstat(fileno(file.get()), &status) != 0) return status::ErrnoStatus(errno, "stat " + path);
  if ((status.st_mode & S_IRWXO) != 0) {
    return absl::PermissionDeniedError(path +
                                       " is a private key that every user may use; run chmod 600 "
                                       "on it, or chmod 640 for its group");
  }
  TALWEG_ASSIGN_OR_RETURN(text, ReadText(file.get(), path));
  const OwnedBio reader = ReaderOf(text);
  // Never asks a terminal for a passphrase.
  OwnedKey key(PEM_read_bio_PrivateKey(
      reader.get(), nullptr, [](char*, int, int, void*) { return 0; }, nullptr));
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(path +
                                    " holds no private key in PEM format without a passphrase");
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

absl::Status CheckTime(const std::string& path, const X509* certificate) {
  const int64_t now_s = std::time(nullptr);
  const int64_t begins_s = UnixSeconds(X509_get0_notBefore(certificate));
  const int64_t ends_s = UnixSeconds(X509_get0_notAfter(certificate));
  if (now_s < begins_s) {
    return absl::FailedPreconditionError(path + " is not valid before " + Date(begins_s) +
                                         "; is this machine's clock right?");
  }
  if (now_s > ends_s) {
    return absl::FailedPreconditionError(path + " has expired at " + Date(ends_s) +
                                         "; put a new certificate there (talweg certs makes one)");
  }
  return absl::OkStatus();
}

std::optional<Identity> IdentityOf(const X509* certificate) {
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

// Whether an authority has signed the first certificate, by way of the others.
absl::Status CheckChain(const TlsFiles& files, const std::vector<OwnedCertificate>& chain,
                        const std::vector<OwnedCertificate>& authorities) {
  const Store store(X509_STORE_new());
  for (const OwnedCertificate& authority : authorities) {
    X509_STORE_add_cert(store.get(), authority.get());
  }
  STACK_OF(X509)* between = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between, chain[i].get());
  const StoreContext context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), chain.front().get(), between);
  const bool verified = X509_verify_cert(context.get()) == 1;
  const char* why = X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()));
  sk_X509_free(between);
  if (verified) return absl::OkStatus();
  return absl::FailedPreconditionError(files.certificate + " is not trusted by " + files.authority +
                                       " (" + why + "); both must come from the same authority");
}

}  // namespace

absl::StatusOr<TlsFiles> CheckTlsFiles(const std::string& directory) {
  TlsFiles files;
  files.authority = directory + "/ca.crt";
  TALWEG_ASSIGN_OR_RETURN(const std::vector<OwnedCertificate> authorities,
                          ReadCertificates(files.authority, files.texts.authority));
  TALWEG_RETURN_IF_ERROR(CheckTime(files.authority, authorities.front().get()));
  files.expires_unix_s = UnixSeconds(X509_get0_notAfter(authorities.front().get()));
  files.expires_first = files.authority;

  const std::string certificate = directory + "/tls.crt";
  const absl::StatusOr<std::vector<OwnedCertificate>> chain =
      ReadCertificates(certificate, files.texts.certificate);
  if (absl::IsNotFound(chain.status())) return files;
  TALWEG_RETURN_IF_ERROR(chain.status());
  files.certificate = certificate;
  files.key = directory + "/tls.key";
  const X509* own = chain->front().get();
  TALWEG_RETURN_IF_ERROR(CheckTime(certificate, own));
  TALWEG_ASSIGN_OR_RETURN(const OwnedKey key, ReadKey(files.key, files.texts.key));
  if (X509_check_private_key(own, key.get()) != 1) {
    return absl::InvalidArgumentError(files.key + " is not the private key of " + certificate);
  }
  TALWEG_RETURN_IF_ERROR(CheckChain(files, *chain, authorities));
  files.identity = IdentityOf(own);
  if (!files.identity) {
    return absl::InvalidArgumentError(
        certificate +
        " names no identity of Talweg; its subject alternative name must have one URI, such as "
        "spiffe://example.org/talweg/node/my-job (talweg certs makes such certificates)");
  }
  if (const int64_t ends_s = UnixSeconds(X509_get0_notAfter(own)); ends_s < files.expires_unix_s) {
    files.expires_unix_s = ends_s;
    files.expires_first = certificate;
  }
  return files;
}

}  // namespace talweg::rpc
