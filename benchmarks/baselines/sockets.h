// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_BENCHMARKS_BASELINES_SOCKETS_H_
#define TALWEG_BENCHMARKS_BASELINES_SOCKETS_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

// TCP as the baselines use it. Any error ends the process, and the harness sees that.

[[noreturn]] inline void Die(const char* what) {
  std::perror(what);
  std::exit(1);
}

inline int OpenSocket() {
  constexpr int kSocketBytes = 4 << 20;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int one = 1;
  for (const auto& [beyond_limit, within] :
       {std::pair{SO_SNDBUFFORCE, SO_SNDBUF}, {SO_RCVBUFFORCE, SO_RCVBUF}}) {
    if (setsockopt(fd, SOL_SOCKET, beyond_limit, &kSocketBytes, sizeof kSocketBytes) != 0) {
      setsockopt(fd, SOL_SOCKET, within, &kSocketBytes, sizeof kSocketBytes);
    }
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

// What a send or a recv has moved. 0 when it would have waited.
inline size_t Moved(ssize_t result) {
  if (result > 0) return static_cast<size_t>(result);
  if (result < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (result < 0 && errno != ECONNRESET && errno != EPIPE) Die("socket_ps");
  std::exit(0);  // The other side has ended.
}

inline uint16_t PortOf(const std::string& text) {
  return static_cast<uint16_t>(std::stoul(text.substr(text.find(':') + 1)));
}

// Connects to "address:port", where a server may only be about to listen, and says which worker
// this is.
inline int Connect(const std::string& server, size_t worker) {
  constexpr int kAttempts = 1000;
  sockaddr_in address = {AF_INET, htons(PortOf(server)), {}, {}};
  inet_pton(AF_INET, server.substr(0, server.find(':')).c_str(), &address.sin_addr);
  const auto hello = static_cast<uint32_t>(worker);
  for (int i = 0; i < kAttempts; ++i) {
    const int fd = OpenSocket();
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
        send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello) {
      return fd;
    }
    close(fd);
    usleep(10'000);
  }
  Die(server.c_str());
}

// Returns the sockets of all workers, by worker, once all have come.
inline std::vector<int> AcceptWorkers(uint16_t port, size_t worker_count) {
  const int listener = OpenSocket();
  // The case before has just ended its server, whose connections keep the port for a minute.
  const int one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  const sockaddr_in address = {AF_INET, htons(port), {INADDR_ANY}, {}};
  if (bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener, static_cast<int>(worker_count)) != 0) {
    Die("listen");
  }
  std::vector<int> fds(worker_count, -1);
  for (size_t i = 0; i < worker_count; ++i) {
    const int fd = accept(listener, nullptr, nullptr);
    uint32_t worker = 0;
    if (fd < 0 || recv(fd, &worker, sizeof worker, MSG_WAITALL) != sizeof worker) Die("accept");
    fds.at(worker) = fd;
  }
  return fds;
}

#endif  // TALWEG_BENCHMARKS_BASELINES_SOCKETS_H_
