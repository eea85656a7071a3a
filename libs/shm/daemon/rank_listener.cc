// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/rank_listener.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "libs/shm/layout/messages.h"

namespace talweg::shm {
namespace {

constexpr int kBacklog = 256;
// How many ranks are refused in one turn because no descriptor is left.
constexpr int kRefusedMax = 64;
constexpr char kDescriptors[] = "; raise the limit of open files (ulimit -n)";

Failure SystemFailure(const std::string& what, const std::string& path, int error,
                      const std::string& remedy) {
  const bool denied = error == EACCES || error == EPERM;
  return Failure{denied ? RankStatus::kPermissionDenied : RankStatus::kInvalidArgument,
                 "agent socket '" + path + "': " + what + ": " + std::strerror(error) + remedy};
}

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

ucred PeerOf(int socket) {
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  // A socket without credentials belongs to nobody: pid 0 and a uid that no list allows.
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) return {0, uid_t(-1), 0};
  return peer;
}

// Makes agents that start at once for one path take turns. The lock is on the directory, so that no
// file stays. A directory that others can lock too (/tmp) is not locked.
Descriptor LockDirectory(const std::string& directory) {
  Descriptor fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status {};
  if (fd.valid() && ::fstat(fd.get(), &status) == 0 && status.st_uid == ::geteuid() &&
      (status.st_mode & 077) == 0) {
    while (::flock(fd.get(), LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  return fd;
}

// Makes room at `path`, or returns why it cannot.
std::optional<Failure> RemoveDeadSocket(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return std::nullopt;
    return SystemFailure("stat", path, errno, "; choose another path");
  }
  if (!S_ISSOCK(status.st_mode)) {
    return Failure{RankStatus::kInvalidArgument,
                   "agent socket '" + path +
                       "': a file that is not a socket is there; remove it or choose another path"};
  }
  Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe.valid()) return SystemFailure("socket", path, errno, kDescriptors);
  const sockaddr_un address = AddressOf(path);
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    return Failure{RankStatus::kRankTaken,
                   "agent socket '" + path + "': the agent with pid " +
                       std::to_string(PeerOf(probe.get()).pid) +
                       " listens there already; stop it or choose another path"};
  }
  if (errno == EAGAIN) {  // The backlog is full: the agent is alive.
    return Failure{RankStatus::kRankTaken,
                   "agent socket '" + path +
                       "': a busy agent listens there already; stop it or choose another path"};
  }
  if (errno != ECONNREFUSED && errno != ENOENT) {
    return SystemFailure("the socket that is there cannot be probed", path, errno,
                         "; remove it or choose another path");
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return SystemFailure("a dead agent's socket cannot be removed", path, errno,
                         "; remove it or choose another path");
  }
  return std::nullopt;
}

void SayNoDescriptors(int socket) {
  Welcome welcome;
  welcome.status = RankStatus::kLimit;
  welcome.text =
      "the agent has no file descriptor left for another rank; raise its limit of open files "
      "(ulimit -n)";
  std::array<std::byte, kEncodedBytesMax> bytes;
  const size_t count = EncodeMessage({.body = welcome}, bytes);
  // Best effort: the rank notices the hang-up anyway.
  [[maybe_unused]] const ssize_t sent =
      ::send(socket, bytes.data(), count, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

Outcome<RankListener> RankListener::Create(Spec spec) {
  const std::string& path = spec.path;
  if (path.empty() || path.find('\0') != std::string::npos) {
    return Failure{RankStatus::kInvalidArgument, "the agent's socket path is empty or holds a NUL"};
  }
  if (path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Failure{RankStatus::kInvalidArgument,
                   "agent socket '" + path + "': the path has " + std::to_string(path.size()) +
                       " bytes, the kernel takes at most " +
                       std::to_string(sizeof(sockaddr_un::sun_path) - 1) +
                       "; choose a shorter one"};
  }
  const std::string directory = DirectoryOf(path);
  const Descriptor lock = LockDirectory(directory);
  if (!lock.valid()) {
    return SystemFailure("directory '" + directory + "'", path, errno,
                         "; create the directory or choose another path");
  }
  if (std::optional<Failure> failure = RemoveDeadSocket(path)) return *std::move(failure);

  RankListener listener;
  listener.socket_ = Descriptor(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!listener.socket_.valid()) return SystemFailure("socket", path, errno, kDescriptors);
  // Before bind: the file appears with these bits, so nobody gets in before the mode is set.
  if (::fchmod(listener.socket_.get(), 0600) != 0)
    return SystemFailure("fchmod", path, errno, "; choose another path");
  const sockaddr_un address = AddressOf(path);
  if (::bind(listener.socket_.get(), reinterpret_cast<const sockaddr*>(&address),
             sizeof(address)) != 0) {
    return SystemFailure("bind", path, errno,
                         "; choose a path in a directory that this user may write to");
  }
  listener.path_ = path;
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) {
    listener.device_ = status.st_dev;
    listener.inode_ = status.st_ino;
  }
  if (spec.gid && ::chown(path.c_str(), uid_t(-1), *spec.gid) != 0) {
    return SystemFailure("chown to group " + std::to_string(*spec.gid), path, errno,
                         "; name a socket_group that this user belongs to");
  }
  if (spec.mode != 0600 && ::chmod(path.c_str(), spec.mode) != 0) {
    return SystemFailure("chmod", path, errno, "; choose another path, or socket_mode 0600");
  }
  if (::listen(listener.socket_.get(), kBacklog) != 0) {
    return SystemFailure("listen", path, errno, "; choose another path");
  }
  return Outcome<RankListener>(std::move(listener));
}

RankListener::~RankListener() {
  if (!socket_.valid() || path_.empty()) return;
  struct stat status {};
  if (::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_) {
    ::unlink(path_.c_str());
  }
}

std::optional<RankListener::Peer> RankListener::Accept() {
  int refused = 0;
  while (refused < kRefusedMax) {
    Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.valid()) {
      const ucred peer = PeerOf(socket.get());
      return Peer{std::move(socket), peer.pid, peer.uid};
    }
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (!SpareDescriptor::IsWantOfOne(errno)) return std::nullopt;
    if (!spare_.RefuseNext(socket_.get(), SayNoDescriptors)) return std::nullopt;
    ++refused;
  }
  return std::nullopt;
}

}  // namespace talweg::shm
