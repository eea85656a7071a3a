// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_AUTHORIZATION_H_
#define TALWEG_LIBS_RPC_AUTHORIZATION_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "libs/membership/records.h"
#include "libs/rpc/identity.h"

// Which roles may make which call, on ports with TLS, where callers have identities; and which
// calls ask for the job secret, with TLS or without. docs/security.md has the same table.
namespace talweg::rpc {

// A set of roles, or everybody, including callers without an identity.
class Callers {
 public:
  static constexpr Callers Anybody() {
    Callers callers({});
    callers.anybody_ = true;
    return callers;
  }
  constexpr Callers(std::initializer_list<Role> roles) {
    for (const Role role : roles) bits_ |= Bit(role);
  }

  constexpr bool anybody() const { return anybody_; }
  constexpr bool Has(Role role) const { return anybody_ || (bits_ & Bit(role)) != 0; }

 private:
  static constexpr uint32_t Bit(Role role) { return uint32_t{1} << static_cast<uint32_t>(role); }

  uint32_t bits_ = 0;
  bool anybody_ = false;
};

struct Rule {
  std::string_view method;  // As gRPC names it: "/talweg.agent.v1.AdminService/GetStatus".
  Callers callers;
  bool asks_job_secret = false;  // Callers prove that they know it: see CheckJobSecret.
};

// A call that shows a job secret, or should.
struct JobCall {
  std::string_view method;
  std::string_view daemon;  // For the error: "agent".
  std::string_view caller;  // For the error: "a launcher".
};

// One row for each call of every daemon. A call without a row is refused.
std::span<const Rule> Rules();

// Returns null if there is no such call.
const Rule* FindRule(std::string_view method);

// Returns OK, UNAUTHENTICATED (the call needs an identity) or PERMISSION_DENIED; the text names the
// call, the caller and the roles that may make it.
absl::Status MayCall(std::string_view method, const std::optional<Identity>& caller);

// Returns OK if the call's rule asks for no job secret, if the daemon has none (`own`), or if
// `shown` is it; else PERMISSION_DENIED. A call without a rule asks for it. `shown` is what a
// caller of an older release shows in clear, or the daemon's own where the call was sealed with it.
absl::Status CheckJobSecret(const JobCall& call, const std::optional<membership::SecretHash>& own,
                            std::string_view shown);

// Returns whether `caller` may act as the identity that a request names: an agent for its own job,
// an aggregator under its own name. OK if `caller` is nullopt: the connection has no identity to
// check.
absl::Status MayActAs(const Identity& wanted, const std::optional<Identity>& caller);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_AUTHORIZATION_H_
