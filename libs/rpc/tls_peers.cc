// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/tls_peers.h"

#include <sys/socket.h>

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"

namespace talweg::rpc {
namespace {

constexpr size_t kToldMax = 1000;
// How long after a change of files gRPC may still use the old certificate: it looks each second.
constexpr int64_t kTakeUpS = 3;
// Connections end at most so much later, because tls_copies.cc looks as often.
constexpr int64_t kLookS = 3;

}  // namespace

TlsPeers::TlsPeers(const TlsTexts& texts)
    : trust_(std::make_shared<const TlsTrust>(texts)), own_(texts.certificate) {}

std::shared_ptr<const TlsTrust> TlsPeers::trust() const {
  const std::lock_guard lock(mutex_);
  return trust_;
}

absl::Status TlsPeers::Check(const PeerCertificate& peer, int64_t now_unix_s) const {
  return trust()->GoodUntil(peer, now_unix_s).status();
}

bool TlsPeers::MayBeOfOldCertificate(int64_t since_unix_s) const {
  const std::lock_guard lock(mutex_);
  return since_unix_s < own_since_unix_s_ + kTakeUpS + kLookS;
}

void TlsPeers::Add(const void* connection, int socket, End end, PeerCertificate peer,
                   int64_t now_unix_s) {
  std::shared_ptr<const TlsTrust> trust = this->trust();
  const absl::StatusOr<int64_t> good_until_unix_s = trust->GoodUntil(peer, now_unix_s);
  Connection added = {.socket = socket,
                      .end = end,
                      .added_unix_s = now_unix_s,
                      .peer = std::make_shared<const PeerCertificate>(std::move(peer))};
  const std::lock_guard lock(mutex_);
  Judge(added, std::move(trust), good_until_unix_s);
  connections_[connection] = std::move(added);
}

void TlsPeers::Remove(const void* connection) {
  const std::lock_guard lock(mutex_);
  connections_.erase(connection);
}

void TlsPeers::SetTrust(const TlsTexts& texts, int64_t now_unix_s) {
  auto trust = std::make_shared<const TlsTrust>(texts);
  const std::lock_guard lock(mutex_);
  trust_ = std::move(trust);
  if (own_ != texts.certificate) {
    own_ = texts.certificate;
    own_since_unix_s_ = now_unix_s;
  }
  told_.clear();
}

void TlsPeers::EndOld(int64_t now_unix_s) {
  std::vector<std::pair<const void*, std::shared_ptr<const PeerCertificate>>> doubtful;
  std::shared_ptr<const TlsTrust> trust;
  {
    const std::lock_guard lock(mutex_);
    EndThoseOfOldCertificate(now_unix_s);
    trust = trust_;
    for (const auto& [key, connection] : connections_) {
      if (connection.has_ended) continue;
      if (connection.trust == trust && now_unix_s <= connection.good_until_unix_s) continue;
      doubtful.emplace_back(key, connection.peer);
    }
  }
  for (const auto& [key, peer] : doubtful) {
    // Not under the lock, because it takes the time of a signature, and gRPC's threads would wait.
    const absl::StatusOr<int64_t> good_until_unix_s = trust->GoodUntil(*peer, now_unix_s);
    const std::lock_guard lock(mutex_);
    const auto found = connections_.find(key);
    // The connection may be over, and another in its place.
    if (found == connections_.end() || found->second.peer != peer) continue;
    Judge(found->second, trust, good_until_unix_s);
  }
}

void TlsPeers::EndThoseOfOldCertificate(int64_t now_unix_s) {
  const int64_t taken_up_unix_s = own_since_unix_s_ + kTakeUpS;
  if (now_unix_s < taken_up_unix_s) return;
  for (auto& [key, connection] : connections_) {
    if (connection.end == End::kClient || connection.added_unix_s >= taken_up_unix_s) continue;
    if (!std::exchange(connection.has_ended, true)) shutdown(connection.socket, SHUT_RDWR);
  }
}

void TlsPeers::Judge(Connection& connection, std::shared_ptr<const TlsTrust> trust,
                     const absl::StatusOr<int64_t>& good_until_unix_s) {
  connection.trust = std::move(trust);
  connection.good_until_unix_s = good_until_unix_s.value_or(INT64_MAX);
  if (good_until_unix_s.ok()) return;
  const bool is_revoked = absl::IsPermissionDenied(good_until_unix_s.status());
  if (connection.end == End::kClient && !is_revoked) return;
  // Both sides find it closed. gRPC closes the socket itself.
  shutdown(connection.socket, SHUT_RDWR);
  connection.has_ended = true;
  Tell(good_until_unix_s.status());
}

std::vector<std::string> TlsPeers::TakeReasons() {
  const std::lock_guard lock(mutex_);
  return std::exchange(reasons_, {});
}

void TlsPeers::Tell(const absl::Status& why) {
  // An authority that signs ever more certificates must not fill the memory.
  if (told_.size() >= kToldMax || !told_.emplace(why.message()).second) return;
  reasons_.push_back(absl::StrCat("a connection ends: ", why.message()));
}

}  // namespace talweg::rpc
