// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/local/handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/status/status.h"

namespace talweg::transport {
namespace {

struct UnixAddress {
  sockaddr_un address{};
  socklen_t length = 0;
};

absl::StatusOr<UnixAddress> MakeAddress(const std::string& name) {
  UnixAddress made;
  made.address.sun_family = AF_UNIX;
  // An abstract name begins with a zero byte and is as long as the address says. A path ends with a
  // zero byte.
  if (name.size() < 2 || name.size() >= sizeof(made.address.sun_path)) {
    return absl::InvalidArgumentError("'local:" + name +
                                      "' is not an address: a socket's name has 2 to " +
                                      std::to_string(sizeof(made.address.sun_path) - 1) + " bytes");
  }
  memcpy(made.address.sun_path, name.data(), name.size());
  const bool abstract = name.front() == '@';
  if (abstract) made.address.sun_path[0] = '\0';
  made.length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + (abstract ? 0 : 1));
  return made;
}

absl::StatusOr<Descriptor> NewSocket() {
  Descriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.valid()) return status::ErrnoStatus(errno, "a Unix socket");
  return made;
}

bool IsEventDescriptor(int fd) {
  std::array<char, 64> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = readlink(link.c_str(), target.data(), target.size() - 1);
  return length > 0 && strcmp(target.data(), "anon_inode:[eventfd]") == 0;
}

// Takes the descriptors out of a received message. Closes unexpected ones.
PeerDescriptors TakeDescriptors(msghdr& message) {
  PeerDescriptors taken;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(fd));
      Descriptor descriptor(fd);
      if (!taken.ring.valid()) {
        taken.ring = std::move(descriptor);
      } else if (!taken.doorbell.valid()) {
        taken.doorbell = std::move(descriptor);
      }
    }
  }
  return taken;
}

}  // namespace

absl::StatusOr<Descriptor> ListenUnix(const std::string& name) {
  TALWEG_ASSIGN_OR_RETURN(const UnixAddress address, MakeAddress(name));
  TALWEG_ASSIGN_OR_RETURN(Descriptor listener, NewSocket());
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address.address);
  int error = bind(listener.get(), generic, address.length) == 0 ? 0 : errno;
  if (error == EADDRINUSE && name.front() != '@') {
    // The socket of a killed process stays. The socket of a live process accepts.
    const absl::StatusOr<Descriptor> probe = ConnectUnix(name);
    if (!probe.ok() && absl::IsUnavailable(probe.status()) && unlink(name.c_str()) == 0) {
      error = bind(listener.get(), generic, address.length) == 0 ? 0 : errno;
    }
  }
  if (error != 0) return status::ErrnoStatus(error, "bind 'local:" + name + "'");
  if (listen(listener.get(), SOMAXCONN) != 0)
    return status::ErrnoStatus(errno, "listen at 'local:" + name + "'");
  return listener;
}

absl::StatusOr<Descriptor> ConnectUnix(const std::string& name) {
  TALWEG_ASSIGN_OR_RETURN(const UnixAddress address, MakeAddress(name));
  TALWEG_ASSIGN_OR_RETURN(Descriptor connected, NewSocket());
  if (connect(connected.get(), reinterpret_cast<const sockaddr*>(&address.address),
              address.length) != 0) {
    const std::string what = "connect to local:" + name;
    if (errno == ECONNREFUSED || errno == ENOENT) {
      return absl::UnavailableError(what + ": " + strerror(errno) +
                                    "; check that a Talweg process of this host listens there");
    }
    if (errno == EAGAIN) {
      return absl::ResourceExhaustedError(what + ": too many connections wait to be accepted");
    }
    return status::ErrnoStatus(errno, what);
  }
  return connected;
}

absl::StatusOr<int> CheckPeer(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return status::ErrnoStatus(errno, "SO_PEERCRED");
  }
  if (peer.uid != geteuid() && peer.uid != 0) {
    return absl::PermissionDeniedError(
        "process " + std::to_string(peer.pid) + " runs as user " + std::to_string(peer.uid) +
        ", this one as user " + std::to_string(geteuid()) +
        "; shared memory is for processes of one user: start both as the same one");
  }
  return peer.pid;
}

absl::Status SendHandshake(int socket, int ring, int doorbell, std::span<const std::byte> proof) {
  HandshakeMessage hello;
  TALWEG_CHECK(proof.size() <= sizeof(hello.text));
  std::ranges::copy(proof, reinterpret_cast<std::byte*>(hello.text));
  iovec part{&hello, sizeof(hello)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(2 * sizeof(int));
  const int descriptors[2] = {ring, doorbell};
  memcpy(CMSG_DATA(rights), descriptors, sizeof(descriptors));
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(hello))) {
    return status::ErrnoStatus(errno, "send a handshake");
  }
  return absl::OkStatus();
}

void SendRefusal(int socket, const std::string& text) {
  HandshakeMessage refusal;
  refusal.refused = 1;
  memcpy(refusal.text, text.data(), std::min(text.size(), sizeof(refusal.text)));
  // If the text does not get through, the hang-up is enough.
  send(socket, &refusal, sizeof(refusal), MSG_NOSIGNAL);
}

absl::StatusOr<std::optional<PeerDescriptors>> ReceiveHandshake(int socket) {
  HandshakeMessage hello;
  iovec part{&hello, sizeof(hello)};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(2 * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return std::nullopt;
    return status::ErrnoStatus(errno, "receive a handshake");
  }
  PeerDescriptors peer = TakeDescriptors(message);
  if (got == 0) return absl::UnavailableError("it hung up before the handshake");
  if (got < static_cast<ssize_t>(sizeof(hello)) || hello.magic != HandshakeMessage::kMagic) {
    return absl::InvalidArgumentError("it is not a Talweg process: it sent " +
                                      Counted(got, "byte") + " that are not a handshake");
  }
  if (hello.refused != 0) {
    return absl::UnavailableError("it refused: " +
                                  std::string(hello.text, strnlen(hello.text, sizeof(hello.text))));
  }
  if (hello.version != HandshakeMessage::kVersion) {
    return absl::FailedPreconditionError("it speaks version " + std::to_string(hello.version) +
                                         " of the local transport, this process version " +
                                         std::to_string(HandshakeMessage::kVersion) +
                                         "; use one release of Talweg on a host");
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0 && !peer.doorbell.valid()) {
    return absl::ResourceExhaustedError("process " + std::to_string(getpid()) +
                                        " could not take the descriptors of a handshake: raise its "
                                        "limit of open files (ulimit -n)");
  }
  if (!peer.ring.valid() || !peer.doorbell.valid() || !IsEventDescriptor(peer.doorbell.get())) {
    return absl::InvalidArgumentError("its handshake carries no ring and no doorbell");
  }
  memcpy(peer.proof.data(), hello.text, peer.proof.size());
  const int flags = fcntl(peer.doorbell.get(), F_GETFL);
  fcntl(peer.doorbell.get(), F_SETFL, flags | O_NONBLOCK);
  return peer;
}

}  // namespace talweg::transport
