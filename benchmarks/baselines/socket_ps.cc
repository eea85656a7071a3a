// SPDX-License-Identifier: Apache-2.0
//
// A parameter server straight on sockets, as short as it can be without being slow. ./bench
// compares Talweg's path over the network with it.
//
//   socket_ps server PORT WORKERS                   sums tensors of f32 as they stream in, and out
//   socket_ps worker RANK WORKERS ADDRESS:PORT...   takes orders from ./bench (orders.h)
//
// A tensor is cut evenly over the servers. All workers push in the same order. A push is a header
// and the bytes. A server adds what has come from all workers, in worker order, a cache-sized piece
// at a time. It sends the sums while the rest still comes. Each process is one thread, which sleeps
// in poll() when there is nothing to do. Nobody agrees on anything, and a lost worker ends
// everything.
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "benchmarks/baselines/each_cpu.h"
#include "benchmarks/baselines/orders.h"
#include "benchmarks/baselines/sockets.h"

namespace {

constexpr size_t kRingBytes = size_t{1} << 20;     // How much of each worker's stream is held.
constexpr size_t kPieceBytes = size_t{128} << 10;  // Stays in cache from sum to sending.

struct Header {
  uint64_t key;
  uint64_t bytes;
};

TALWEG_FOR_EACH_CPU void Add(const float* a, const float* b, float* sum, size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] = a[i] + b[i];
}

struct Peer {
  int fd = -1;
  uint64_t received = 0;  // Bytes of its stream.
  uint64_t taken = 0;     // Bytes read as header or summed.
  uint64_t sent = 0;      // Bytes of the sums.
  std::vector<char> ring = std::vector<char>(kRingBytes);
};

// Returns how many of `bytes` from `begin` on lie together in a ring.
uint64_t Together(uint64_t begin, uint64_t bytes) {
  return std::min<uint64_t>(bytes, kRingBytes - begin % kRingBytes);
}

// Returns the next tensor's bytes when all its headers are there, else 0.
uint64_t TakeHeaders(std::vector<Peer>& peers) {
  for (const Peer& peer : peers) {
    if (peer.received - peer.taken < sizeof(Header)) return 0;
  }
  Header first = {};
  for (Peer& peer : peers) {
    Header header;
    for (size_t i = 0; i < sizeof header; ++i) {
      reinterpret_cast<char*>(&header)[i] = peer.ring[peer.taken++ % kRingBytes];
    }
    if (&peer == &peers[0]) first = header;
    if (header.key != first.key || header.bytes != first.bytes)
      Die("workers push different tensors");
  }
  return first.bytes;
}

// Adds the next piece of what has come from all workers. Returns its bytes.
uint64_t SumPiece(std::vector<Peer>& peers, std::vector<char>& sums, uint64_t summed,
                  uint64_t left) {
  uint64_t bytes = std::min<uint64_t>(left, Together(summed, kPieceBytes));
  for (const Peer& peer : peers) {
    bytes = std::min(bytes, Together(peer.taken, (peer.received - peer.taken) & ~uint64_t{3}));
    bytes = std::min(bytes, kRingBytes - (summed - peer.sent));
  }
  auto* sum = reinterpret_cast<float*>(&sums[summed % kRingBytes]);
  const float* before = nullptr;
  for (Peer& peer : peers) {
    const auto* here = reinterpret_cast<const float*>(&peer.ring[peer.taken % kRingBytes]);
    if (before != nullptr) Add(before, here, sum, bytes / sizeof(float));
    if (peers.size() == 1) std::memcpy(sum, here, bytes);
    before = before == nullptr ? here : sum;
    peer.taken += bytes;
  }
  return bytes;
}

void Serve(uint16_t port, size_t worker_count) {
  std::vector<Peer> peers(worker_count);
  const std::vector<int> fds = AcceptWorkers(port, worker_count);
  for (size_t i = 0; i < worker_count; ++i) peers[i].fd = fds[i];
  std::vector<char> sums(kRingBytes);
  std::vector<pollfd> waits(worker_count);
  for (uint64_t summed = 0, left = 0;;) {
    for (size_t i = 0; i < worker_count; ++i) {
      const bool has_room = peers[i].received - peers[i].taken < kRingBytes;
      const bool has_sums = peers[i].sent < summed;
      waits[i] = {peers[i].fd,
                  static_cast<int16_t>((has_room ? POLLIN : 0) | (has_sums ? POLLOUT : 0)), 0};
    }
    if (poll(waits.data(), waits.size(), -1) < 0) Die("poll");
    for (size_t i = 0; i < worker_count; ++i) {
      Peer& peer = peers[i];
      if ((waits[i].revents & ~POLLOUT) == 0) continue;
      const uint64_t room = Together(peer.received, kRingBytes - (peer.received - peer.taken));
      peer.received +=
          Moved(recv(peer.fd, &peer.ring[peer.received % kRingBytes], room, MSG_DONTWAIT));
    }
    for (uint64_t moved = 1; moved > 0;) {
      if (left == 0) left = TakeHeaders(peers);
      moved = left == 0 ? 0 : SumPiece(peers, sums, summed, left);
      summed += moved;
      left -= moved;
      for (Peer& peer : peers) {
        if (peer.sent == summed) continue;
        const uint64_t sent =
            Moved(send(peer.fd, &sums[peer.sent % kRingBytes],
                       Together(peer.sent, summed - peer.sent), MSG_DONTWAIT | MSG_NOSIGNAL));
        peer.sent += sent;
        moved += sent;
      }
    }
  }
}

// A worker's connection to one server, and how far its tensors have gone there and come back.
struct Link {
  int fd = -1;
  size_t sending = 0;    // The tensor that is being sent.
  size_t receiving = 0;  // The tensor whose sums are being received.
  uint64_t sent = 0;     // Bytes of header and share.
  uint64_t received = 0;
};

// The bytes of a tensor that one of the servers sums.
struct Share {
  Share(const Tensor& tensor, size_t server, size_t servers)
      : data(tensor.data + tensor.count * server / servers),
        bytes((tensor.count * (server + 1) / servers - tensor.count * server / servers) * 4) {}
  float* data;
  uint64_t bytes;
};

size_t SendSome(const Link& link, const Share& share) {
  Header header = {link.sending, share.bytes};
  const uint64_t of_header = std::min<uint64_t>(link.sent, sizeof header);
  const uint64_t of_data = link.sent - of_header;
  iovec parts[2] = {{reinterpret_cast<char*>(&header) + of_header, sizeof header - of_header},
                    {reinterpret_cast<char*>(share.data) + of_data, share.bytes - of_data}};
  msghdr message = {};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  return Moved(sendmsg(link.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL));
}

// Pushes all tensors and pulls all sums, in place: no sum comes before its bytes have left.
void PushPull(std::vector<Link>& links, const std::vector<Tensor>& tensors) {
  std::vector<pollfd> waits(links.size());
  for (Link& link : links) link = {link.fd};
  for (bool busy = true; busy;) {
    busy = false;
    for (size_t i = 0; i < links.size(); ++i) {
      Link& link = links[i];
      while (link.sending < tensors.size()) {
        const Share share(tensors[link.sending], i, links.size());
        const size_t moved = SendSome(link, share);
        link.sent += moved;
        if (moved == 0) break;
        if (link.sent == sizeof(Header) + share.bytes) link.sent = 0, ++link.sending;
      }
      while (link.receiving < tensors.size()) {
        const Share share(tensors[link.receiving], i, links.size());
        const size_t moved =
            Moved(recv(link.fd, reinterpret_cast<char*>(share.data) + link.received,
                       share.bytes - link.received, MSG_DONTWAIT));
        link.received += moved;
        if (moved == 0) break;
        if (link.received == share.bytes) link.received = 0, ++link.receiving;
      }
      const bool sends = link.sending < tensors.size();
      const bool receives = link.receiving < tensors.size();
      waits[i] = {receives ? link.fd : -1, static_cast<int16_t>(POLLIN | (sends ? POLLOUT : 0)), 0};
      busy |= receives;
    }
    if (busy && poll(waits.data(), waits.size(), -1) < 0) Die("poll");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv, argv + argc);
  if (argc == 4 && args[1] == "server") Serve(PortOf(args[2]), std::stoul(args[3]));
  if (argc < 5 || args[1] != "worker") return 2;
  std::vector<Link> links;
  for (size_t i = 4; i < args.size(); ++i) links.push_back({Connect(args[i], std::stoul(args[2]))});
  const auto push_pull = [&links](const std::vector<Tensor>& tensors) { PushPull(links, tensors); };
  return ServeOrders(std::stoi(args[2]), push_pull, std::stoi(args[3]));
}
