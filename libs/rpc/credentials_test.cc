// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/credentials.h"

#include <fcntl.h>
#include <google/protobuf/descriptor.h>
#include <openssl/core_names.h>
#include <openssl/ec.h>
#include <openssl/ecdsa.h>
#include <openssl/rsa.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "absl/strings/escaping.h"
#include "libs/base/test_directory.h"
#include "libs/rpc/admin_client.h"
#include "libs/rpc/admin_daemon.h"
#include "libs/rpc/authorization.h"
#include "libs/rpc/make_certificates.h"
#include "libs/rpc/openssl_types.h"
#include "libs/rpc/tls_files.h"
#include "libs/rpc/tokens.h"
#include "proto/talweg/scheduler/v1/membership.pb.h"
#include "proto/talweg/scheduler/v1/pool.pb.h"

namespace talweg::rpc {
namespace {

constexpr int64_t kTimeoutNs = 30'000'000'000;
constexpr std::array kAllRoles = {Role::kScheduler, Role::kAggregator, Role::kNode, Role::kOperator,
                                  Role::kViewer};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

bool Contains(const std::string& text, const std::string& part) {
  UNSCOPED_INFO("text: " << text);
  return text.find(part) != std::string::npos;
}

// Captures what the process writes to stderr, until End().
class StderrInFile {
 public:
  explicit StderrInFile(const std::string& path) : path_(path), stderr_(dup(STDERR_FILENO)) {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    REQUIRE(file >= 0);
    dup2(file, STDERR_FILENO);
    close(file);
  }
  StderrInFile(const StderrInFile&) = delete;
  StderrInFile& operator=(const StderrInFile&) = delete;
  ~StderrInFile() { End(); }

  std::string End() {
    if (stderr_ >= 0) {
      dup2(stderr_, STDERR_FILENO);
      close(std::exchange(stderr_, -1));
    }
    return TextOf(path_);
  }

 private:
  const std::string path_;
  int stderr_;
};

// An authority, and directories with certificates that it has signed.
class Authority {
 public:
  Authority() { REQUIRE(MakeAuthority(path("ca"), "example.org", 2).ok()); }

  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }

  // Makes a certificate. Returns its directory.
  std::string Certify(const Identity& identity, const std::string& name = "tls") {
    const absl::Status made =
        MakeCertificate(path("ca"), path(name), {.identity = identity, .life_s = kSecondsADay});
    INFO(made);
    REQUIRE(made.ok());
    return path(name);
  }

  std::shared_ptr<const Credentials> Load(const Identity& identity, const std::string& name = "tls",
                                          const std::string& accepted_tokens = "") {
    auto loaded = Credentials::Load(
        {.tls_directory = Certify(identity, name), .accepted_tokens = accepted_tokens});
    INFO(loaded.status());
    REQUIRE(loaded.ok());
    return *loaded;
  }

 private:
  TestDirectory directory_;
};

TEST_CASE("MakeCertificate: others may write to none of its directories", "[rpc]") {
  const mode_t before = umask(0);
  TestDirectory directory;
  const std::string pki = directory.path() + "/made/pki";
  REQUIRE(MakeAuthority(pki + "/ca", "example.org", 2).ok());
  REQUIRE(
      MakeCertificate(pki + "/ca", pki + "/viewer/", {.identity = {.role = Role::kViewer}}).ok());
  umask(before);
  for (const char* made : {"/..", "", "/ca", "/viewer"}) {
    struct stat found;
    REQUIRE(stat((pki + made).c_str(), &found) == 0);
    CHECK((found.st_mode & 0777) == 0755);
  }
}

TEST_CASE("Identity: its text and its certificate's name are read back", "[credentials]") {
  for (const Identity& identity : std::initializer_list<Identity>{{Role::kScheduler},
                                                                  {Role::kAggregator, "agg-0"},
                                                                  {Role::kNode, "a job/50 %ä"},
                                                                  {Role::kOperator},
                                                                  {Role::kViewer}}) {
    const std::string uri = UriOf(identity, "example.org");
    INFO(uri);
    CHECK(IdentityOfUri(uri) == identity);
    const std::string text =
        std::string(RoleName(identity.role)) + (identity.name.empty() ? "" : ":" + identity.name);
    CHECK(ParseIdentity(text) == identity);
  }
  CHECK(UriOf({Role::kNode, "a/b"}, "x") == "spiffe://x/talweg/node/a%2Fb");
}

TEST_CASE("Identity: any other name is refused", "[credentials]") {
  for (const char* uri :
       {"", "spiffe://", "spiffe:///talweg/operator", "https://x/talweg/operator",
        "spiffe://x/other/operator", "spiffe://x/talweg/", "spiffe://x/talweg/root",
        "spiffe://x/talweg/operator/name", "spiffe://x/talweg/node", "spiffe://x/talweg/node/",
        "spiffe://x/talweg/node/a/b", "spiffe://x/talweg/node/%4", "spiffe://x/talweg/node/%zz",
        "spiffe://x/talweg/operator?q", "spiffe://x"}) {
    INFO(uri);
    CHECK_FALSE(IdentityOfUri(uri));
  }
  for (const char* text : {"", "root", "node", "node:", "operator:x", "aggregator"}) {
    INFO(text);
    CHECK_FALSE(ParseIdentity(text));
  }
}

TEST_CASE("Authorization: a call without a row is refused, whoever makes it", "[credentials]") {
  for (const Role role : kAllRoles) {
    CHECK(absl::IsPermissionDenied(MayCall("/x.Y/Z", Identity{role})));
  }
  std::set<std::string_view> methods;
  for (const Rule& rule : Rules()) CHECK(methods.insert(rule.method).second);
}

TEST_CASE("Authorization: a call asks for the job secret if its request has a place for it",
          "[credentials]") {
  // The linker leaves out files of which nothing is named.
  REQUIRE(scheduler::v1::JoinRequest::descriptor() != nullptr);
  REQUIRE(scheduler::v1::RegisterAggregatorRequest::descriptor() != nullptr);
  // Callers of older releases show the secret there. An agent takes sealed calls alone.
  const std::string sealed_alone = "talweg.agent.v1.AdminService.SetTrace";
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  for (const Rule& rule : Rules()) {
    if (!rule.method.starts_with("/talweg.")) continue;
    std::string name(rule.method.substr(1));
    name[name.find('/')] = '.';
    INFO(name);
    const auto* method = pool->FindMethodByName(name);
    REQUIRE(method != nullptr);
    const bool has_place = method->input_type()->FindFieldByName("job_secret") != nullptr;
    CHECK(rule.asks_job_secret == (has_place || name == sealed_alone));
  }
}

TEST_CASE("Authorization: the error names the call, the caller and who may make it",
          "[credentials]") {
  const std::string method = "/talweg.agent.v1.AdminService/SetTrace";
  const absl::Status denied = MayCall(method, Identity{Role::kViewer});
  CHECK(absl::IsPermissionDenied(denied));
  CHECK(Contains(Message(denied), method + " is for operator, and the caller is viewer"));
  const absl::Status nobody = MayCall(method, std::nullopt);
  CHECK(absl::IsUnauthenticated(nobody));
  CHECK(Contains(Message(nobody), "tls_dir"));
  CHECK(MayCall(method, Identity{Role::kOperator}).ok());
  CHECK(MayCall("/grpc.health.v1.Health/Check", std::nullopt).ok());
}

TEST_CASE("Authorization: nobody may act as another", "[credentials]") {
  const Identity own{Role::kNode, "a"};
  CHECK(MayActAs(own, own).ok());
  CHECK(MayActAs(own, std::nullopt).ok());
  CHECK(MayActAs(own, Identity{Role::kNode, "*"}).ok());
  CHECK_FALSE(MayActAs(own, Identity{Role::kAggregator, "*"}).ok());
  const absl::Status other = MayActAs({Role::kNode, "b"}, own);
  CHECK(absl::IsPermissionDenied(other));
  CHECK(Contains(Message(other), "the caller is node of job 'a'"));
  CHECK_FALSE(MayActAs({Role::kNode, "a"}, Identity{Role::kAggregator, "a"}).ok());
  // An aggregator's certificate covers its lanes, and no other aggregator's.
  CHECK(MayActAs({Role::kAggregator, "a/1"}, Identity{Role::kAggregator, "a"}).ok());
  CHECK_FALSE(MayActAs({Role::kAggregator, "ab/1"}, Identity{Role::kAggregator, "a"}).ok());
  CHECK_FALSE(MayActAs({Role::kAggregator, "a"}, Identity{Role::kAggregator, "a/1"}).ok());
  CHECK_FALSE(MayActAs({Role::kNode, "a/1"}, Identity{Role::kNode, "a"}).ok());
}

// Signs service-account tokens as a cluster does.
class Signer {
 public:
  explicit Signer(const char* type) : type_(type) {
    key_.reset(is_rsa() ? EVP_RSA_gen(2048) : EVP_EC_gen("P-256"));
    REQUIRE(key_ != nullptr);
  }

  // Returns a JSON Web Key Set with the public key.
  std::string KeySet(const std::string& id = "k1") const {
    if (is_rsa()) {
      return R"({"keys":[{"kty":"RSA","kid":")" + id + R"(","n":")" +
             Base64(Number(OSSL_PKEY_PARAM_RSA_N)) + R"(","e":")" +
             Base64(Number(OSSL_PKEY_PARAM_RSA_E)) + R"("}]})";
    }
    return R"({"keys":[{"kty":"EC","crv":"P-256","kid":")" + id + R"(","x":")" +
           Base64(Padded(Number(OSSL_PKEY_PARAM_EC_PUB_X))) + R"(","y":")" +
           Base64(Padded(Number(OSSL_PKEY_PARAM_EC_PUB_Y))) + R"("}]})";
  }

  std::string Sign(const std::string& claims, const std::string& algorithm = "",
                   const std::string& id = "k1") const {
    const std::string named = algorithm.empty() ? (is_rsa() ? "RS256" : "ES256") : algorithm;
    const std::string text =
        Base64(R"({"alg":")" + named + R"(","kid":")" + id + R"("})") + "." + Base64(claims);
    const Owned<EVP_MD_CTX, EVP_MD_CTX_free> context(EVP_MD_CTX_new());
    size_t length = 0;
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key_.get());
    EVP_DigestSign(context.get(), nullptr, &length, bytes, text.size());
    std::string signature(length, '\0');
    EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &length,
                   bytes, text.size());
    signature.resize(length);
    return text + "." + Base64(is_rsa() ? signature : Plain(signature));
  }

 private:
  bool is_rsa() const { return std::string(type_) == "RSA"; }
  static std::string Base64(const std::string& bytes) {
    std::string text;
    absl::WebSafeBase64Escape(bytes, &text);
    return text;
  }
  static std::string Padded(const std::string& bytes) {
    return std::string(32 - bytes.size(), '\0') + bytes;
  }
  std::string Number(const char* parameter) const {
    BIGNUM* found = nullptr;
    REQUIRE(EVP_PKEY_get_bn_param(key_.get(), parameter, &found) == 1);
    const Owned<BIGNUM, BN_free> number(found);
    return Bytes(found);
  }
  static std::string Bytes(const BIGNUM* number) {
    std::string bytes(static_cast<size_t>(BN_num_bytes(number)), '\0');
    BN_bn2bin(number, reinterpret_cast<unsigned char*>(bytes.data()));
    return bytes;
  }
  // Takes r and s out of DER, and returns them one after the other.
  static std::string Plain(const std::string& der) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(der.data());
    const Owned<ECDSA_SIG, ECDSA_SIG_free> parts(
        d2i_ECDSA_SIG(nullptr, &bytes, static_cast<long>(der.size())));
    return Padded(Bytes(ECDSA_SIG_get0_r(parts.get()))) +
           Padded(Bytes(ECDSA_SIG_get0_s(parts.get())));
  }

  const char* const type_;
  OwnedKey key_;
};

constexpr char kTable[] = R"(
# People.
operator     token            0123456789abcdef0123456789abcdef   # A comment.
viewer       service-account  monitoring:eyes
node:resnet  service-account  training:worker
)";
constexpr char kClaims[] =
    R"({"sub":"system:serviceaccount:training:worker","aud":["talweg"],"exp":2000,"nbf":1000})";

const std::optional<Identity> kSelf = Identity{Role::kNode, "resnet"};

TEST_CASE("Tokens: bearer texts and service accounts stand for their identities", "[credentials]") {
  for (const char* type : {"RSA", "EC"}) {
    INFO(type);
    const Signer cluster(type);
    const absl::StatusOr<Tokens> tokens = Tokens::Parse(kTable, cluster.KeySet(), "talweg");
    INFO(tokens.status());
    REQUIRE(tokens.ok());
    const auto person = tokens->Check("0123456789abcdef0123456789abcdef", kSelf, 1500);
    CHECK((person.ok() && *person == Identity{Role::kOperator}));
    const auto worker = tokens->Check(cluster.Sign(kClaims), kSelf, 1500);
    INFO(worker.status());
    CHECK((worker.ok() && *worker == Identity{Role::kNode, "resnet"}));
  }
}

TEST_CASE("Tokens: only daemons of one identity accept what a daemon of that identity was shown",
          "[credentials]") {
  const std::string text = "0123456789abcdef0123456789abcdef";
  const Signer cluster("EC");
  const absl::StatusOr<Tokens> tokens = Tokens::Parse(kTable, cluster.KeySet(), "talweg");
  REQUIRE(tokens.ok());
  const Identity agent{Role::kNode, "resnet"};
  const Identity other{Role::kNode, "bert"};
  const Identity aggregator{Role::kAggregator, "resnet"};
  const std::string shown = TokenFor(agent, text).value_or("");
  CHECK_FALSE(Contains(shown, text));
  const auto accepted = tokens->Check(shown, agent, 1500);
  CHECK((accepted.ok() && *accepted == Identity{Role::kOperator}));
  for (const std::optional<Identity>& each : std::vector<std::optional<Identity>>{
           other, aggregator, Identity{Role::kScheduler}, std::nullopt}) {
    CHECK(absl::IsUnauthenticated(tokens->Check(shown, each, 1500).status()));
  }
  // Nobody can turn what a daemon was shown into a token for another identity.
  CHECK(absl::IsUnauthenticated(
      tokens->Check(TokenFor(other, shown).value_or(""), other, 1500).status()));
  CHECK(TokenFor(Identity{Role::kScheduler}, text) == text);
  const std::string account = cluster.Sign(kClaims);
  CHECK(TokenFor(Identity{Role::kScheduler}, account) == account);
  CHECK(TokenFor(aggregator, account) == account);
  CHECK_FALSE(TokenFor(agent, account).has_value());
}

TEST_CASE("Tokens: a token that is forged, late, early or meant for others is refused",
          "[credentials]") {
  const Signer cluster("EC");
  const absl::StatusOr<Tokens> tokens = Tokens::Parse(kTable, cluster.KeySet(), "talweg");
  REQUIRE(tokens.ok());
  const auto why = [&](const std::string& token, int64_t unix_s = 1500) {
    const absl::Status status = tokens->Check(token, kSelf, unix_s).status();
    CHECK(absl::IsUnauthenticated(status));
    return Message(status);
  };
  const std::string good = cluster.Sign(kClaims);
  CHECK(Contains(why(good, 2100), "has expired"));
  CHECK(Contains(why(good, 900), "not valid yet"));
  CHECK(Contains(why(Signer("EC").Sign(kClaims)), "no key of token_keys_file"));
  CHECK(Contains(why(cluster.Sign(kClaims, "none")), "no key of token_keys_file"));
  CHECK(Contains(why(cluster.Sign(kClaims, "", "other")), "no key of token_keys_file"));
  // This combines the claims of one token with the signature of another.
  const std::string viewer =
      cluster.Sign(R"({"sub":"system:serviceaccount:monitoring:eyes","aud":"talweg","exp":2000})");
  CHECK(tokens->Check(viewer, kSelf, 1500).ok());
  CHECK(Contains(why(viewer.substr(0, viewer.rfind('.')) + good.substr(good.rfind('.'))),
                 "no key of token_keys_file"));
  CHECK(Contains(
      why(cluster.Sign(R"({"sub":"system:serviceaccount:training:worker","aud":"x","exp":2000})")),
      "not for the audience 'talweg'"));
  CHECK(Contains(why(cluster.Sign(R"({"sub":"root","aud":"talweg","exp":2000})")),
                 "that of 'root', which tokens_file does not name"));
  CHECK(Contains(
      why(cluster.Sign(R"({"sub":"system:serviceaccount:training:worker","aud":"talweg"})")),
      "has expired, or does not say"));
  for (const char* junk : {"", ".", "..", "a.b.c", "e30.e30.", "not a token"}) why(junk);
}

TEST_CASE("Tokens: the error names a wrong line", "[credentials]") {
  const std::string keys = Signer("EC").KeySet();
  const auto why = [&](const std::string& table) {
    return Message(Tokens::Parse(table, keys, "talweg").status());
  };
  CHECK(Contains(why("\nroot token 0123456789abcdef0123456789abcdef"),
                 "line 2 of the tokens file begins with 'root'"));
  CHECK(Contains(why("viewer token short"), "has a token of 5 bytes"));
  CHECK(Contains(why("viewer"), "has 1 word"));
  CHECK(Contains(why("viewer password x"), "'password' for its second word"));
  CHECK(Contains(Message(Tokens::Parse("viewer service-account a:b", "", "").status()),
                 "needs token_keys_file"));
  CHECK_FALSE(Tokens::Parse("", "no JSON", "").ok());
  CHECK_FALSE(Tokens::Parse("", R"({"keys":[{"kty":"oct","k":"AA"}]})", "").ok());
}

TEST_CASE("TLS files: the error names the file of each defect", "[credentials]") {
  Authority authority;
  const std::string directory = authority.Certify({Role::kOperator});
  const absl::StatusOr<TlsFiles> good = CheckTlsFiles(directory);
  INFO(good.status());
  REQUIRE(good.ok());
  CHECK(good->identity == Identity{Role::kOperator});
  CHECK(good->expires_unix_s > std::time(nullptr));
  CHECK(good->expires_unix_s < std::time(nullptr) + 90'000);

  SECTION("Everybody may read the key") {
    REQUIRE(chmod((directory + "/tls.key").c_str(), 0644) == 0);
    CHECK(Contains(Message(CheckTlsFiles(directory).status()), "tls.key is a private key that"));
  }
  SECTION("The key belongs to another certificate") {
    const std::string other = authority.Certify({Role::kViewer}, "other");
    REQUIRE(rename((other + "/tls.key").c_str(), (directory + "/tls.key").c_str()) == 0);
    CHECK(Contains(Message(CheckTlsFiles(directory).status()), "is not the private key of"));
  }
  SECTION("There is no key") {
    REQUIRE(unlink((directory + "/tls.key").c_str()) == 0);
    CHECK(Contains(Message(CheckTlsFiles(directory).status()),
                   "/tls.key: No such file or directory; put the private key of tls.crt there"));
  }
  SECTION("The certificate is of another authority") {
    Authority stranger;
    REQUIRE(rename(stranger.path("ca/ca.crt").c_str(), (directory + "/ca.crt").c_str()) == 0);
    CHECK(Contains(Message(CheckTlsFiles(directory).status()), "is not trusted by"));
  }
  SECTION("There is no certificate") {
    std::ofstream(directory + "/tls.crt") << "nothing\n";
    CHECK(Contains(Message(CheckTlsFiles(directory).status()), "tls.crt holds no certificate"));
  }
  SECTION("The certificate names nobody") {
    REQUIRE(rename(authority.path("ca/ca.crt").c_str(), (directory + "/tls.crt").c_str()) == 0);
    REQUIRE(rename(authority.path("ca/ca.key").c_str(), (directory + "/tls.key").c_str()) == 0);
    CHECK(Contains(Message(CheckTlsFiles(directory).status()), "names no identity of Talweg"));
  }
  SECTION("An authority is enough for a process that only makes calls") {
    REQUIRE(unlink((directory + "/tls.crt").c_str()) == 0);
    const absl::StatusOr<TlsFiles> files = CheckTlsFiles(directory);
    REQUIRE(files.ok());
    CHECK_FALSE(files->identity);
  }
  SECTION("There are no files") {
    const std::string none = authority.path("none");
    CHECK(Contains(Message(CheckTlsFiles(none).status()), "tls_dir '" + none + "': open " + none +
                                                              "/ca.crt: No such file or directory; "
                                                              "give a directory with ca.crt"));
  }
}

TEST_CASE("TLS: callers are admitted by their certificates", "[credentials]") {
  Authority authority;
  AdminDaemon daemon(authority.Load({Role::kNode, "job"}, "daemon"));

  AgentAdminClient viewer(daemon.address(), kTimeoutNs, authority.Load({Role::kViewer}, "viewer"));
  const absl::Status looks = viewer.GetStatus({}).status();
  INFO(looks);
  CHECK(looks.ok());
  const absl::Status changes = viewer.SetTrace({});
  CHECK(absl::IsPermissionDenied(changes));
  CHECK(Contains(Message(changes), "SetTrace is for operator, and the caller is viewer"));

  AgentAdminClient person(daemon.address(), kTimeoutNs,
                          authority.Load({Role::kOperator}, "operator"));
  CHECK(person.SetTrace({}).ok());

  // This caller trusts the same authority, and has no certificate of its own.
  const std::string bare = authority.Certify({Role::kViewer}, "bare");
  REQUIRE(unlink((bare + "/tls.crt").c_str()) == 0);
  const auto asks = Credentials::Load({.tls_directory = bare});
  REQUIRE(asks.ok());
  AgentAdminClient nobody(daemon.address(), kTimeoutNs, *asks);
  CHECK(absl::IsUnauthenticated(nobody.GetStatus({}).status()));
  CHECK(CheckHealth(daemon.address(), "", kTimeoutNs, *asks).ok());
}

TEST_CASE("TLS: strangers and impostors are not let in", "[credentials]") {
  Authority authority;
  Authority other;
  AdminDaemon daemon(authority.Load({Role::kNode, "job"}, "daemon"));
  const int64_t short_ns = 3'000'000'000;

  // One stranger has no TLS, and one has another authority's certificate.
  AgentAdminClient plain(daemon.address(), short_ns);
  CHECK(Contains(Message(plain.GetStatus({}).status()), "do both ends have TLS (tls_dir)"));
  AgentAdminClient stranger(daemon.address(), short_ns, other.Load({Role::kOperator}));
  CHECK(Contains(Message(stranger.GetStatus({}).status()), "of an authority in ca.crt here?"));

  // An agent's certificate does not pass for a scheduler's.
  SchedulerAdminClient misled(daemon.address(), short_ns, authority.Load({Role::kViewer}, "v"));
  const absl::Status refused = misled.ListJobs().status();
  CHECK(Contains(Message(refused), "is its certificate of its role"));
}

TEST_CASE("TLS: gRPC writes no lines about handshakes to stderr", "[credentials]") {
  // gRPC would write them: the certificate has no host name, and the second client has no
  // certificate of ours.
  Authority authority;
  Authority other;
  AdminDaemon daemon(authority.Load({Role::kNode, "job"}, "daemon"));
  AgentAdminClient viewer(daemon.address(), kTimeoutNs, authority.Load({Role::kViewer}, "v"));
  AgentAdminClient stranger(daemon.address(), kTimeoutNs, other.Load({Role::kOperator}));
  StderrInFile log(authority.path("log"));
  CHECK(viewer.GetStatus({}).ok());
  CHECK_FALSE(stranger.GetStatus({}).ok());
  CHECK(log.End() == "");
}

TEST_CASE("TLS: a token stands for its identity", "[credentials]") {
  const std::string token = "0123456789abcdef0123456789abcdef";
  Authority authority;
  AdminDaemon daemon(authority.Load({Role::kNode, "job"}, "daemon", "operator token " + token));
  const std::string bare = authority.Certify({Role::kViewer}, "bare");
  REQUIRE(unlink((bare + "/tls.crt").c_str()) == 0);
  const std::string file = authority.path("token");
  std::ofstream(file) << token << "\n";
  const auto credentials = Credentials::Load({.tls_directory = bare, .token_file = file});
  REQUIRE(credentials.ok());
  AgentAdminClient client(daemon.address(), kTimeoutNs, *credentials);
  const absl::Status set = client.SetTrace({});
  INFO(set);
  CHECK(set.ok());
  // The daemon has not seen the token itself, and this one does not know it.
  const std::string shown = TokenFor({Role::kNode, "job"}, token).value_or("");
  AdminDaemon reader(authority.Load({Role::kNode, "job"}, "reader", "operator token " + shown));
  CHECK(AgentAdminClient(reader.address(), kTimeoutNs, *credentials).SetTrace({}).ok());

  // The file is read anew for each call.
  std::ofstream(file) << "another token of thirty-two bytes\n";
  const absl::Status refused = client.SetTrace({});
  CHECK(absl::IsUnauthenticated(refused));
  CHECK_FALSE(Contains(Message(refused), "another token"));
  CHECK_FALSE(Credentials::Load({.tls_directory = "", .token_file = file}).ok());
}

TEST_CASE("TLS: a new certificate is taken up while the daemon runs", "[credentials]") {
  Authority authority;
  AdminDaemon daemon(authority.Load({Role::kNode, "job"}, "daemon"));
  const auto viewer = authority.Load({Role::kViewer}, "viewer");
  // The daemon gets a certificate that viewers do not accept as an agent's.
  authority.Certify({Role::kAggregator, "agg"}, "daemon");
  const std::time_t end = std::time(nullptr) + 60;
  absl::Status status;
  do {
    status = AgentAdminClient(daemon.address(), 5'000'000'000, viewer).GetStatus({}).status();
  } while (status.ok() && std::time(nullptr) < end);
  CHECK_FALSE(status.ok());
  authority.Certify({Role::kNode, "job"}, "daemon");
  do {
    status = AgentAdminClient(daemon.address(), 5'000'000'000, viewer).GetStatus({}).status();
  } while (!status.ok() && std::time(nullptr) < end);
  INFO(status);
  CHECK(status.ok());
}

TEST_CASE("TLS: the old certificates stay in use while new ones are defective", "[credentials]") {
  Authority authority;
  Authority other;
  const std::string directory = authority.Certify({Role::kNode, "job"}, "daemon");
  std::mutex mutex;
  std::condition_variable changed;
  std::string refused;
  const auto loaded =
      Credentials::Load({.tls_directory = directory, .on_warning = [&](const std::string& text) {
                           const std::lock_guard lock(mutex);
                           refused = text;
                           changed.notify_all();
                         }});
  REQUIRE(loaded.ok());
  AdminDaemon daemon(*loaded);
  const auto viewer = authority.Load({Role::kViewer}, "viewer");
  const std::string stranger = other.Certify({Role::kNode, "job"}, "daemon");
  const std::map<std::string, std::string> defects = {
      {"", "tls.crt holds no certificate"},
      {"garbage", "tls.crt holds no certificate"},
      {TextOf(stranger + "/tls.crt"), "tls.key is not the private key of"},
  };
  for (const auto& [text, why] : defects) {
    INFO(why);
    {
      const std::lock_guard lock(mutex);
      refused.clear();
    }
    // This writes into the file itself. No other file takes its place.
    std::ofstream(directory + "/tls.crt") << text;
    {
      std::unique_lock lock(mutex);
      REQUIRE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return !refused.empty(); }));
      CHECK(Contains(refused, why));
      CHECK_FALSE(Contains(refused, "PRIVATE KEY"));
    }
    // This client makes a connection of its own.
    const absl::Status status =
        AgentAdminClient(daemon.address(), kTimeoutNs, viewer).GetStatus({}).status();
    INFO(status);
    CHECK(status.ok());
    authority.Certify({Role::kNode, "job"}, "daemon");
  }
}

}  // namespace
}  // namespace talweg::rpc
