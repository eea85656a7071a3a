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

// The TLS connections of a process, at whichever end, and what their peers have shown. A server
// ends a connection when its client's certificate would not be good for a new one: it is over,
// revoked, or of an authority that is not trusted any more. A client that has another by then
// connects again.
//
// A server also ends the connections that were made with a certificate of its own that has been
// replaced. So it knows why they end, and its clients need not end them when that one is over. A
// client ends a connection when its server's certificate is revoked, and for nothing else: the
// scheduler would take that for the client's death.
//
// gRPC has no such thing. Its lists of revoked certificates (crl_directory, which is experimental
// in 1.51) and its verifiers are asked in handshakes alone, and there a list that is overdue keeps
// everybody out. Its max_connection_age ends connections of good certificates, too.
//
// Any thread.
class TlsPeers {
 public:
  // Which end of a connection this process is.
  enum class End : uint8_t { kClient, kServer };

  explicit TlsPeers(const TlsTexts& texts);

  // What a peer shows now. The statuses of TlsTrust.
  absl::Status Check(const PeerCertificate& peer, int64_t now_unix_s) const;

  // Whether a server's connection that carried a call since then may have been made with a
  // certificate of its own that has been replaced since.
  bool MayBeOfOldCertificate(int64_t since_unix_s) const;

  // A connection begins, and is over. `socket` stays open until then, and `connection` tells it
  // from others. It ends at once if the peer is not good: a handshake neither looks at lists nor,
  // where it takes up an earlier session, at the time.
  void Add(const void* connection, int socket, End end, PeerCertificate peer, int64_t now_unix_s);
  void Remove(const void* connection);

  // From now on these texts say who is good. Connections of others end with the next EndOld.
  void SetTrust(const TlsTexts& texts, int64_t now_unix_s);
  // Ends connections whose peers are not good any more, or that are of an old certificate.
  void EndOld(int64_t now_unix_s);
  // Why connections have ended since the last call: once for each certificate, until SetTrust.
  std::vector<std::string> TakeReasons();

 private:
  struct Connection {
    int socket = -1;
    End end = End::kServer;
    int64_t added_unix_s = 0;
    std::shared_ptr<const PeerCertificate> peer;
    // What judged it, and until when that holds.
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
