// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_READABLE_SOCKET_H_
#define TALWEG_LIBS_TRANSPORT_TCP_READABLE_SOCKET_H_

#include <absl/status/statusor.h>
#include <sys/uio.h>

#include <cstddef>
#include <span>

namespace talweg::transport {

// Reads a socket of an edge-triggered epoll, and knows whether epoll has to report it before there
// is more.
class ReadableSocket {
 public:
  // `socket` is the caller's, and outlives this object.
  explicit ReadableSocket(int socket) : socket_(socket) {}

  // Reads into `places`, one after the other. Returns how many bytes; 0: there are none, and the
  // socket is drained(). Calls the kernel only if there may be some.
  absl::StatusOr<size_t> Read(std::span<const iovec> places);
  // Returns whether epoll will report the socket when there is more.
  bool drained() const { return drained_; }
  // Epoll has reported the socket. `is_ending`: its end, too.
  void OnReadable(bool is_ending);

 private:
  const int socket_;
  bool drained_ = true;
  bool short_read_ = false;  // The last read found less than it wanted: the socket is empty.
  bool is_ending_ = false;
};

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_READABLE_SOCKET_H_
