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
// libfabric accepts whoever connects to a listener, and keeps the socket until the first message of
// whoever that is has come. It tells nobody of it before. But its sockets are descriptors of this
// process. So those of our listeners that are no peers' are looked for among them. Where there are
// too many, or one is too old, it is shut down. libfabric reads that as the stranger's end, and
// closes the socket itself.
//
// A burst is bounded, too. The kernel gives out the lowest free descriptor. So between two looks no
// more were opened than the lowest free one has risen by. Where that is much, we look at once.
//
// Belongs to the transport's thread: no other has libfabric accept or close.
class HalfOpen {
 public:
  struct Options {
    int64_t timeout_ns = 0;  // As long may one live.
    size_t max = 0;          // So many there may be, of all hosts and of one.
    size_t of_host_max = 0;
  };
  // How often we look while there are some. Longer where the process has many descriptors.
  static constexpr int64_t kLookNs = 20'000'000;
  static constexpr int64_t kLookNsForEach = 20'000;
  // We look at once where the process may have opened so many descriptors since the last look. That
  // is asked once in so many calls of NoteActivity.
  static constexpr int kBurstMax = 32;
  static constexpr int kCallsForEachProbe = 8;

  explicit HalfOpen(const Options& options) : options_(options) {}

  // libfabric listens there. The address may be a wildcard's.
  void AddListener(const SocketAddress& address);

  // Somebody may have connected: libfabric was asked for events, and accepts one in a call.
  void NoteActivity(int64_t now_ns);
  // When to look; nullopt: there is nothing to look for.
  std::optional<int64_t> due_ns() const { return due_ns_; }
  // `peers`: the addresses of our peers ("10.0.0.7:20000"). Returns how many were ended.
  size_t Look(const std::unordered_set<std::string>& peers, int64_t now_ns);

 private:
  struct Stranger {
    int descriptor = -1;
    std::string host;
    int64_t since_ns = 0;
  };
  using Key = std::pair<int, std::string>;  // Descriptor and address.

  // Whether a look cannot wait.
  bool IsBurst();
  bool IsListeners(const SocketAddress& local) const;
  // All there are, and notes them in since_ns_.
  std::vector<Stranger> FindAll(const std::unordered_set<std::string>& peers, int64_t now_ns);

  struct DirectoryCloser {
    void operator()(DIR* directory) const { closedir(directory); }
  };

  const Options options_;
  std::vector<SocketAddress> listeners_;
  // Lists this process's descriptors. Held open: strangers may leave none to open it with.
  std::unique_ptr<DIR, DirectoryCloser> descriptors_;
  std::map<Key, int64_t> since_ns_;  // When each was first seen.
  std::optional<int64_t> due_ns_;
  int64_t next_look_ns_ = 0;  // Not before.
  int64_t pause_ns_ = kLookNs;
  int calls_ = 0;          // NoteActivity was called, since the last probe.
  int lowest_free_ = 0;    // Descriptor, at the last look, or less since then.
  bool is_known_ = false;  // lowest_free_ is.
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LIBFABRIC_HALF_OPEN_H_
