// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/host_lookup.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace talweg::runtime {

struct HostLookup::State {
  LookUp look_up;
  std::mutex mutex;  // Held while a Done runs: none runs once `ended` is set under it.
  std::condition_variable changed;
  bool ended = false;
  std::deque<std::pair<std::string, Done>> wanted;
};

bool IsLiteralAddress(const std::string& host) {
  in6_addr room;
  return inet_pton(AF_INET, host.c_str(), &room) == 1 ||
         inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &room) == 1;
}

absl::StatusOr<std::string> LookUpHost(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  std::array<char, NI_MAXHOST> literal{};
  if (error == 0) {
    error = getnameinfo(found->ai_addr, found->ai_addrlen, literal.data(), literal.size(), nullptr,
                        0, NI_NUMERICHOST);
    freeaddrinfo(found);
  }
  if (error == 0) return std::string(literal.data());
  return absl::NotFoundError("host '" + host + "' does not resolve: " + gai_strerror(error) +
                             "; check its spelling, or give a literal address");
}

HostLookup::HostLookup(LookUp look_up) : state_(std::make_shared<State>()) {
  state_->look_up = std::move(look_up);
}

HostLookup::~HostLookup() {
  const std::lock_guard lock(state_->mutex);
  state_->ended = true;
  state_->wanted.clear();
  state_->changed.notify_all();
}

void HostLookup::Start(std::string host, Done done) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->wanted.emplace_back(std::move(host), std::move(done));
    state_->changed.notify_all();
  }
  if (!std::exchange(running_, true)) std::thread([state = state_] { Run(state); }).detach();
}

void HostLookup::Run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  while (true) {
    state->changed.wait(lock, [&] { return state->ended || !state->wanted.empty(); });
    if (state->ended) return;
    const auto [host, done] = std::move(state->wanted.front());
    state->wanted.pop_front();
    lock.unlock();
    absl::StatusOr<std::string> literal = state->look_up(host);
    lock.lock();
    if (state->ended) return;
    done(std::move(literal));
  }
}

}  // namespace talweg::runtime
