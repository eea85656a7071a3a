// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_LOCAL_USERS_H_
#define TALWEG_LIBS_RPC_LOCAL_USERS_H_

#include <sys/types.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>

namespace talweg::rpc {

// The users of this machine at the other ends of a port's connections. The Listener adds each when
// it accepts. gRPC tells the services only the address from which a call comes.
//
// Any thread.
class LocalUsers {
 public:
  // `from` is "127.0.0.1:4711", or "[::1]:4711". It now belongs to this connection: `socket`, an
  // inode, tells it from earlier connections of the same address. `user` names the user: "user 0".
  void Add(const std::string& from, ino_t socket, const std::string& user) {
    const std::lock_guard lock(mutex_);
    ends_[from] = {socket, user};
  }
  // The connection is over.
  void Remove(const std::string& from, ino_t socket) {
    const std::lock_guard lock(mutex_);
    const auto found = ends_.find(from);
    if (found != ends_.end() && found->second.socket == socket) ends_.erase(found);
  }
  // Returns nullopt if the connection comes from another machine.
  std::optional<std::string> Find(const std::string& from) const {
    const std::lock_guard lock(mutex_);
    const auto found = ends_.find(from);
    if (found == ends_.end()) return std::nullopt;
    return found->second.user;
  }

 private:
  struct End {
    ino_t socket = 0;
    std::string user;
  };

  mutable std::mutex mutex_;
  std::map<std::string, End> ends_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_LOCAL_USERS_H_
