// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_IDENTITY_H_
#define TALWEG_LIBS_RPC_IDENTITY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

// The identity of a process, from its certificate or its bearer token. docs/security.md says what
// each role may do.
namespace talweg::rpc {

enum class Role : uint8_t {
  kScheduler,
  kAggregator,  // `name` is the aggregator's.
  kNode,        // An agent. `name` is the job's.
  kOperator,    // A person or a tool that may change how daemons work.
  kViewer,      // A person or a tool that may only read.
};

struct Identity {
  Role role = Role::kViewer;
  // An aggregator's name, or a node's job; "*": any. Empty for the other roles.
  std::string name = {};

  friend bool operator==(const Identity&, const Identity&) = default;
};

// "scheduler", "aggregator", "node", "operator", "viewer".
std::string_view RoleName(Role role);

// "node of job 'resnet'", "operator": for error texts.
std::string Describe(const Identity& identity);

// Parses "operator", "aggregator:agg-0", "node:resnet". Returns nullopt if there is no such role,
// if its name is missing, or if it must not have one.
std::optional<Identity> ParseIdentity(std::string_view text);

// The certificate's name (its URI): spiffe://<trust domain>/talweg/operator,
// .../talweg/aggregator/agg-0, .../talweg/node/resnet. Bytes of a name that a path segment must not
// have are percent-encoded. Any trust domain is accepted: trust comes from the certificate
// authority.
std::optional<Identity> IdentityOfUri(std::string_view uri);
std::string UriOf(const Identity& identity, std::string_view trust_domain);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_IDENTITY_H_
