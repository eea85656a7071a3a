// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/agent_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <span>

#ifndef SO_COOKIE
#define SO_COOKIE 57
#endif

namespace talweg::shm {
namespace {

constexpr int64_t kRetryNs = 10'000'000;

uint64_t CookieOf(int socket) {
  uint64_t cookie = 0;
  socklen_t bytes = sizeof(cookie);
  return ::getsockopt(socket, SOL_SOCKET, SO_COOKIE, &cookie, &bytes) == 0 ? cookie : 0;
}

void Poll(int fd, short events, const Deadline& deadline) {
  pollfd polled{fd, events, 0};
  if (deadline.never()) {
    ::ppoll(&polled, 1, nullptr, nullptr);
    return;
  }
  const timespec left = ToTimespec(deadline.LeftNs(MonotonicNs()));
  ::ppoll(&polled, 1, &left, nullptr);
}

RankStatus ConnectFailed(const char* path, int number, ErrorText& error) {
  const char* reason = std::strerror(number);
  if (number == ENOENT || number == ECONNREFUSED) {
    return error.Fail(
        RankStatus::kNoAgent,
        "no agent is listening on '%s' (connect: %s): start one with `talweg agent` or "
        "run the program under `talweg run`",
        path, reason);
  }
  if (number == EACCES || number == EPERM) {
    return error.Fail(
        RankStatus::kPermissionDenied,
        "the agent's socket '%s' may not be opened by this user (connect: %s): run as the "
        "agent's user, or let the agent open its socket to a group",
        path, reason);
  }
  return error.Fail(RankStatus::kNoAgent, "the agent's socket '%s' cannot be connected: %s", path,
                    reason);
}

}  // namespace

AgentSocket::~AgentSocket() {
  while (TakeDescriptor().valid()) {
  }
  std::free(input_);
}

RankStatus AgentSocket::Connect(const char* path, const Deadline& agent_wait, ErrorText& error) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t path_bytes = std::strlen(path);
  if (path_bytes >= sizeof(address.sun_path)) {
    return error.Fail(RankStatus::kInvalidArgument,
                      "the agent's socket path has %zu bytes, the kernel takes at most %zu: '%s'",
                      path_bytes, sizeof(address.sun_path) - 1, path);
  }
  std::memcpy(address.sun_path, path, path_bytes + 1);
  input_ = static_cast<std::byte*>(std::malloc(kInputBytes));
  if (input_ == nullptr) return error.Fail(RankStatus::kOutOfMemory, "no memory for the client");
  for (;;) {
    socket_ = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket_.valid()) {
      return error.Fail(RankStatus::kLimit, "no socket for the agent: %s; raise ulimit -n",
                        std::strerror(errno));
    }
    if (::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) ==
        0) {
      cookie_ = CookieOf(socket_.get());
      return RankStatus::kOk;
    }
    const int number = errno;
    // EAGAIN: an agent listens, but more ranks connect at once than it accepts in one turn.
    const bool again =
        number == EAGAIN || number == EINTR || number == ENOENT || number == ECONNREFUSED;
    if (!again || agent_wait.Passed(MonotonicNs())) return ConnectFailed(path, number, error);
    Poll(-1, 0, Deadline::Earlier(agent_wait, Deadline(kRetryNs)));
  }
}

AgentSocket::Sent AgentSocket::Send(const Message& message) {
  std::byte bytes[kEncodedBytesMax];
  const size_t count = EncodeMessage(message, bytes);
  if (count == 0) return Sent::kBroken;
  for (;;) {
    const ssize_t sent = ::send(socket_.get(), bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    // A message is much shorter than what the kernel takes in one piece. The kernel takes all or
    // nothing, and never mixes the messages of two threads.
    if (sent == static_cast<ssize_t>(count)) return Sent::kSent;
    if (sent >= 0) return Sent::kBroken;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? Sent::kFull : Sent::kBroken;
  }
}

void AgentSocket::WaitWritable(const Deadline& deadline) { Poll(socket_.get(), POLLOUT, deadline); }
void AgentSocket::WaitReadable(const Deadline& deadline) { Poll(socket_.get(), POLLIN, deadline); }

AgentSocket::Received AgentSocket::Next(Message* message, const char** reason) {
  for (;;) {
    const ParseResult result =
        ParseMessage(std::span<const std::byte>(input_ + begin_, end_ - begin_));
    if (result.outcome == ParseOutcome::kMessage) {
      begin_ += result.bytes_used;
      *message = result.message;
      return Received::kMessage;
    }
    if (result.outcome == ParseOutcome::kInvalid) {
      *reason = result.error;
      return Received::kInvalid;
    }
    if (ended_) return Received::kEnded;
    *reason = nullptr;
    switch (ReadSome(reason)) {
      case Read::kBytes: break;
      case Read::kNothing: return Received::kNothing;
      case Read::kEnded:
        if (*reason != nullptr) return Received::kInvalid;
        ended_ = true;
        break;
      case Read::kLimit: return Received::kLimit;
    }
  }
}

AgentSocket::Read AgentSocket::ReadSome(const char** reason) {
  if (begin_ > 0) {
    std::memmove(input_, input_ + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  iovec part{input_ + end_, kInputBytes - end_};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kDescriptorsMax)];
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ssize_t count;
  do {
    count = ::recvmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (count < 0 && errno == EINTR);
  if (count < 0) {
    return errno == EAGAIN || errno == EWOULDBLOCK ? Read::kNothing : Read::kEnded;
  }
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item != nullptr; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t fds = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < fds; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(item) + i * sizeof(int), sizeof(fd));
      if (queued_end_ - queued_begin_ == kQueuedMax) {
        ::close(fd);
        *reason = "more descriptors than messages say";
        return Read::kEnded;
      }
      queued_[queued_end_++ % kQueuedMax] = fd;
    }
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0) {
    *reason = "this process has no descriptor left for a segment of memory; raise ulimit -n";
    return Read::kLimit;
  }
  if (count == 0) return Read::kEnded;
  end_ += static_cast<size_t>(count);
  return Read::kBytes;
}

Descriptor AgentSocket::TakeDescriptor() {
  if (queued_begin_ == queued_end_) return Descriptor();
  return Descriptor(queued_[queued_begin_++ % kQueuedMax]);
}

void AgentSocket::Shutdown() { ::shutdown(socket_.get(), SHUT_RDWR); }

void AgentSocket::CloseInChild() {
  const int fd = socket_.Release();
  // A child that became a daemon may have closed every descriptor, and the number may belong to
  // another file now.
  if (fd >= 0 && cookie_ != 0 && CookieOf(fd) == cookie_) ::close(fd);
}

}  // namespace talweg::shm
