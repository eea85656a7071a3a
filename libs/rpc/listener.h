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

// Accepts a port's connections, and no more of one peer than leave room for others
// (docs/quotas.md, "Connections"). A peer is an address. On this machine it is a user, as the
// kernel says who has the other end.
//
// A thread of its own accepts. gRPC closes what it is given and does not say when: a connection
// counts for as long as its descriptor still is that socket.
class Listener {
 public:
  // Takes over a connection; on the listener's thread.
  using OnAccepted = std::function<void(int listening, Descriptor connection)>;

  // `listening` is a socket that listens. Of one peer `peer_connections_max`; beyond
  // `connections_max` of all, kFewConnections. `users` outlives this and is told of connections
  // of this machine before they are handed over; may be null.
  Listener(Descriptor listening, size_t peer_connections_max, size_t connections_max,
           LocalUsers* users, OnAccepted on_accepted);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // No new ones.
  void Stop();

  static constexpr size_t kFewConnections = 4;

 private:
  struct Held {
    int descriptor = -1;
    ino_t socket = 0;
    std::string from;  // In users_; empty: it comes from another machine.
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

  // The thread's.
  std::map<std::string, std::vector<Held>> peers_;
  size_t held_count_ = 0;

  std::thread thread_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_LISTENER_H_
