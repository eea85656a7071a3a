// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LIBFABRIC_HALF_OPEN_H_
#define TALWEG_LIBS_TRANSPORT_LIBFABRIC_HALF_OPEN_H_

#include <dirent.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "libs/transport/socket_address.h"

namespace talweg::transport {

// Bounds the connections that libfabric's tcp provider holds for strangers.
//
// libfabric accepts every connection to a listener, and keeps the socket until a first message
// comes. It reports none of these connections before that. But its sockets are descriptors of this
// process. So this class searches the process's descriptors for sockets of our listeners that are
// no peer's. If there are too many, or one is too old, it shuts the socket down. libfabric takes
// that for the stranger's end, and closes the socket.
//
// A burst is bounded, too. The kernel gives out the lowest free descriptor, so the lowest free
// number shows how many were opened at most since the last look. If that is many, this class looks
// at once.
//
// Owned by the transport's thread, the only one on which libfabric accepts or closes.
class HalfOpen {
 public:
  struct Options {
    int64_t timeout_ns = 0;  // How long one may live.
    size_t max = 0;          // How many there may be, of all hosts; next, of one host.
    size_t of_host_max = 0;
  };
  // How often to look while there are strangers. Less often if the process has many descriptors.
  static constexpr int64_t kLookNs = 20'000'000;
  static constexpr int64_t kLookNsForEach = 20'000;
  // Looks at once if the process may have opened kBurstMax descriptors since the last look. Checks
  // that in every kCallsForEachProbe-th call of NoteActivity.
  static constexpr int kBurstMax = 32;
  static constexpr int kCallsForEachProbe = 8;

  explicit HalfOpen(const Options& options) : options_(options) {}

  // Adds an address at which libfabric listens. It may be a wildcard address.
  void AddListener(const SocketAddress& address);

  // Call it after asking libfabric for events: each such call may accept one connection.
  void NoteActivity(int64_t now_ns);
  // Returns when to look; nullopt: there is nothing to look for.
  std::optional<int64_t> due_ns() const { return due_ns_; }
  // Ends strangers' connections that are too old or too many. `peers`: the addresses of our peers
  // ("10.0.0.7:20000"). Returns how many it ended.
  size_t Look(const std::unordered_set<std::string>& peers, int64_t now_ns);

 private:
  struct Stranger {
    int descriptor = -1;
    std::string host;
    int64_t since_ns = 0;
  };
  using Key = std::pair<int, std::string>;  // Descriptor and address.

  // Returns whether a look cannot wait.
  bool IsBurst();
  bool IsListeners(const SocketAddress& local) const;
  // Returns all strangers, and records them in since_ns_.
  std::vector<Stranger> FindAll(const std::unordered_set<std::string>& peers, int64_t now_ns);

  struct DirectoryCloser {
    void operator()(DIR* directory) const { closedir(directory); }
  };

  const Options options_;
  std::vector<SocketAddress> listeners_;
  // Lists this process's descriptors. Stays open, because strangers may use up all descriptors.
  std::unique_ptr<DIR, DirectoryCloser> descriptors_;
  std::map<Key, int64_t> since_ns_;  // When each was first seen.
  std::optional<int64_t> due_ns_;
  int64_t next_look_ns_ = 0;  // No look before that.
  int64_t pause_ns_ = kLookNs;
  int calls_ = 0;  // Calls of NoteActivity since the last probe.
  // The lowest free descriptor at the last look, or a lower one since then.
  int lowest_free_ = 0;
  bool is_known_ = false;  // Whether lowest_free_ is known.
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LIBFABRIC_HALF_OPEN_H_
