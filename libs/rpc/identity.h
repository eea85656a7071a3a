// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_IDENTITY_H_
#define TALWEG_LIBS_RPC_IDENTITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// Who a process is, as its certificate or its bearer token says. docs/security.md has the table of
// what each may do.
namespace talweg::rpc {

enum class Role : uint8_t {
  kScheduler,
  kAggregator,  // Its name is the aggregator's.
  kNode,        // An agent; its name is the job's.
  kOperator,    // A person or a tool that may change how daemons work.
  kViewer,      // One that may only look.
};

struct Identity {
  Role role = Role::kViewer;
  // What the role is bound to: an aggregator's name, a node's job; "*": any. Empty for the other
  // roles.
  std::string name = {};

  friend bool operator==(const Identity&, const Identity&) = default;
};

// "scheduler", "aggregator", "node", "operator", "viewer".
std::string_view RoleName(Role role);

// "node of job 'resnet'", "operator": for error texts.
std::string Describe(const Identity& identity);

// "operator", "aggregator:agg-0", "node:resnet". nullopt: this is no role, or it lacks its name, or
// has one that it must not have.
std::optional<Identity> ParseIdentity(std::string_view text);

// The certificate's name (its URI): spiffe://<trust domain>/talweg/operator,
// .../talweg/aggregator/agg-0, .../talweg/node/resnet. Bytes of a name that a path segment must not
// have are percent-encoded. Any trust domain will do: the certificate authority is what is trusted.
std::optional<Identity> IdentityOfUri(std::string_view uri);
std::string UriOf(const Identity& identity, std::string_view trust_domain);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_IDENTITY_H_
