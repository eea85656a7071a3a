// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_READABLE_SOCKET_H_
#define TALWEG_LIBS_TRANSPORT_TCP_READABLE_SOCKET_H_

#include <absl/status/statusor.h>
#include <sys/uio.h>

#include <cstddef>
#include <span>

namespace talweg::transport {

// Reads a socket of an edge-triggered epoll, and knows whether it must tell before there is more.
class ReadableSocket {
 public:
  // `socket` is the caller's, and outlives this.
  explicit ReadableSocket(int socket) : socket_(socket) {}

  // Reads what has come to those places, one after the other. Returns how many bytes; 0: there are
  // none, and it is drained(). Asks the kernel only where there may be some.
  absl::StatusOr<size_t> Read(std::span<const iovec> places);
  // The socket tells when there is more.
  bool drained() const { return drained_; }
  // It has told; `is_ending`: of its end too.
  void OnReadable(bool is_ending);

 private:
  const int socket_;
  bool drained_ = true;
  bool short_read_ = false;  // The last read found less than it wanted: the socket is empty.
  bool is_ending_ = false;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_READABLE_SOCKET_H_
