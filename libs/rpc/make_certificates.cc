// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/make_certificates.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>

#include "libs/base/descriptor.h"
#include "libs/rpc/openssl_types.h"
#include "libs/status/status.h"

namespace talweg::rpc {
namespace {

// Allows for small differences between machines' clocks.
constexpr int64_t kClockSlackS = 300;
constexpr int kSerialBytes = 16;

absl::Status OpenSslError(const std::string& what) {
  return absl::InternalError("OpenSSL cannot " + what);
}

// Where others cannot replace what is in it, whatever the umask.
absl::Status MakeDirectory(const std::string& directory) {
  std::filesystem::path made;
  for (const std::filesystem::path& part : std::filesystem::path(directory)) {
    made /= part;
    if (mkdir(made.c_str(), 0755) != 0 && errno != EEXIST) {
      return status::ErrnoStatus(errno, "make directory " + made.string());
    }
  }
  return absl::OkStatus();
}

// Renames a temporary file, so that readers see the whole file or none.
absl::Status WriteFile(const std::string& path, mode_t mode,
                       const std::function<bool(std::FILE*)>& write) {
  std::string draft = path + ".XXXXXX";
  const int fd = mkostemp(draft.data(), O_CLOEXEC);
  if (fd < 0) return status::ErrnoStatus(errno, "make " + path);
  OwnedFile file(fdopen(fd, "w"));
  const bool written = fchmod(fd, mode) == 0 && write(file.get()) && std::fflush(file.get()) == 0;
  file.reset();
  if (written && rename(draft.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const int error = errno;
  unlink(draft.c_str());
  return status::ErrnoStatus(error, "write " + path);
}

absl::Status WriteKey(const std::string& path, EVP_PKEY* key) {
  return WriteFile(path, 0600, [key](std::FILE* file) {
    return PEM_write_PKCS8PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr) == 1;
  });
}

absl::Status WriteCertificate(const std::string& path, X509* certificate) {
  return WriteFile(path, 0644,
                   [=](std::FILE* file) { return PEM_write_X509(file, certificate) == 1; });
}

absl::Status WriteList(const std::string& path, const X509_CRL* list) {
  return WriteFile(path, 0644,
                   [=](std::FILE* file) { return PEM_write_X509_CRL(file, list) == 1; });
}

absl::Status AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Owned<X509_EXTENSION, X509_EXTENSION_free> extension(
      X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  if (extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1) {
    return absl::OkStatus();
  }
  return OpenSslError("write the extension '" + value + "'");
}

// The subject has only a common name. The subject alternative name has the identity.
absl::StatusOr<OwnedCertificate> NewCertificate(EVP_PKEY* key, const std::string& common_name,
                                                int64_t life_s) {
  OwnedCertificate certificate(X509_new());
  std::array<unsigned char, kSerialBytes> serial{};
  if (RAND_bytes(serial.data(), kSerialBytes) != 1) return OpenSslError("draw a number");
  serial[0] &= 0x7f;
  const Owned<BIGNUM, BN_free> number(BN_bin2bn(serial.data(), kSerialBytes, nullptr));
  BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate.get()));
  X509_set_version(certificate.get(), X509_VERSION_3);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kClockSlackS);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), life_s);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1,
                             0);
  if (X509_set_pubkey(certificate.get(), key) != 1) return OpenSslError("set a certificate's key");
  return certificate;
}

absl::StatusOr<OwnedKey> NewKey() {
  OwnedKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("make a key");
  return key;
}

std::string AlternativeNames(const CertificateOptions& options, const std::string& trust_domain) {
  std::string names = "URI:" + UriOf(options.identity, trust_domain);
  for (const std::string& host : options.hosts) {
    in6_addr address;
    const bool numeric = inet_pton(AF_INET, host.c_str(), &address) == 1 ||
                         inet_pton(AF_INET6, host.c_str(), &address) == 1;
    names += (numeric ? ",IP:" : ",DNS:") + host;
  }
  return names;
}

// A host must not contain the separators of OpenSSL's syntax for extensions.
absl::Status CheckHosts(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    if (host.empty() || host.find_first_of(", \t\n\r;#=") != std::string::npos) {
      return absl::InvalidArgumentError("'" + host + "' is neither a host name nor an IP address");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OwnedCertificate> ReadCertificate(const std::string& path) {
  const OwnedFile file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return status::ErrnoStatus(errno, "open " + path);
  OwnedCertificate certificate(PEM_read_X509(file.get(), nullptr, nullptr, nullptr));
  if (certificate == nullptr) return absl::InvalidArgumentError(path + " holds no certificate");
  return certificate;
}

absl::StatusOr<OwnedKey> ReadAuthorityKey(const std::string& path) {
  const OwnedFile file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return status::ErrnoStatus(errno, "open " + path);
  OwnedKey key(PEM_read_PrivateKey(file.get(), nullptr, nullptr, nullptr));
  if (key == nullptr) return absl::InvalidArgumentError(path + " holds no private key");
  return key;
}

// Returns null if there is no list yet.
absl::StatusOr<OwnedRevocationList> ReadList(const std::string& path) {
  const OwnedFile file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) {
    if (errno == ENOENT) return nullptr;
    return status::ErrnoStatus(errno, "open " + path);
  }
  OwnedRevocationList list(PEM_read_X509_CRL(file.get(), nullptr, nullptr, nullptr));
  if (list == nullptr) {
    return absl::InvalidArgumentError(path + " holds no list of revoked certificates");
  }
  return list;
}

absl::Status AddRevoked(X509_CRL* list, const X509* certificate) {
  Owned<X509_REVOKED, X509_REVOKED_free> entry(X509_REVOKED_new());
  const Owned<ASN1_TIME, ASN1_TIME_free> now(ASN1_TIME_set(nullptr, std::time(nullptr)));
  // X509_REVOKED_set_serialNumber copies it.
  auto* const number = const_cast<ASN1_INTEGER*>(X509_get0_serialNumber(certificate));
  if (entry != nullptr && now != nullptr &&
      X509_REVOKED_set_serialNumber(entry.get(), number) == 1 &&
      X509_REVOKED_set_revocationDate(entry.get(), now.get()) == 1 &&
      X509_CRL_add0_revoked(list, entry.get()) == 1) {
    (void)entry.release();
    return absl::OkStatus();
  }
  return OpenSslError("add to a list of revoked certificates");
}

// OpenSSL uses it to tell the lists of two authorities of one name apart.
absl::Status NameAuthority(X509_CRL* list, X509* authority) {
  if (X509_CRL_get_ext_by_NID(list, NID_authority_key_identifier, -1) >= 0) {
    return absl::OkStatus();
  }
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, authority, nullptr, nullptr, list, 0);
  const Owned<X509_EXTENSION, X509_EXTENSION_free> extension(
      X509V3_EXT_conf_nid(nullptr, &context, NID_authority_key_identifier, "keyid:always"));
  if (extension != nullptr && X509_CRL_add_ext(list, extension.get(), -1) == 1) {
    return absl::OkStatus();
  }
  return OpenSslError("write the authority into its list of revoked certificates");
}

absl::Status SignList(X509_CRL* list, X509* authority, EVP_PKEY* key) {
  TALWEG_RETURN_IF_ERROR(NameAuthority(list, authority));
  const Owned<ASN1_TIME, ASN1_TIME_free> begins(
      ASN1_TIME_set(nullptr, std::time(nullptr) - kClockSlackS));
  if (X509_CRL_set_version(list, X509_CRL_VERSION_2) != 1 ||
      X509_CRL_set_issuer_name(list, X509_get_subject_name(authority)) != 1 ||
      X509_CRL_set1_lastUpdate(list, begins.get()) != 1 ||
      X509_CRL_set1_nextUpdate(list, X509_get0_notAfter(authority)) != 1 ||
      X509_CRL_sort(list) != 1 || X509_CRL_sign(list, key, EVP_sha256()) == 0) {
    return OpenSslError("sign a list of revoked certificates");
  }
  return absl::OkStatus();
}

// The authority's trust domain is its subject's name.
std::string TrustDomain(X509* authority) {
  std::array<char, 256> text{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(authority), NID_commonName, text.data(),
                            text.size());
  return text.data();
}

}  // namespace

absl::Status MakeAuthority(const std::string& directory, const std::string& trust_domain,
                           int days) {
  if (trust_domain.empty() || trust_domain.size() > 63 ||
      trust_domain.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789.-_") !=
          std::string::npos) {
    return absl::InvalidArgumentError(
        "'" + trust_domain +
        "' is not a trust domain; one has 1 to 63 lower-case letters, "
        "digits, dots and dashes, such as example.org");
  }
  TALWEG_RETURN_IF_ERROR(MakeDirectory(directory));
  const std::string path = directory + "/ca.crt";
  if (access(path.c_str(), F_OK) == 0) {
    return absl::AlreadyExistsError(path + " is there already, and stays as it is");
  }
  TALWEG_ASSIGN_OR_RETURN(const OwnedKey key, NewKey());
  TALWEG_ASSIGN_OR_RETURN(const OwnedCertificate authority,
                          NewCertificate(key.get(), trust_domain, days * kSecondsADay));
  X509* const own = authority.get();
  X509_set_issuer_name(own, X509_get_subject_name(own));
  TALWEG_RETURN_IF_ERROR(AddExtension(own, own, NID_basic_constraints, "critical,CA:TRUE"));
  TALWEG_RETURN_IF_ERROR(AddExtension(own, own, NID_key_usage, "critical,keyCertSign,cRLSign"));
  TALWEG_RETURN_IF_ERROR(AddExtension(own, own, NID_subject_key_identifier, "hash"));
  if (X509_sign(own, key.get(), EVP_sha256()) == 0) return OpenSslError("sign the authority");
  TALWEG_RETURN_IF_ERROR(WriteKey(directory + "/ca.key", key.get()));
  return WriteCertificate(path, own);
}

absl::Status MakeCertificate(const std::string& authority_directory, const std::string& directory,
                             const CertificateOptions& options) {
  TALWEG_RETURN_IF_ERROR(CheckHosts(options.hosts));
  TALWEG_ASSIGN_OR_RETURN(const OwnedCertificate authority,
                          ReadCertificate(authority_directory + "/ca.crt"));
  TALWEG_ASSIGN_OR_RETURN(const OwnedKey authority_key,
                          ReadAuthorityKey(authority_directory + "/ca.key"));
  TALWEG_RETURN_IF_ERROR(MakeDirectory(directory));
  TALWEG_ASSIGN_OR_RETURN(const OwnedKey key, NewKey());
  // A common name has at most 64 bytes; the whole identity is in the alternative name.
  TALWEG_ASSIGN_OR_RETURN(
      const OwnedCertificate certificate,
      NewCertificate(key.get(), "talweg " + std::string(RoleName(options.identity.role)),
                     options.life_s));
  X509* const own = certificate.get();
  X509* const issuer = authority.get();
  X509_set_issuer_name(own, X509_get_subject_name(issuer));
  TALWEG_RETURN_IF_ERROR(AddExtension(own, issuer, NID_basic_constraints, "critical,CA:FALSE"));
  TALWEG_RETURN_IF_ERROR(AddExtension(own, issuer, NID_key_usage, "critical,digitalSignature"));
  TALWEG_RETURN_IF_ERROR(AddExtension(own, issuer, NID_ext_key_usage, "serverAuth,clientAuth"));
  TALWEG_RETURN_IF_ERROR(AddExtension(own, issuer, NID_subject_alt_name,
                                      AlternativeNames(options, TrustDomain(issuer))));
  TALWEG_RETURN_IF_ERROR(AddExtension(own, issuer, NID_authority_key_identifier, "keyid"));
  if (X509_sign(own, authority_key.get(), EVP_sha256()) == 0) {
    return OpenSslError("sign a certificate");
  }
  TALWEG_RETURN_IF_ERROR(CopyRevocations(authority_directory, directory));
  TALWEG_RETURN_IF_ERROR(WriteCertificate(directory + "/ca.crt", issuer));
  TALWEG_RETURN_IF_ERROR(WriteKey(directory + "/tls.key", key.get()));
  return WriteCertificate(directory + "/tls.crt", own);
}

absl::Status RevokeCertificate(const std::string& authority_directory,
                               const std::string& certificate) {
  TALWEG_ASSIGN_OR_RETURN(const OwnedCertificate authority,
                          ReadCertificate(authority_directory + "/ca.crt"));
  TALWEG_ASSIGN_OR_RETURN(const OwnedKey key, ReadAuthorityKey(authority_directory + "/ca.key"));
  TALWEG_ASSIGN_OR_RETURN(const OwnedCertificate revoked, ReadCertificate(certificate));
  if (X509_cmp(authority.get(), revoked.get()) == 0) {
    return absl::InvalidArgumentError(
        certificate +
        " is the authority itself, which cannot be on its own list: make another one, "
        "and give every daemon its ca.crt");
  }
  if (X509_check_issued(authority.get(), revoked.get()) != X509_V_OK ||
      X509_verify(revoked.get(), X509_get0_pubkey(authority.get())) != 1) {
    return absl::InvalidArgumentError(certificate + " is not of the authority in " +
                                      authority_directory +
                                      ", which can revoke its own certificates alone");
  }
  const std::string path = authority_directory + "/ca.crl";
  TALWEG_ASSIGN_OR_RETURN(OwnedRevocationList list, ReadList(path));
  if (list == nullptr) list.reset(X509_CRL_new());
  X509_REVOKED* known = nullptr;
  if (X509_CRL_get0_by_cert(list.get(), &known, revoked.get()) == 0) {
    TALWEG_RETURN_IF_ERROR(AddRevoked(list.get(), revoked.get()));
  }
  TALWEG_RETURN_IF_ERROR(SignList(list.get(), authority.get(), key.get()));
  return WriteList(path, list.get());
}

absl::Status CopyRevocations(const std::string& authority_directory, const std::string& directory) {
  TALWEG_ASSIGN_OR_RETURN(const OwnedRevocationList list,
                          ReadList(authority_directory + "/ca.crl"));
  if (list == nullptr) return absl::OkStatus();
  return WriteList(directory + "/ca.crl", list.get());
}

}  // namespace talweg::rpc
