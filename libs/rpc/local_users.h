// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_LOCAL_USERS_H_
#define TALWEG_LIBS_RPC_LOCAL_USERS_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace talweg::rpc {

// Which user of this machine is at the other end of a port's connection. The Listener notes it as
// it accepts one. gRPC tells the services no more than where a call comes from.
//
// Any thread.
class LocalUsers {
 public:
  // `from` is "127.0.0.1:4711", or "[::1]:4711". It is the newest connection's: `socket`, an inode,
  // tells that one from those before it.
  void Add(const std::string& from, ino_t socket, uint32_t user) {
    const std::lock_guard lock(mutex_);
    ends_[from] = {socket, user};
  }
  // That connection is over.
  void Remove(const std::string& from, ino_t socket) {
    const std::lock_guard lock(mutex_);
    const auto found = ends_.find(from);
    if (found != ends_.end() && found->second.socket == socket) ends_.erase(found);
  }
  // nullopt: it comes from another machine.
  std::optional<uint32_t> Find(const std::string& from) const {
    const std::lock_guard lock(mutex_);
    const auto found = ends_.find(from);
    if (found == ends_.end()) return std::nullopt;
    return found->second.user;
  }

 private:
  struct End {
    ino_t socket = 0;
    uint32_t user = 0;
  };

  mutable std::mutex mutex_;
  std::map<std::string, End> ends_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_LOCAL_USERS_H_
