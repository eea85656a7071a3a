// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/tcp/readable_socket.h"

#include <errno.h>

#include "libs/status/status.h"

namespace talweg::transport {

absl::StatusOr<size_t> ReadableSocket::Read(std::span<const iovec> places) {
  // Epoll does not report an end again that it reported with the last bytes.
  drained_ = short_read_ && !is_ending_;
  if (drained_) return 0;
  ssize_t got = 0;
  do {
    got = readv(socket_, places.data(), static_cast<int>(places.size()));
  } while (got < 0 && errno == EINTR);
  if (got < 0) {
    if (errno != EAGAIN && errno != EWOULDBLOCK) return status::ErrnoStatus(errno, "receive");
    drained_ = true;
    return 0;
  }
  if (got == 0) return absl::UnavailableError("closed the connection, or its process ended");
  size_t wanted = 0;
  for (const iovec& place : places) wanted += place.iov_len;
  short_read_ = static_cast<size_t>(got) < wanted;
  return static_cast<size_t>(got);
}

void ReadableSocket::OnReadable(bool is_ending) {
  drained_ = false;
  short_read_ = false;
  is_ending_ = is_ending_ || is_ending;
}

}  // namespace talweg::transport
