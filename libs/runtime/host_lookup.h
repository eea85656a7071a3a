// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_HOST_LOOKUP_H_
#define TALWEG_LIBS_RUNTIME_HOST_LOOKUP_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace talweg::runtime {

// Whether `host` is an IP address already, IPv6 without brackets.
bool IsLiteralAddress(const std::string& host);

// The literal form of the first address of `host`. Blocks for as long as name servers take.
// NOT_FOUND names the host and what is wrong.
absl::StatusOr<std::string> LookUpHost(const std::string& host);

// LookUpHost for threads that must not block. It looks hosts up one after the other, on a thread
// that begins with the first.
class HostLookup {
 public:
  using LookUp = std::function<absl::StatusOr<std::string>(const std::string& host)>;
  using Done = std::function<void(absl::StatusOr<std::string> literal)>;

  explicit HostLookup(LookUp look_up = LookUpHost);
  // No Done is called afterwards. Does not wait for a lookup under way, which nothing can
  // interrupt: the lookup's thread ends after it.
  ~HostLookup();
  HostLookup(const HostLookup&) = delete;
  HostLookup& operator=(const HostLookup&) = delete;

  // `done` is called on the lookups' thread. It must not block, nor destroy this object.
  void Start(std::string host, Done done);

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
  bool running_ = false;
};

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_HOST_LOOKUP_H_
