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

// The socket that ranks find their agent by. One owner thread; nothing blocks.
class RankListener {
 public:
  struct Spec {
    std::string path;
    mode_t mode = 0600;
    std::optional<gid_t> gid;
  };
  struct Peer {
    Descriptor socket;  // Non-blocking, closed on exec.
    pid_t pid = 0;      // 0: in a foreign pid namespace.
    uid_t uid = 0;
  };

  // Binds and listens. A socket at `path` that nobody listens on is replaced; everything else there
  // stays and is an error: kRankTaken names the living agent's pid.
  static Outcome<RankListener> Create(Spec spec);

  RankListener(RankListener&&) = default;
  RankListener& operator=(RankListener&&) = delete;
  // Removes the file, if it is still this listener's.
  ~RankListener();

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

  // nullopt when nobody waits. When this process has no descriptor left the peer is told so and
  // dropped.
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
