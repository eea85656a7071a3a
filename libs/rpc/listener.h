// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_LISTENER_H_
#define TALWEG_LIBS_RPC_LISTENER_H_

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/rpc/local_users.h"

namespace talweg::rpc {

// Accepts a port's connections, but limits those of one peer so that others have room
// (docs/quotas.md, "Connections"). A peer is an address. On this machine it is a user: the kernel
// says who owns the other end.
//
// A thread of its own accepts. gRPC does not say when it closes a connection, so a connection
// counts as long as its descriptor is still the same socket.
class Listener {
 public:
  // Takes over a connection; on the listener's thread.
  using OnAccepted = std::function<void(int listening, Descriptor connection)>;

  // `listening` is a listening socket. A peer may have `peer_connections_max` connections, but only
  // kFewConnections while all peers have `connections_max`. Connections from this machine are added
  // to `users` before they are handed over. `users` outlives this object, and may be null.
  Listener(Descriptor listening, size_t peer_connections_max, size_t connections_max,
           LocalUsers* users, OnAccepted on_accepted);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Accepts no more connections.
  void Stop();

  static constexpr size_t kFewConnections = 4;

 private:
  struct Held {
    int descriptor = -1;
    ino_t socket = 0;
    std::string from;  // Its key in users_; empty: it comes from another machine.
  };

  void Run();
  void Accept();
  bool MayStay(const std::string& peer);
  void ForgetClosed(std::vector<Held>& held);

  const Descriptor listening_;
  const size_t peer_connections_max_;
  const size_t connections_max_;
  LocalUsers* const users_;
  const OnAccepted on_accepted_;
  Descriptor stop_;

  // Owned by the thread.
  std::map<std::string, std::vector<Held>> peers_;
  size_t held_count_ = 0;

  std::thread thread_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_LISTENER_H_
