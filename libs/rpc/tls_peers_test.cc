// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/tls_peers.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "absl/strings/match.h"
#include "libs/base/descriptor.h"
#include "libs/base/test_directory.h"
#include "libs/rpc/admin_client.h"
#include "libs/rpc/admin_daemon.h"
#include "libs/rpc/credentials.h"
#include "libs/rpc/make_certificates.h"
#include "libs/rpc/openssl_types.h"
#include "libs/rpc/tls_files.h"
#include "libs/rpc/tls_trust.h"

namespace talweg::rpc {
namespace {

using End = TlsPeers::End;

constexpr int64_t kTimeoutNs = 30'000'000'000;
// Only ends a hang.
constexpr std::chrono::seconds kPatience{120};

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void Check(const absl::Status& status) {
  INFO(status);
  REQUIRE(status.ok());
}

void CheckText(const absl::Status& status, const std::string& part) {
  INFO(status);
  CHECK(status.message().find(part) != std::string::npos);
}

// An authority, and directories with certificates that it has signed.
class Pki {
 public:
  Pki() { Check(MakeAuthority(path("ca"), "example.org", 2)); }

  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }

  std::string Certify(const std::string& name, const Identity& identity,
                      int64_t life_s = kSecondsADay) const {
    Check(MakeCertificate(path("ca"), path(name), {.identity = identity, .life_s = life_s}));
    return path(name);
  }
  // Revokes the certificate that is in the directory now. The certificate stays there.
  void Revoke(const std::string& name) const {
    Check(RevokeCertificate(path("ca"), path(name) + "/tls.crt"));
  }
  void CopyList(const std::string& name) const { Check(CopyRevocations(path("ca"), path(name))); }

  // Changes the authority's list, or its certificate, and signs it again.
  void SignList(const std::function<void(X509_CRL*)>& change) const {
    SignAgain<OwnedRevocationList, PEM_read_X509_CRL, X509_CRL_sign, PEM_write_X509_CRL>(
        path("ca/ca.crl"), change);
  }
  void SignAuthority(const std::function<void(X509*)>& change) const {
    SignAgain<OwnedCertificate, PEM_read_X509, X509_sign, PEM_write_X509>(path("ca/ca.crt"),
                                                                          change);
  }

  TlsTexts Texts() const {
    return {.authority = TextOf(path("ca/ca.crt")), .revoked = TextOf(path("ca/ca.crl"))};
  }
  TlsTexts TextsOf(const std::string& name) const {
    return {.authority = TextOf(path("ca/ca.crt")), .certificate = TextOf(path(name) + "/tls.crt")};
  }
  PeerCertificate Shown(const std::string& name) const {
    const std::string text = TextOf(path(name) + "/tls.crt");
    return {.certificate = text, .chain = text};
  }

 private:
  template <typename Owned, auto read, auto sign, auto write>
  void SignAgain(const std::string& signed_path, const auto& change) const {
    const OwnedFile old(std::fopen(signed_path.c_str(), "r"));
    const Owned found(read(old.get(), nullptr, nullptr, nullptr));
    REQUIRE(found != nullptr);
    change(found.get());
    REQUIRE(sign(found.get(), Key().get(), EVP_sha256()) != 0);
    const OwnedFile file(std::fopen(signed_path.c_str(), "w"));
    REQUIRE(write(file.get(), found.get()) == 1);
  }
  OwnedKey Key() const {
    const OwnedFile file(std::fopen(path("ca/ca.key").c_str(), "r"));
    OwnedKey key(PEM_read_PrivateKey(file.get(), nullptr, nullptr, nullptr));
    REQUIRE(key != nullptr);
    return key;
  }

  TestDirectory directory_;
};

// The two ends of a connection.
struct Pair {
  Pair() {
    std::array<int, 2> sockets{};
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) == 0);
    ours.Reset(sockets[0]);
    theirs.Reset(sockets[1]);
  }
  bool HasEnded() const {
    char byte = 0;
    return recv(theirs.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }
  Descriptor ours;
  Descriptor theirs;
};

TEST_CASE("TLS peers: a connection ends with its peer's certificate", "[credentials]") {
  const Pki pki;
  pki.Certify("short", {Role::kViewer}, 100);
  pki.Certify("long", {Role::kNode, "job"}, 1000);
  const int64_t now_s = std::time(nullptr);
  TlsPeers peers(pki.Texts());
  const Pair first;
  const Pair second;
  peers.Add(&first, first.ours.get(), End::kServer, pki.Shown("short"), now_s);
  peers.Add(&second, second.ours.get(), End::kServer, pki.Shown("long"), now_s);
  peers.EndOld(now_s + 90);
  CHECK_FALSE(first.HasEnded());
  CHECK(peers.TakeReasons().empty());

  peers.EndOld(now_s + 110);
  CHECK(first.HasEnded());
  CHECK_FALSE(second.HasEnded());
  const std::vector<std::string> reasons = peers.TakeReasons();
  REQUIRE(reasons.size() == 1);
  CHECK_THAT(reasons[0],
             Catch::StartsWith("a connection ends: the certificate of viewer (number ") &&
                 Catch::EndsWith("certificate has expired"));

  // A resumed TLS session may add a connection this late.
  const Pair late;
  peers.Add(&late, late.ours.get(), End::kServer, pki.Shown("short"), now_s + 120);
  CHECK(late.HasEnded());
  CHECK(peers.TakeReasons().empty());  // The reason has been reported already.
  // Connections that have ended by themselves are not affected.
  peers.Remove(&second);
  peers.EndOld(now_s + 2000);
  CHECK_FALSE(second.HasEnded());
}

TEST_CASE("TLS peers: the authority's list ends connections, and keeps out new ones",
          "[credentials]") {
  const Pki pki;
  pki.Certify("bad", {Role::kNode, "job"});
  pki.Certify("good", {Role::kNode, "job"});
  const int64_t now_s = std::time(nullptr);
  TlsPeers peers(pki.Texts());
  const Pair bad;
  const Pair good;
  peers.Add(&bad, bad.ours.get(), End::kServer, pki.Shown("bad"), now_s);
  peers.Add(&good, good.ours.get(), End::kServer, pki.Shown("good"), now_s);
  pki.Revoke("bad");
  peers.EndOld(now_s);
  CHECK_FALSE(bad.HasEnded());

  peers.SetTrust(pki.Texts(), now_s);
  peers.EndOld(now_s);
  CHECK(bad.HasEnded());
  CHECK_FALSE(good.HasEnded());
  const std::vector<std::string> reasons = peers.TakeReasons();
  REQUIRE(reasons.size() == 1);
  CHECK_THAT(reasons[0], Catch::Contains("node of job 'job' (number ") &&
                             Catch::Contains(" is revoked: ca.crl names it"));
  CHECK(absl::IsPermissionDenied(peers.Check(pki.Shown("bad"), now_s)));
  CHECK(peers.Check(pki.Shown("good"), now_s).ok());
  const Pair again;
  peers.Add(&again, again.ours.get(), End::kServer, pki.Shown("bad"), now_s);
  CHECK(again.HasEnded());

  // A second certificate joins the list.
  pki.Revoke("good");
  peers.SetTrust(pki.Texts(), now_s);
  peers.EndOld(now_s);
  CHECK(good.HasEnded());
  CHECK(absl::IsPermissionDenied(peers.Check(pki.Shown("bad"), now_s)));
}

TEST_CASE("TLS peers: a client ends connections with revoked servers only", "[credentials]") {
  const Pki pki;
  pki.Certify("server", {Role::kScheduler}, 100);
  pki.Certify("bad", {Role::kScheduler}, 100);
  const int64_t now_s = std::time(nullptr);
  TlsPeers peers(pki.Texts());
  const Pair good;
  const Pair bad;
  peers.Add(&good, good.ours.get(), End::kClient, pki.Shown("server"), now_s);
  peers.Add(&bad, bad.ours.get(), End::kClient, pki.Shown("bad"), now_s);
  // The certificates lapse, and then the authority is another one.
  peers.EndOld(now_s + 200);
  const Pki other;
  peers.SetTrust(other.Texts(), now_s);
  peers.EndOld(now_s + 200);
  CHECK_FALSE(good.HasEnded());
  CHECK_FALSE(bad.HasEnded());
  CHECK(peers.TakeReasons().empty());

  pki.Revoke("bad");
  peers.SetTrust(pki.Texts(), now_s);
  peers.EndOld(now_s);
  CHECK_FALSE(good.HasEnded());
  CHECK(bad.HasEnded());
}

TEST_CASE("TLS peers: a new certificate of its own ends a server's connections", "[credentials]") {
  const Pki pki;
  pki.Certify("own", {Role::kScheduler});
  pki.Certify("peer", {Role::kViewer});
  const int64_t now_s = std::time(nullptr);
  TlsPeers peers(pki.TextsOf("own"));
  const Pair old;
  const Pair to_server;
  peers.Add(&old, old.ours.get(), End::kServer, pki.Shown("peer"), now_s);
  peers.Add(&to_server, to_server.ours.get(), End::kClient, pki.Shown("peer"), now_s);
  CHECK_FALSE(peers.MayBeOfOldCertificate(now_s));
  pki.Certify("own", {Role::kScheduler});
  peers.SetTrust(pki.TextsOf("own"), now_s);
  // gRPC may still make handshakes with the old one.
  peers.EndOld(now_s);
  CHECK_FALSE(old.HasEnded());
  CHECK(peers.MayBeOfOldCertificate(now_s));
  const Pair late;
  peers.Add(&late, late.ours.get(), End::kServer, pki.Shown("peer"), now_s + 10);
  peers.EndOld(now_s + 10);
  CHECK(old.HasEnded());
  CHECK_FALSE(late.HasEnded());
  CHECK_FALSE(to_server.HasEnded());
  CHECK_FALSE(peers.MayBeOfOldCertificate(now_s + 10));
  // Reading the same certificate again changes nothing.
  peers.SetTrust(pki.TextsOf("own"), now_s + 20);
  peers.EndOld(now_s + 40);
  CHECK_FALSE(late.HasEnded());
}

TEST_CASE("TLS peers: another authority in its place ends the old one's connections",
          "[credentials]") {
  const Pki before;
  const Pki after;
  before.Certify("peer", {Role::kViewer});
  const int64_t now_s = std::time(nullptr);
  TlsPeers peers(before.Texts());
  const Pair pair;
  peers.Add(&pair, pair.ours.get(), End::kServer, before.Shown("peer"), now_s);
  TlsTexts both = before.Texts();
  both.authority += after.Texts().authority;
  peers.SetTrust(both, now_s);
  peers.EndOld(now_s);
  CHECK_FALSE(pair.HasEnded());
  peers.SetTrust(after.Texts(), now_s);
  peers.EndOld(now_s);
  CHECK(pair.HasEnded());
}

TEST_CASE("TLS peers: each of two authorities of one name has a list of its own", "[credentials]") {
  const Pki before;
  const Pki after;
  TlsTexts both;
  for (const Pki* pki : {&before, &after}) {
    for (const char* name : {"bad", "good", "bad, too"}) pki->Certify(name, {Role::kViewer});
    pki->Revoke("bad");
    pki->Revoke("bad, too");
    both.authority += pki->Texts().authority;
    both.revoked += pki->Texts().revoked;
  }
  const TlsPeers peers(both);
  for (const Pki* pki : {&before, &after}) {
    const int64_t now_s = std::time(nullptr);
    Check(peers.Check(pki->Shown("good"), now_s));
    CHECK(absl::IsPermissionDenied(peers.Check(pki->Shown("bad"), now_s)));
    CHECK(absl::IsPermissionDenied(peers.Check(pki->Shown("bad, too"), now_s)));
  }
}

TEST_CASE("TLS peers: a list that is overdue still revokes", "[credentials]") {
  const Pki pki;
  const std::string directory = pki.Certify("bad", {Role::kViewer});
  pki.Certify("good", {Role::kViewer});
  pki.Revoke("bad");
  const int64_t now_s = std::time(nullptr);
  pki.SignList([](X509_CRL* list) {
    const Owned<ASN1_TIME, ASN1_TIME_free> past(ASN1_TIME_set(nullptr, std::time(nullptr) - 60));
    REQUIRE(X509_CRL_set1_nextUpdate(list, past.get()) == 1);
  });
  const TlsPeers peers(pki.Texts());
  CHECK(absl::IsPermissionDenied(peers.Check(pki.Shown("bad"), now_s)));
  Check(peers.Check(pki.Shown("good"), now_s));
  // The files are valid: a daemon starts with them, and the doctor reports the list.
  pki.CopyList("bad");
  const absl::StatusOr<TlsFiles> files = CheckTlsFiles(directory);
  Check(files.status());
  CHECK(files->revoked_until_unix_s < now_s);
}

TEST_CASE("TLS files: the error names each defect of a list", "[credentials]") {
  const Pki pki;
  const std::string directory = pki.Certify("tls", {Role::kOperator});
  const std::string list = directory + "/ca.crl";
  CHECK(CheckTlsFiles(directory)->revoked.empty());
  pki.Certify("bad", {Role::kViewer});
  pki.Revoke("bad");
  pki.CopyList("tls");
  const absl::StatusOr<TlsFiles> files = CheckTlsFiles(directory);
  Check(files.status());
  CHECK(files->revoked == list);
  CHECK(files->revoked_until_unix_s > std::time(nullptr));
  CHECK(CheckNotRevoked(*files).ok());

  SECTION("There is no list") {
    std::ofstream(list) << "nothing\n";
    CheckText(CheckTlsFiles(directory).status(), "ca.crl holds no list of revoked certificates");
  }
  SECTION("There is half a list after a whole one") {
    const std::string text = TextOf(list);
    std::ofstream(list) << text << text.substr(0, text.size() / 2);
    CheckText(CheckTlsFiles(directory).status(), "or half of one");
  }
  SECTION("The list is another authority's") {
    const Pki other;
    other.Certify("bad", {Role::kViewer});
    other.Revoke("bad");
    REQUIRE(rename(other.path("ca/ca.crl").c_str(), list.c_str()) == 0);
    CheckText(CheckTlsFiles(directory).status(), "has a list that no authority of");
    CheckText(RevokeCertificate(pki.path("ca"), other.path("bad/tls.crt")),
              "is not of the authority in");
    CheckText(RevokeCertificate(pki.path("ca"), pki.path("ca/ca.crt")),
              "is the authority itself, which cannot be on its own list");
  }
  SECTION("The list has only changes") {
    pki.SignList([](X509_CRL* crl) {
      const Owned<ASN1_INTEGER, ASN1_INTEGER_free> base(ASN1_INTEGER_new());
      REQUIRE(X509_CRL_add1_ext_i2d(crl, NID_delta_crl, base.get(), 1, 0) == 1);
    });
    pki.CopyList("tls");
    CheckText(CheckTlsFiles(directory).status(), "has a list of some certificates or changes");
  }
  SECTION("The list is of an authority that may only sign certificates") {
    pki.SignAuthority([](X509* authority) {
      const int usage = X509_get_ext_by_NID(authority, NID_key_usage, -1);
      X509_EXTENSION_free(X509_delete_ext(authority, usage));
      const Owned<ASN1_BIT_STRING, ASN1_BIT_STRING_free> bits(ASN1_BIT_STRING_new());
      constexpr int kKeyCertSign = 5;
      ASN1_BIT_STRING_set_bit(bits.get(), kKeyCertSign, 1);
      REQUIRE(X509_add1_ext_i2d(authority, NID_key_usage, bits.get(), 1, 0) == 1);
    });
    std::filesystem::copy_file(pki.path("ca/ca.crt"), directory + "/ca.crt",
                               std::filesystem::copy_options::overwrite_existing);
    CheckText(CheckTlsFiles(directory).status(), "must have cRLSign");
  }
  SECTION("Nobody may read the list") {
    REQUIRE(unlink(list.c_str()) == 0);
    REQUIRE(mkdir(list.c_str(), 0700) == 0);
    CheckText(CheckTlsFiles(directory).status(), "ca.crl");
  }
  SECTION("The list revokes the process's own certificate") {
    pki.Revoke("tls");
    pki.CopyList("tls");
    const absl::StatusOr<TlsFiles> own = CheckTlsFiles(directory);
    Check(own.status());
    CheckText(CheckNotRevoked(*own), "tls.crt is revoked: ");
    CheckText(Credentials::Load({.tls_directory = directory}).status(), "tls.crt is revoked: ");
    pki.Certify("tls", {Role::kOperator});
    Check(Credentials::Load({.tls_directory = directory}).status());
  }
}

// Collects the warnings of credentials.
class Warnings {
 public:
  std::function<void(const std::string&)> Collector() {
    return [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      text_ += text + "\n";
      changed_.notify_all();
    };
  }
  void WaitFor(const std::string& part) {
    std::unique_lock lock(mutex_);
    const bool found =
        changed_.wait_for(lock, kPatience, [&] { return text_.find(part) != std::string::npos; });
    INFO(text_);
    REQUIRE(found);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
};

std::shared_ptr<const Credentials> Load(const std::string& directory, Warnings& warnings) {
  auto loaded = Credentials::Load({.tls_directory = directory, .on_warning = warnings.Collector()});
  Check(loaded.status());
  return *loaded;
}

// Where gRPC is a shared library, nothing watches its connections (guarded_reads.cc).
bool IsWatched() {
  const char* const sanitizer = std::getenv("TALWEG_SANITIZER");
  if (sanitizer == nullptr || std::string(sanitizer) != "tsan") return true;
  WARN("SKIPPED: gRPC is a shared library here, so its connections are not watched");
  return false;
}

// Asks until the answer is an error with that text, or is good if the text is "".
void AskUntil(AgentAdminClient& client, const std::string& error) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    const absl::Status status = client.GetStatus({}).status();
    if (error.empty() ? status.ok() : absl::StrContains(status.message(), error)) return;
    INFO(status);
    REQUIRE(std::chrono::steady_clock::now() < end);
  }
}

TEST_CASE("TLS: a server ends connections of revoked certificates", "[credentials]") {
  if (!IsWatched()) return;
  const Pki pki;
  Warnings said;
  Warnings said_by_client;
  AdminDaemon daemon(Load(pki.Certify("daemon", {Role::kNode, "job"}), said));
  AgentAdminClient client(daemon.address(), kTimeoutNs,
                          Load(pki.Certify("viewer", {Role::kViewer}), said_by_client));
  AgentAdminClient other(daemon.address(), kTimeoutNs,
                         Load(pki.Certify("other", {Role::kOperator}), said_by_client));
  Check(client.GetStatus({}).status());
  Check(other.GetStatus({}).status());
  pki.Revoke("viewer");
  pki.CopyList("daemon");
  said.WaitFor("a connection ends: the certificate of viewer (number ");
  AskUntil(client, "does not answer");
  // The holder of the certificate learns it from its own list.
  pki.CopyList("viewer");
  said_by_client.WaitFor("others end connections with this process: ");
  Check(other.GetStatus({}).status());
  // Another certificate lets it in again without a restart.
  pki.Certify("viewer", {Role::kViewer});
  AskUntil(client, "");
  // What a list has revoked stays revoked without the list.
  REQUIRE(unlink((pki.path("daemon") + "/ca.crl").c_str()) == 0);
  said.WaitFor("ca.crl is not there any more");
}

TEST_CASE("TLS: a client ends connections with a revoked server", "[credentials]") {
  if (!IsWatched()) return;
  const Pki pki;
  Warnings said;
  Warnings said_by_client;
  AdminDaemon daemon(Load(pki.Certify("daemon", {Role::kNode, "job"}), said));
  AgentAdminClient client(daemon.address(), kTimeoutNs,
                          Load(pki.Certify("viewer", {Role::kViewer}), said_by_client));
  Check(client.GetStatus({}).status());
  pki.Revoke("daemon");
  pki.CopyList("viewer");
  said_by_client.WaitFor("a connection ends: the certificate of node of job 'job' (number ");
  // The first answer may be about the connection that has ended.
  AskUntil(client, "is revoked: ca.crl names it");
  pki.Certify("daemon", {Role::kNode, "job"});
  AskUntil(client, "");
}

TEST_CASE("TLS: a connection ends with its certificate, and a peer with a new one goes on",
          "[credentials]") {
  if (!IsWatched()) return;
  const Pki pki;
  constexpr int64_t kShortS = 5;
  Warnings said;
  Warnings said_by_client;
  AdminDaemon daemon(Load(pki.Certify("daemon", {Role::kNode, "job"}), said));
  AgentAdminClient ends(daemon.address(), kTimeoutNs,
                        Load(pki.Certify("ends", {Role::kViewer}, kShortS), said_by_client));
  AgentAdminClient renews(daemon.address(), kTimeoutNs,
                          Load(pki.Certify("renews", {Role::kOperator}, kShortS), said_by_client));
  Check(ends.GetStatus({}).status());
  Check(renews.GetStatus({}).status());
  pki.Certify("renews", {Role::kOperator});
  said.WaitFor("a connection ends: the certificate of operator (number ");
  said.WaitFor("a connection ends: the certificate of viewer (number ");
  CHECK_FALSE(ends.GetStatus({}).ok());
  AskUntil(renews, "");
}

}  // namespace
}  // namespace talweg::rpc
