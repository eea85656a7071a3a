// SPDX-License-Identifier: Apache-2.0
//
// A server for the workers of socket_ps that sums nothing. It drops what they send, and sends back
// as many bytes as come. It shows what TCP alone costs in both directions at once: the limit for
// aggregation over these links.
//
//   tcp_echo PORT WORKERS
#include <poll.h>

#include <algorithm>

#include "benchmarks/baselines/sockets.h"

namespace {

constexpr size_t kChunkBytes = size_t{128} << 10;  // Stays in cache.
constexpr uint64_t kHeaderBytes = 16;              // Before each push. Headers are not sent back.

// One worker's stream: tensor after tensor, a header before each.
struct Stream {
  int fd = -1;
  uint64_t header[2] = {};
  uint64_t header_received = 0;
  uint64_t left = 0;  // Bytes still to come of this tensor.
  uint64_t owed = 0;  // Received and not yet sent back.
};

void Receive(Stream& stream, std::vector<char>& nowhere) {
  if (stream.left == 0) {
    auto* header = reinterpret_cast<char*>(stream.header);
    const size_t moved = Moved(recv(stream.fd, header + stream.header_received,
                                    kHeaderBytes - stream.header_received, MSG_DONTWAIT));
    stream.header_received += moved;
    if (stream.header_received < kHeaderBytes) return;
    stream.header_received = 0;
    stream.left = stream.header[1];
  }
  const size_t moved = Moved(
      recv(stream.fd, nowhere.data(), std::min<uint64_t>(kChunkBytes, stream.left), MSG_DONTWAIT));
  stream.left -= moved;
  stream.owed += moved;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::vector<Stream> streams;
  for (const int fd : AcceptWorkers(PortOf(argv[1]), std::stoul(argv[2]))) streams.push_back({fd});
  std::vector<char> bytes(kChunkBytes);
  std::vector<pollfd> waits(streams.size());
  for (;;) {
    for (size_t i = 0; i < streams.size(); ++i) {
      waits[i] = {streams[i].fd, static_cast<int16_t>(POLLIN | (streams[i].owed > 0 ? POLLOUT : 0)),
                  0};
    }
    if (poll(waits.data(), waits.size(), -1) < 0) Die("poll");
    for (size_t i = 0; i < streams.size(); ++i) {
      Stream& stream = streams[i];
      if ((waits[i].revents & ~POLLOUT) != 0) Receive(stream, bytes);
      if (stream.owed == 0) continue;
      stream.owed -=
          Moved(send(stream.fd, bytes.data(), std::min<uint64_t>(kChunkBytes, stream.owed),
                     MSG_DONTWAIT | MSG_NOSIGNAL));
    }
  }
}
