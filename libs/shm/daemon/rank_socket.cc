// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/rank_socket.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libs/base/check.h"

namespace talweg::shm {
namespace {

constexpr size_t kReceiveBytes = 64 * 1024;
// A rank that declares without ever reading the answers ends at this limit.
constexpr size_t kOutboxBytesMax = 4 * 1024 * 1024;

}  // namespace

RankSocket::Input RankSocket::Receive() {
  // Drops what was parsed before: its strings are no longer valid.
  input_.erase(input_.begin(), input_.begin() + static_cast<ptrdiff_t>(parsed_));
  parsed_ = 0;
  std::array<std::byte, kReceiveBytes> bytes;
  for (;;) {
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) {
      input_.insert(input_.end(), bytes.begin(), bytes.begin() + count);
      return Input::kTaken;
    }
    if (count == 0) return Input::kEnded;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == EWOULDBLOCK ? Input::kNothing : Input::kEnded;
  }
}

RankSocket::Next RankSocket::NextMessage(Message* message, std::string* error) {
  const ParseResult result =
      ParseMessage(std::span<const std::byte>(input_.data() + parsed_, input_.size() - parsed_));
  switch (result.outcome) {
    case ParseOutcome::kMessage:
      parsed_ += result.bytes_used;
      *message = result.message;
      return Next::kMessage;
    case ParseOutcome::kNeedMore: return Next::kNone;
    case ParseOutcome::kInvalid: *error = result.error; return Next::kGarbage;
  }
  return Next::kNone;
}

long RankSocket::SendItem(const Item& item) {
  iovec part{const_cast<std::byte*>(item.bytes.data()) + item.sent, item.bytes.size() - item.sent};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kDescriptorsMax)> control{};
  const size_t fd_count = item.borrowed.size() + item.owned.size();
  if (item.sent == 0 && fd_count > 0) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
    cmsghdr* message = CMSG_FIRSTHDR(&header);
    message->cmsg_level = SOL_SOCKET;
    message->cmsg_type = SCM_RIGHTS;
    message->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
    unsigned char* out = CMSG_DATA(message);
    for (const int fd : item.borrowed) {
      std::memcpy(out, &fd, sizeof(fd));
      out += sizeof(fd);
    }
    for (const Descriptor& descriptor : item.owned) {
      const int fd = descriptor.get();
      std::memcpy(out, &fd, sizeof(fd));
      out += sizeof(fd);
    }
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket_.get(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent;
}

RankSocket::Output RankSocket::Send(const Message& message, std::vector<int> borrowed,
                                    std::vector<Descriptor> owned) {
  std::array<std::byte, kEncodedBytesMax> bytes;
  Message counted = message;
  counted.fd_count = static_cast<uint32_t>(borrowed.size() + owned.size());
  const size_t count = EncodeMessage(counted, bytes);
  TALWEG_CHECK(count > 0);
  Item item{{bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count)},
            0,
            std::move(borrowed),
            std::move(owned)};
  if (outbox_bytes_ + count > kOutboxBytesMax) return Output::kBroken;
  outbox_bytes_ += count;
  outbox_.push_back(std::move(item));
  return Flush();
}

RankSocket::Output RankSocket::Flush() {
  while (!outbox_.empty()) {
    Item& item = outbox_.front();
    const long sent = SendItem(item);
    if (sent < 0) {
      return errno == EAGAIN || errno == EWOULDBLOCK ? Output::kQueued : Output::kBroken;
    }
    item.sent += static_cast<size_t>(sent);
    if (item.sent < item.bytes.size()) continue;
    outbox_bytes_ -= item.bytes.size();
    outbox_.pop_front();
  }
  return Output::kSent;
}

bool RankSocket::SendWake() {
  if (!outbox_.empty()) return false;
  std::array<std::byte, kMessageHeaderBytes> bytes;
  TALWEG_CHECK(EncodeMessage({.body = Wake{}}, bytes) == bytes.size());
  const ssize_t sent =
      ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent <= 0 || static_cast<size_t>(sent) == bytes.size()) return sent > 0;
  // The kernel took a part of the message: the rest must follow.
  Item item{{bytes.begin(), bytes.end()}, static_cast<size_t>(sent), {}, {}};
  outbox_bytes_ += item.bytes.size();
  outbox_.push_back(std::move(item));
  return true;
}

}  // namespace talweg::shm
