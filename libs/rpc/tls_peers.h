// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_TLS_PEERS_H_
#define TALWEG_LIBS_RPC_TLS_PEERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libs/rpc/tls_trust.h"

namespace talweg::rpc {

// The TLS connections of a process, as client or server, and their peers' certificates. A server
// ends a connection when its client's certificate would not be good for a new one: it is expired,
// revoked, or of an authority that is no longer trusted. A client that has another certificate by
// then connects again.
//
// A server also ends the connections that were made with an own certificate that has been replaced.
// So the server knows why they end, and its clients need not end them when that certificate
// expires. A client ends a connection only when its server's certificate is revoked: the scheduler
// would take an end for the client's death.
//
// gRPC cannot do this. It uses its lists of revoked certificates (crl_directory, experimental in
// 1.51) and its verifiers only in handshakes, where an overdue list keeps everybody out. Its
// max_connection_age also ends connections with good certificates.
//
// Any thread.
class TlsPeers {
 public:
  // Which end of a connection this process is.
  enum class End : uint8_t { kClient, kServer };

  explicit TlsPeers(const TlsTexts& texts);

  // Judges a peer's certificate. Returns the statuses of TlsTrust.
  absl::Status Check(const PeerCertificate& peer, int64_t now_unix_s) const;

  // Returns whether a server's connection that carried a call since `since_unix_s` may have been
  // made with an own certificate that was replaced later.
  bool MayBeOfOldCertificate(int64_t since_unix_s) const;

  // Add is called when a connection begins, Remove when it is over; `socket` stays open until then.
  // `connection` is a unique key. Add ends the connection at once if the peer's certificate is not
  // good: a handshake does not check lists, nor the time if it resumes a session.
  void Add(const void* connection, int socket, End end, PeerCertificate peer, int64_t now_unix_s);
  void Remove(const void* connection);

  // From now on `texts` decide which certificates are good. The next EndOld ends connections whose
  // peers' are not.
  void SetTrust(const TlsTexts& texts, int64_t now_unix_s);
  // Ends connections whose peers' certificates are no longer good, or that were made with a
  // replaced own certificate.
  void EndOld(int64_t now_unix_s);
  // Returns why connections have ended since the last call: once for each certificate, until
  // SetTrust.
  std::vector<std::string> TakeReasons();

 private:
  struct Connection {
    int socket = -1;
    End end = End::kServer;
    int64_t added_unix_s = 0;
    std::shared_ptr<const PeerCertificate> peer;
    // The TlsTrust that judged it, and until when the judgement holds.
    std::shared_ptr<const TlsTrust> trust;
    int64_t good_until_unix_s = 0;
    bool has_ended = false;
  };

  std::shared_ptr<const TlsTrust> trust() const;
  // With the lock held.
  void EndThoseOfOldCertificate(int64_t now_unix_s);
  // Shuts the socket if the peer is not good. With the lock held, so that the socket stays open.
  void Judge(Connection& connection, std::shared_ptr<const TlsTrust> trust,
             const absl::StatusOr<int64_t>& good_until_unix_s);
  void Tell(const absl::Status& why);

  mutable std::mutex mutex_;
  std::shared_ptr<const TlsTrust> trust_;
  std::string own_;
  int64_t own_since_unix_s_ = 0;
  std::map<const void*, Connection> connections_;
  std::set<std::string> told_;
  std::vector<std::string> reasons_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_TLS_PEERS_H_
