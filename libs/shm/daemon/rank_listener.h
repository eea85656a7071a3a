// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_RANK_LISTENER_H_
#define TALWEG_LIBS_SHM_DAEMON_RANK_LISTENER_H_

#include <sys/types.h>

#include <optional>
#include <string>

#include "libs/base/descriptor.h"
#include "libs/base/spare_descriptor.h"
#include "libs/shm/daemon/outcome.h"

namespace talweg::shm {

// The socket at which ranks find their agent. One owner thread; nothing blocks.
class RankListener {
 public:
  struct Spec {
    std::string path;
    mode_t mode = 0600;
    std::optional<gid_t> gid;
  };
  struct Peer {
    Descriptor socket;  // Non-blocking, closed on exec.
    pid_t pid = 0;      // 0: the peer is in a foreign pid namespace.
    uid_t uid = 0;
  };

  // Binds and listens. Replaces a socket at `path` on which nobody listens. Anything else there
  // stays and is an error; kRankTaken names the living agent's pid.
  static Outcome<RankListener> Create(Spec spec);

  RankListener(RankListener&&) = default;
  RankListener& operator=(RankListener&&) = delete;
  // Removes the file, if it is still this listener's.
  ~RankListener();

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

  // Returns nullopt if nobody waits. If this process has no descriptor left, tells the peer so and
  // drops it.
  std::optional<Peer> Accept();

 private:
  RankListener() = default;

  std::string path_;
  Descriptor socket_;
  SpareDescriptor spare_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RANK_LISTENER_H_
