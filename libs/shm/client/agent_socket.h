// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_AGENT_SOCKET_H_
#define TALWEG_LIBS_SHM_CLIENT_AGENT_SOCKET_H_

#include <cstddef>
#include <cstdint>

#include "libs/base/descriptor.h"
#include "libs/shm/client/deadline.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// The rank's end of the socket. Any thread may send. One thread at a time may receive; the caller
// ensures this. Needs libc only.
class AgentSocket {
 public:
  AgentSocket() = default;
  ~AgentSocket();

  // Waits up to `agent_wait` for an agent to listen at `path`. kNoAgent, kPermissionDenied, ...
  RankStatus Connect(const char* path, const Deadline& agent_wait, ErrorText& error);

  enum class Sent { kSent, kFull, kBroken };
  // Never blocks. Returns kFull, and sends nothing, while the socket's buffer is full.
  Sent Send(const Message& message);
  // Blocks until the socket takes more, or until the deadline.
  void WaitWritable(const Deadline& deadline);

  // Sleeps until something can be read, the other end is closed, or the deadline has passed. A
  // signal also ends the sleep.
  void WaitReadable(const Deadline& deadline);

  enum class Received {
    kMessage,
    kNothing,  // No whole message has come yet.
    kEnded,    // The other end is closed, and everything has been read.
    kInvalid,  // The bytes that came are not a message; *reason says why.
    kLimit,    // Descriptors came that this process has no room for; *reason says so.
  };
  // Takes the next message; never blocks. Strings of `message` are valid until the next call.
  Received Next(Message* message, const char** reason);
  // Takes the next of the descriptors that came, in order. Not valid if there is none.
  Descriptor TakeDescriptor();

  int fd() const { return socket_.get(); }
  // Shuts both directions down, and wakes threads that wait. The descriptor stays open until
  // destruction.
  void Shutdown();
  // In a forked child: closes the child's copy of the descriptor, unless the child has put another
  // file in its place.
  void CloseInChild();

 private:
  static constexpr size_t kInputBytes = kMessageHeaderBytes + kBodyBytesMax;
  static constexpr uint32_t kQueuedMax = 64;

  enum class Read { kBytes, kNothing, kEnded, kLimit };
  Read ReadSome(const char** reason);

  Descriptor socket_;
  uint64_t cookie_ = 0;         // The kernel's name for this socket; 0: none was given.
  std::byte* input_ = nullptr;  // kInputBytes.
  size_t begin_ = 0;
  size_t end_ = 0;
  int queued_[kQueuedMax];
  uint32_t queued_begin_ = 0;
  uint32_t queued_end_ = 0;
  bool ended_ = false;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_AGENT_SOCKET_H_
