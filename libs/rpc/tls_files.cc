// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/tls_files.h"

#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/base/read_at_most.h"
#include "libs/rpc/certificates.h"
#include "libs/rpc/openssl_types.h"
#include "libs/rpc/tls_trust.h"
#include "libs/status/status.h"

namespace talweg::rpc {
namespace {

constexpr size_t kFileBytesMax = size_t{1} << 20;

absl::StatusOr<Descriptor> Open(const std::string& path) {
  // Opening a pipe would block, and it may belong to another user (talweg doctor).
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return status::ErrnoStatus(errno, "open " + path);
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return status::ErrnoStatus(errno, "stat " + path);
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(path +
                                      " is not a regular file; put the certificates into one");
  }
  return file;
}

absl::StatusOr<std::string> ReadText(const Descriptor& file, const std::string& path) {
  std::string text;
  if (!ReadAtMost(file.get(), kFileBytesMax + 1, text)) {
    return status::ErrnoStatus(errno, "read " + path);
  }
  if (text.size() <= kFileBytesMax) return text;
  return absl::InvalidArgumentError(path + " is too large to be certificates or a key");
}

absl::StatusOr<std::vector<OwnedCertificate>> ReadCertificates(const std::string& path,
                                                               std::string& text) {
  TALWEG_ASSIGN_OR_RETURN(const Descriptor file, Open(path));
  TALWEG_ASSIGN_OR_RETURN(text, ReadText(file, path));
  std::vector<OwnedCertificate> certificates = CertificatesIn(text);
  if (!certificates.empty()) return certificates;
  return absl::InvalidArgumentError(path + " holds no certificate in PEM format");
}

absl::StatusOr<OwnedKey> ReadKey(const std::string& path, std::string& text) {
  TALWEG_ASSIGN_OR_RETURN(const Descriptor file, Open(path));
  struct stat status;
  if (fstat(file.get(), &status) != 0) return status::ErrnoStatus(errno, "stat " + path);
  if ((status.st_mode & S_IRWXO) != 0) {
    return absl::PermissionDeniedError(path +
                                       " is a private key that every user may use; run chmod 600 "
                                       "on it, or chmod 640 for its group");
  }
  TALWEG_ASSIGN_OR_RETURN(text, ReadText(file, path));
  const OwnedBio reader = ReaderOf(text);
  // Never asks a terminal for a passphrase.
  OwnedKey key(PEM_read_bio_PrivateKey(
      reader.get(), nullptr, [](char*, int, int, void*) { return 0; }, nullptr));
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(path +
                                    " holds no private key in PEM format without a passphrase");
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

// Returns whether an authority has signed the first certificate, through the others.
absl::Status CheckChain(const TlsFiles& files, const std::vector<OwnedCertificate>& chain,
                        const std::vector<OwnedCertificate>& authorities) {
  const OwnedStore store(X509_STORE_new());
  for (const OwnedCertificate& authority : authorities) {
    X509_STORE_add_cert(store.get(), authority.get());
  }
  STACK_OF(X509)* between = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between, chain[i].get());
  const OwnedStoreContext context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store.get(), chain.front().get(), between);
  const bool verified = X509_verify_cert(context.get()) == 1;
  const char* why = X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()));
  sk_X509_free(between);
  if (verified) return absl::OkStatus();
  return absl::FailedPreconditionError(files.certificate + " is not trusted by " + files.authority +
                                       " (" + why + "); both must come from the same authority");
}

// Returns whether one of `signers` has signed the list and may sign lists. If an authority signs a
// list and may not, OpenSSL trusts none of that authority's certificates.
bool IsSignedBy(X509_CRL* list, const std::vector<OwnedCertificate>& signers) {
  const OwnOpensslErrors errors;
  for (const OwnedCertificate& signer : signers) {
    if ((X509_get_key_usage(signer.get()) & KU_CRL_SIGN) != 0 &&
        X509_NAME_cmp(X509_CRL_get_issuer(list), X509_get_subject_name(signer.get())) == 0 &&
        X509_CRL_verify(list, X509_get0_pubkey(signer.get())) == 1) {
      return true;
    }
  }
  return false;
}

absl::Status ReadRevocations(const std::string& path,
                             const std::vector<OwnedCertificate>& authorities,
                             const std::vector<OwnedCertificate>& chain, TlsFiles& files) {
  const absl::StatusOr<Descriptor> file = Open(path);
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  TALWEG_RETURN_IF_ERROR(file.status());
  TALWEG_ASSIGN_OR_RETURN(files.texts.revoked, ReadText(*file, path));
  const auto lists = RevocationListsIn(files.texts.revoked);
  if (!lists) {
    return absl::InvalidArgumentError(path +
                                      " holds no list of revoked certificates in PEM format, or "
                                      "half of one (talweg certs --revoke makes one)");
  }
  for (const OwnedRevocationList& list : *lists) {
    if (!IsSignedBy(list.get(), authorities) && !IsSignedBy(list.get(), chain)) {
      return absl::FailedPreconditionError(
          path + " has a list that no authority of " + files.authority +
          " has signed, or may sign (its key usage must have cRLSign); put a list of the same "
          "authority there");
    }
    if (X509_CRL_get_ext_by_critical(list.get(), 1, -1) >= 0) {
      return absl::InvalidArgumentError(path +
                                        " has a list of some certificates or changes alone; put "
                                        "the authority's whole list there");
    }
    const int64_t begins_s = UnixSeconds(X509_CRL_get0_lastUpdate(list.get()));
    if (std::time(nullptr) < begins_s) {
      return absl::FailedPreconditionError(path + " is not valid before " + Date(begins_s) +
                                           "; is this machine's clock right?");
    }
    const ASN1_TIME* const next = X509_CRL_get0_nextUpdate(list.get());
    if (next != nullptr) {
      files.revoked_until_unix_s = std::min(files.revoked_until_unix_s, UnixSeconds(next));
    }
  }
  files.revoked = path;
  return absl::OkStatus();
}

absl::Status Extended(const absl::Status& status, const std::string& before,
                      const std::string& after) {
  return {status.code(), before + std::string(status.message()) + after};
}

}  // namespace

absl::StatusOr<TlsFiles> CheckTlsFiles(const std::string& directory) {
  TlsFiles files;
  files.authority = directory + "/ca.crt";
  const absl::StatusOr<std::vector<OwnedCertificate>> read =
      ReadCertificates(files.authority, files.texts.authority);
  if (!read.ok()) {
    return Extended(read.status(), "tls_dir '" + directory + "': ",
                    absl::IsNotFound(read.status())
                        ? "; give a directory with ca.crt, tls.crt and tls.key, as talweg certs "
                          "makes them"
                        : "");
  }
  const std::vector<OwnedCertificate>& authorities = *read;
  TALWEG_RETURN_IF_ERROR(CheckTime(files.authority, authorities.front().get()));
  files.expires_unix_s = UnixSeconds(X509_get0_notAfter(authorities.front().get()));
  files.expires_first = files.authority;

  const std::string certificate = directory + "/tls.crt";
  const absl::StatusOr<std::vector<OwnedCertificate>> chain =
      ReadCertificates(certificate, files.texts.certificate);
  const std::string revoked = directory + "/ca.crl";
  if (absl::IsNotFound(chain.status())) {
    TALWEG_RETURN_IF_ERROR(ReadRevocations(revoked, authorities, {}, files));
    return files;
  }
  TALWEG_RETURN_IF_ERROR(chain.status());
  TALWEG_RETURN_IF_ERROR(ReadRevocations(revoked, authorities, *chain, files));
  files.certificate = certificate;
  files.key = directory + "/tls.key";
  const X509* own = chain->front().get();
  TALWEG_RETURN_IF_ERROR(CheckTime(certificate, own));
  const absl::StatusOr<OwnedKey> key_read = ReadKey(files.key, files.texts.key);
  if (absl::IsNotFound(key_read.status())) {
    return Extended(key_read.status(), "tls_dir '" + directory + "': ",
                    "; put the private key of tls.crt there, or take both from talweg certs");
  }
  TALWEG_RETURN_IF_ERROR(key_read.status());
  const OwnedKey& key = *key_read;
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

absl::Status CheckNotRevoked(const TlsFiles& files) {
  if (files.certificate.empty()) return absl::OkStatus();
  const TlsTrust trust(files.texts);
  const PeerCertificate own = {.certificate = files.texts.certificate,
                               .chain = files.texts.certificate};
  if (!absl::IsPermissionDenied(trust.GoodUntil(own, std::time(nullptr)).status())) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(files.certificate + " is revoked: " + files.revoked +
                                       " names it; put a new certificate there (talweg certs "
                                       "makes one)");
}

}  // namespace talweg::rpc
