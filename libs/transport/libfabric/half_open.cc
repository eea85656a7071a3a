// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/libfabric/half_open.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace talweg::transport {
namespace {

using NameOfEnd = int (*)(int, sockaddr*, socklen_t*);

// Returns an address that is not valid if the descriptor is no connected socket.
SocketAddress EndOf(int descriptor, NameOfEnd name) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (name(descriptor, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  return {&storage, length};
}

}  // namespace

void HalfOpen::AddListener(const SocketAddress& address) {
  listeners_.push_back(address);
  if (descriptors_ == nullptr) descriptors_.reset(opendir("/proc/self/fd"));
}

void HalfOpen::NoteActivity(int64_t now_ns) {
  if (listeners_.empty()) return;
  if (!due_ns_) due_ns_ = std::max(now_ns, next_look_ns_);
  if (++calls_ < kCallsForEachProbe) return;
  calls_ = 0;
  if (IsBurst()) due_ns_ = now_ns;
}

bool HalfOpen::IsBurst() {
  if (descriptors_ == nullptr) return false;
  const int lowest_free = fcntl(dirfd(descriptors_.get()), F_DUPFD_CLOEXEC, 0);
  if (lowest_free < 0) return true;  // No descriptor is free.
  close(lowest_free);
  if (!is_known_ || lowest_free < lowest_free_) lowest_free_ = lowest_free;
  is_known_ = true;
  return lowest_free - lowest_free_ >= kBurstMax;
}

bool HalfOpen::IsListeners(const SocketAddress& local) const {
  return std::any_of(listeners_.begin(), listeners_.end(), [&](const SocketAddress& listener) {
    return listener.port() == local.port() &&
           (listener.IsWildcard() || listener.Host() == local.Host());
  });
}

std::vector<HalfOpen::Stranger> HalfOpen::FindAll(const std::unordered_set<std::string>& peers,
                                                  int64_t now_ns) {
  std::vector<Stranger> strangers;
  std::map<Key, int64_t> since_ns;
  int64_t descriptor_count = 0;
  if (descriptors_ == nullptr) return strangers;
  rewinddir(descriptors_.get());
  while (const dirent* const entry = readdir(descriptors_.get())) {
    ++descriptor_count;
    if (entry->d_name[0] == '.') continue;
    const int descriptor = std::atoi(entry->d_name);
    const SocketAddress local = EndOf(descriptor, getsockname);
    if (!local.valid() || !IsListeners(local)) continue;
    const SocketAddress other = EndOf(descriptor, getpeername);
    if (!other.valid()) continue;  // The listener itself, or a connection that is over.
    const Key key(descriptor, other.ToString());
    if (peers.contains(key.second)) continue;
    const auto known = since_ns_.find(key);
    const int64_t since = known == since_ns_.end() ? now_ns : known->second;
    since_ns.emplace(key, since);
    strangers.push_back(
        {.descriptor = descriptor, .host = CountedHost(other.Host()), .since_ns = since});
  }
  since_ns_ = std::move(since_ns);
  pause_ns_ = kLookNs + descriptor_count * kLookNsForEach;
  return strangers;
}

size_t HalfOpen::Look(const std::unordered_set<std::string>& peers, int64_t now_ns) {
  std::vector<Stranger> strangers = FindAll(peers, now_ns);
  // The youngest stay.
  std::stable_sort(strangers.begin(), strangers.end(),
                   [](const Stranger& a, const Stranger& b) { return a.since_ns > b.since_ns; });
  size_t kept = 0;
  std::map<std::string, size_t> kept_of_host;
  for (const Stranger& each : strangers) {
    size_t& of_host = kept_of_host[each.host];
    if (now_ns - each.since_ns < options_.timeout_ns && kept < options_.max &&
        of_host < options_.of_host_max) {
      ++kept;
      ++of_host;
    } else {
      shutdown(each.descriptor, SHUT_RDWR);
    }
  }
  is_known_ = false;
  next_look_ns_ = now_ns + pause_ns_;
  due_ns_.reset();
  if (!strangers.empty()) due_ns_ = next_look_ns_;
  return strangers.size() - kept;
}

}  // namespace talweg::transport
