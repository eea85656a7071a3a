// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_RANK_SOCKET_H_
#define TALWEG_LIBS_SHM_DAEMON_RANK_SOCKET_H_

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "libs/base/descriptor.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// The agent's end of one rank's socket: turns bytes into messages and messages into bytes. One
// owner thread; nothing blocks. The kernel discards descriptors that a rank sends.
class RankSocket {
 public:
  explicit RankSocket(Descriptor socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  enum class Input {
    kTaken,    // Bytes came; there may be more.
    kNothing,  // Nothing was there.
    kEnded,    // The rank's end is closed. Earlier bytes are still to be parsed.
  };
  // Takes what has come, up to a bound. Level-triggered epoll reports the rest.
  Input Receive();

  enum class Next { kMessage, kNone, kGarbage };
  // Forgets what was received and not parsed.
  void DiscardInput() { parsed_ = input_.size(); }

  // Takes the next whole message. Its strings stay valid until the next call of Receive. With
  // kGarbage `*error` says why, and nothing later can be read.
  Next NextMessage(Message* message, std::string* error);

  enum class Output {
    kSent,
    kQueued,  // Some output is left: call Flush when the socket is writable.
    kBroken,  // The rank is gone, or does not read and the queue is full.
  };
  // `borrowed` descriptors stay valid until the message has been sent; `owned` ones are closed
  // then.
  Output Send(const Message& message, std::vector<int> borrowed = {},
              std::vector<Descriptor> owned = {});
  Output Flush();
  bool HasOutput() const { return !outbox_.empty(); }

  // Sends a Wake if it can be sent now. A full socket needs none: the rank has not read its bytes
  // yet.
  bool SendWake();

 private:
  struct Item {
    std::vector<std::byte> bytes;
    size_t sent = 0;
    std::vector<int> borrowed;
    std::vector<Descriptor> owned;
  };
  // As sendmsg: returns the bytes sent, or -1.
  long SendItem(const Item& item);

  Descriptor socket_;
  std::vector<std::byte> input_;
  size_t parsed_ = 0;
  std::deque<Item> outbox_;
  size_t outbox_bytes_ = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RANK_SOCKET_H_
