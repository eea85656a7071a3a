// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/credentials.h"

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "libs/rpc/authorization.h"
#include "libs/rpc/credentials_access.h"
#include "libs/rpc/tls_copies.h"
#include "libs/rpc/tls_files.h"
#include "libs/rpc/tls_peers.h"
#include "libs/rpc/tls_peers_argument.h"
#include "libs/rpc/tokens.h"
#include "libs/status/status.h"

namespace talweg::rpc {
namespace {

namespace tls = grpc::experimental;

// How soon a changed certificate is used.
constexpr unsigned kRefreshS = 1;
constexpr char kTokenHeader[] = "authorization";
constexpr char kBearer[] = "Bearer ";
constexpr size_t kBearerBytes = sizeof kBearer - 1;

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

// Checks that a server has the right identity. Host names are not enough: with any aggregator's
// certificate a process could otherwise pass for the scheduler of its machine.
class PeerVerifier final : public tls::ExternalCertificateVerifier {
 public:
  PeerVerifier(std::shared_ptr<const Credentials> credentials,
               std::shared_ptr<const TlsPeers> judge, std::vector<Role> peers)
      : credentials_(std::move(credentials)), judge_(std::move(judge)), peers_(std::move(peers)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request, std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    std::optional<Identity> peer;
    for (const grpc::string_ref& uri : request->uri_names()) {
      if (!peer) peer = IdentityOfUri(View(uri));
    }
    *status = Judge(peer);
    if (!status->ok()) return true;
    const absl::Status good =
        judge_->Check({.certificate = std::string(View(request->peer_cert())),
                       .chain = std::string(View(request->peer_cert_full_chain()))},
                      std::time(nullptr));
    if (!good.ok()) *status = {grpc::StatusCode::UNAUTHENTICATED, std::string(good.message())};
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  grpc::Status Judge(const std::optional<Identity>& peer) const {
    if (!peer) {
      return {grpc::StatusCode::UNAUTHENTICATED, "its certificate names no identity of Talweg"};
    }
    if (peers_.empty()) return grpc::Status::OK;
    std::string wanted;
    for (const Role role : peers_) {
      if (role == peer->role) return grpc::Status::OK;
      wanted += (wanted.empty() ? "" : " or ") + std::string(RoleName(role));
    }
    return {grpc::StatusCode::UNAUTHENTICATED,
            "its certificate is that of " + Describe(*peer) + ", not of " + wanted};
  }

  // Kept alive, because they watch files while gRPC uses them.
  const std::shared_ptr<const Credentials> credentials_;
  const std::shared_ptr<const TlsPeers> judge_;
  const std::vector<Role> peers_;
};

std::optional<Identity> CertificateOf(const grpc::AuthContext& context) {
  if (!context.IsPeerAuthenticated()) return std::nullopt;
  for (const grpc::string_ref& uri :
       context.FindPropertyValues(GRPC_PEER_SPIFFE_ID_PROPERTY_NAME)) {
    if (std::optional<Identity> identity = IdentityOfUri(View(uri))) return identity;
  }
  return std::nullopt;
}

// Shows the token in a file with every call, in the form that the server may have (TokenFor).
class TokenFromFile final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenFromFile(std::string path) : path_(std::move(path)) {}

  // Blocks only for a small local file, or one of a projected volume.
  bool IsBlocking() const override { return true; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext& channel,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    std::ifstream file(path_);
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    absl::StripAsciiWhitespace(&text);
    if (text.empty()) {
      return {grpc::StatusCode::UNAUTHENTICATED,
              "the token file " + path_ + " cannot be read, or is empty"};
    }
    const std::optional<Identity> server = CertificateOf(channel);
    const std::optional<std::string> shown = server ? TokenFor(*server, text) : std::nullopt;
    if (!shown) {
      return {grpc::StatusCode::UNAUTHENTICATED,
              "the service-account token in " + path_ + " is not shown to " +
                  (server ? "the " + Describe(*server) : "a daemon of no role") +
                  ", which could use it elsewhere: call it with a certificate"};
    }
    metadata->emplace(kTokenHeader, absl::StrCat(kBearer, *shown));
    return grpc::Status::OK;
  }

 private:
  const std::string path_;
};

// Returns the token of a call, or "" if it has none.
template <typename Metadata>
std::string TokenOf(const Metadata& metadata) {
  const auto header = metadata.find(kTokenHeader);
  if (header == metadata.end()) return "";
  const std::string value(View(header->second));
  return absl::StartsWithIgnoreCase(value, kBearer) ? value.substr(kBearerBytes) : "";
}

// A token goes before a certificate: the caller shows it on purpose, while the certificate may be
// its machine's.
template <typename Metadata>
absl::StatusOr<std::optional<Identity>> IdentifyCaller(const Metadata& metadata,
                                                       const grpc::AuthContext& context,
                                                       const Tokens& tokens,
                                                       const std::optional<Identity>& self) {
  const std::string token = TokenOf(metadata);
  if (token.empty()) return CertificateOf(context);
  TALWEG_ASSIGN_OR_RETURN(Identity identity, tokens.Check(token, self, std::time(nullptr)));
  return std::optional<Identity>(std::move(identity));
}

// Admits calls by the table of authorization.h.
class Gatekeeper final : public grpc::AuthMetadataProcessor {
 public:
  Gatekeeper(std::shared_ptr<const Credentials> credentials, std::shared_ptr<const Tokens> tokens)
      : credentials_(std::move(credentials)), tokens_(std::move(tokens)) {}

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata*,
                       OutputMetadata*) override {
    const absl::Status admitted = Judge(metadata, *context);
    return {static_cast<grpc::StatusCode>(admitted.code()), std::string(admitted.message())};
  }

 private:
  absl::Status Judge(const InputMetadata& metadata, const grpc::AuthContext& context) const {
    const auto path = metadata.find(":path");
    if (path == metadata.end()) return absl::InternalError("a call without a name");
    TALWEG_ASSIGN_OR_RETURN(const std::optional<Identity> caller,
                            IdentifyCaller(metadata, context, *tokens_, credentials_->identity()));
    return MayCall(View(path->second), caller);
  }

  const std::shared_ptr<const Credentials> credentials_;  // As above.
  const std::shared_ptr<const Tokens> tokens_;
};

}  // namespace

struct Credentials::Impl {
  TlsFiles files;
  std::shared_ptr<TlsPeers> peers;
  std::unique_ptr<TlsCopies> copies;
  std::string token_file;
  std::shared_ptr<const Tokens> tokens;

  std::shared_ptr<tls::CertificateProviderInterface> Provider() const {
    if (files.certificate.empty()) {
      return std::make_shared<tls::FileWatcherCertificateProvider>(copies->authority(), kRefreshS);
    }
    return std::make_shared<tls::FileWatcherCertificateProvider>(
        copies->key(), copies->certificate(), copies->authority(), kRefreshS);
  }
};

Credentials::Credentials(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Credentials::~Credentials() = default;

absl::StatusOr<std::shared_ptr<const Credentials>> Credentials::Load(
    const CredentialSources& sources) {
  if (sources.tls_directory.empty()) {
    if (sources.token_file.empty() && sources.accepted_tokens.empty()) return nullptr;
    return absl::InvalidArgumentError(
        "bearer tokens need TLS, since whoever sees one may use it: give tls_dir as well");
  }
  auto impl = std::make_unique<Impl>();
  TALWEG_ASSIGN_OR_RETURN(impl->files, CheckTlsFiles(sources.tls_directory));
  TALWEG_RETURN_IF_ERROR(CheckNotRevoked(impl->files));
  impl->peers = std::make_shared<TlsPeers>(impl->files.texts);
  TALWEG_ASSIGN_OR_RETURN(impl->copies, TlsCopies::Make(sources.tls_directory, impl->files,
                                                        impl->peers, sources.on_warning));
  TALWEG_ASSIGN_OR_RETURN(Tokens tokens, Tokens::Parse(sources.accepted_tokens, sources.token_keys,
                                                       sources.token_audience));
  impl->tokens = std::make_shared<const Tokens>(std::move(tokens));
  impl->token_file = sources.token_file;
  return std::shared_ptr<const Credentials>(new Credentials(std::move(impl)));
}

const std::optional<Identity>& Credentials::identity() const { return impl_->files.identity; }
int64_t Credentials::expires_unix_s() const { return impl_->files.expires_unix_s; }

std::shared_ptr<grpc::ServerCredentials> CredentialsAccess::Server(
    const std::shared_ptr<const Credentials>& credentials) {
  if (credentials == nullptr) return grpc::InsecureServerCredentials();
  const Credentials::Impl& impl = *credentials->impl_;
  tls::TlsServerCredentialsOptions options(impl.Provider());
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  // A client without a certificate may still show a token. The table refuses calls without an
  // identity.
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  std::shared_ptr<grpc::ServerCredentials> server = tls::TlsServerCredentials(options);
  server->SetAuthMetadataProcessor(std::make_shared<Gatekeeper>(credentials, impl.tokens));
  return server;
}

std::shared_ptr<grpc::ChannelCredentials> CredentialsAccess::Channel(
    const std::shared_ptr<const Credentials>& credentials, const std::string& address,
    std::span<const Role> peers) {
  if (credentials == nullptr || absl::StartsWith(address, "unix:")) {
    return grpc::InsecureChannelCredentials();
  }
  const Credentials::Impl& impl = *credentials->impl_;
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(impl.Provider());
  options.watch_root_certs();
  if (!impl.files.certificate.empty()) options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<PeerVerifier>(
      credentials, impl.peers, std::vector<Role>(peers.begin(), peers.end())));
  const std::shared_ptr<grpc::ChannelCredentials> channel = tls::TlsCredentials(options);
  if (impl.token_file.empty()) return channel;
  return grpc::CompositeChannelCredentials(
      channel,
      grpc::MetadataCredentialsFromPlugin(std::make_unique<TokenFromFile>(impl.token_file)));
}

void CredentialsAccess::EndWithCertificates(const std::shared_ptr<const Credentials>& credentials,
                                            grpc::ChannelArguments* arguments) {
  if (credentials != nullptr) SetTlsPeers(credentials->impl_->peers, arguments);
}

CredentialsAccess::Shown CredentialsAccess::ShownBy(const grpc::ServerContextBase& context,
                                                    const Credentials* credentials) {
  if (credentials == nullptr) return {};
  const std::shared_ptr<const grpc::AuthContext> shown = context.auth_context();
  const auto text = [&shown](const char* name) {
    const std::vector<grpc::string_ref> values = shown->FindPropertyValues(name);
    return values.empty() ? "" : std::string(View(values.front()));
  };
  return {.certificate = {.certificate = text(GRPC_X509_PEM_CERT_PROPERTY_NAME),
                          .chain = text(GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME)},
          .at_unix_s = std::time(nullptr)};
}

std::string CredentialsAccess::WhyEnded(const Shown& shown, const Credentials* credentials) {
  // Connections of callers without a certificate stay (guarded_reads.cc).
  if (credentials == nullptr || shown.certificate.certificate.empty()) return "";
  const TlsPeers& peers = *credentials->impl_->peers;
  const absl::Status good = peers.Check(shown.certificate, std::time(nullptr));
  if (!good.ok()) return std::string(good.message());
  if (!peers.MayBeOfOldCertificate(shown.at_unix_s)) return "";
  return "this process has a new certificate";
}

std::optional<Identity> CredentialsAccess::CallerOf(const grpc::ServerContextBase& context,
                                                    const Credentials* credentials) {
  if (credentials == nullptr) return std::nullopt;
  const absl::StatusOr<std::optional<Identity>> caller =
      IdentifyCaller(context.client_metadata(), *context.auth_context(),
                     *credentials->impl_->tokens, credentials->identity());
  return caller.ok() ? *caller : std::nullopt;
}

}  // namespace talweg::rpc
