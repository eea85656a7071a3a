// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/credentials.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "libs/rpc/identity.h"
#include "libs/rpc/make_certificates.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

constexpr uint64_t kDaysMax = 36'500;

// Bytes of a name that a directory should not have become '_'.
std::string DirectoryName(const rpc::Identity& identity) {
  std::string name(rpc::RoleName(identity.role));
  if (!identity.name.empty()) name += "-" + identity.name;
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.';
    if (!plain) c = '_';
  }
  return name;
}

// Revokes the certificate, and copies the list beside each ca.crt below `directory`. Returns what
// it did, one line each.
absl::StatusOr<std::string> Revoke(const std::string& directory, std::string certificate) {
  const std::string authority = directory + "/ca";
  std::error_code error;
  if (std::filesystem::is_directory(certificate, error)) certificate += "/tls.crt";
  TALWEG_RETURN_IF_ERROR(rpc::RevokeCertificate(authority, certificate));
  std::string text = absl::StrCat(authority, "/ca.crl  revokes ", certificate, "\n");
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const std::string path = entry.path().string();
    if (path == authority || !std::filesystem::exists(path + "/ca.crt", error)) continue;
    TALWEG_RETURN_IF_ERROR(rpc::CopyRevocations(authority, path));
    absl::StrAppend(&text, path, "/ca.crl  the same list\n");
  }
  return text;
}

absl::StatusOr<std::string> MakeCerts(const Arguments& arguments) {
  const std::vector<std::string>& words = arguments.operands();
  if (words.empty()) {
    return absl::InvalidArgumentError(
        "talweg certs: name a directory, and then roles, such as: talweg certs pki scheduler "
        "aggregator:agg-0 node:my-job operator");
  }
  TALWEG_ASSIGN_OR_RETURN(const uint64_t days, arguments.Number("days", 365, 1, kDaysMax));
  std::vector<rpc::Identity> identities;
  for (size_t i = 1; i < words.size(); ++i) {
    const std::optional<rpc::Identity> identity = rpc::ParseIdentity(words[i]);
    if (!identity) {
      return absl::InvalidArgumentError(
          absl::StrCat("talweg certs: '", words[i],
                       "' is not a role; roles are scheduler, aggregator:NAME, node:JOB, operator, "
                       "viewer"));
    }
    identities.push_back(*identity);
  }
  rpc::CertificateOptions options;
  options.life_s = static_cast<int64_t>(days) * rpc::kSecondsADay;
  if (arguments.Has("hosts")) options.hosts = absl::StrSplit(arguments.Text("hosts", ""), ',');

  std::string text;
  if (arguments.Has("revoke")) {
    TALWEG_ASSIGN_OR_RETURN(text, Revoke(words[0], arguments.Text("revoke", "")));
    if (identities.empty()) return text;
  }
  // An authority must outlive the certificates that it signs.
  const std::string authority = words[0] + "/ca";
  const absl::Status made = rpc::MakeAuthority(
      authority, arguments.Text("trust-domain", "talweg.local"), static_cast<int>(10 * days));
  if (!made.ok() && !absl::IsAlreadyExists(made)) return made;
  absl::StrAppend(&text, authority, made.ok() ? "  new authority\n" : "  authority\n");
  for (const rpc::Identity& identity : identities) {
    options.identity = identity;
    const std::string directory = absl::StrCat(words[0], "/", DirectoryName(identity));
    TALWEG_RETURN_IF_ERROR(rpc::MakeCertificate(authority, directory, options));
    absl::StrAppend(&text, directory, "  ", rpc::Describe(identity), "\n");
  }
  return text;
}

int RunCerts(const Arguments& arguments) {
  const absl::StatusOr<std::string> text = MakeCerts(arguments);
  if (!text.ok()) return Fail(text.status());
  return Print(*text) ? 0 : kExitFailed;
}

}  // namespace

std::string OptionOrVariable(const Arguments& arguments, const std::string& option,
                             const char* variable) {
  const char* told = std::getenv(variable);
  return arguments.Text(option, told == nullptr ? "" : told);
}

std::vector<CommandOption> CredentialOptions() {
  return {
      {"tls-dir", "DIR",
       "Directory with ca.crt, and with tls.crt and tls.key of an operator or a viewer.\n"
       "Default: $TALWEG_TLS_DIR, else no TLS."},
      {"token-file", "FILE",
       "File with a bearer token, in place of a certificate. Default: $TALWEG_TOKEN_FILE."},
  };
}

OwnFiles ToolFiles(const Arguments& arguments) {
  return {.tls_directory = OptionOrVariable(arguments, "tls-dir", "TALWEG_TLS_DIR"),
          .token_file = OptionOrVariable(arguments, "token-file", "TALWEG_TOKEN_FILE")};
}

absl::StatusOr<std::shared_ptr<const rpc::Credentials>> ToolCredentials(
    const Arguments& arguments) {
  const OwnFiles own = ToolFiles(arguments);
  return rpc::Credentials::Load({.tls_directory = own.tls_directory, .token_file = own.token_file});
}

Command CertsCommand() {
  Command command;
  command.name = "certs";
  command.summary = "Makes a certificate authority and certificates for a first cluster";
  command.usage = "[OPTIONS] DIR [ROLE...]";
  command.details =
      "Makes DIR/ca, an authority, unless it is there, and for each role a directory with ca.crt,\n"
      "tls.crt and tls.key, which a daemon's option tls_dir names. Roles: scheduler,\n"
      "aggregator:NAME, node:JOB (the agents of a job), operator, viewer. Called again, it makes\n"
      "new certificates in the place of the old ones; running daemons take them up.\n\n"
      "With --revoke it puts a certificate on the authority's list of revoked ones, "
      "DIR/ca/ca.crl,\n"
      "and the list beside each ca.crt below DIR. Copy it to the tls_dir of every daemon and "
      "tool:\n"
      "running daemons take it up, and end connections that were made with that certificate.\n\n"
      "Keep DIR/ca/ca.key: whoever has it can make any certificate.";
  command.operands = Operands::kWords;
  command.options = {
      {"hosts", "NAME,...",
       "Host names and IP addresses to write into the certificates, for tools that check those\n"
       "(grpcurl). Talweg checks roles instead."},
      {"days", "N", "How long the certificates are valid. Default: 365; the authority: 10 times."},
      {"revoke", "FILE",
       "A certificate (tls.crt, or its directory) that is good no longer. Revoke one before a new\n"
       "one takes its place: both are needed to replace a stolen one."},
      {"trust-domain", "NAME", "Name of a new authority. Default: talweg.local."},
  };
  command.run = RunCerts;
  return command;
}

}  // namespace talweg::cli
