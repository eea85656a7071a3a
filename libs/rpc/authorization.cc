// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/authorization.h"

#include <array>
#include <string>

#include "libs/rpc/secret.h"

namespace talweg::rpc {
namespace {

constexpr Callers kNodes = {Role::kNode};
constexpr Callers kAggregators = {Role::kAggregator};
constexpr Callers kReaders = {Role::kViewer, Role::kOperator};
constexpr Callers kOperators = {Role::kOperator};

constexpr Callers kSealers = {Role::kNode, Role::kAggregator, Role::kOperator};

constexpr bool kAsksJobSecret = true;

constexpr std::array kRules = {
    // A node's calls. MayActAs checks which job it may join; the session secret identifies the
    // process.
    Rule{"/talweg.scheduler.v1.MembershipService/Join", kNodes, kAsksJobSecret},
    Rule{"/talweg.scheduler.v1.MembershipService/RenewLease", kNodes},
    Rule{"/talweg.scheduler.v1.MembershipService/Leave", kNodes},
    Rule{"/talweg.scheduler.v1.MembershipService/ReportLost", kNodes},
    Rule{"/talweg.scheduler.v1.MembershipService/Quiesced", kNodes},
    Rule{"/talweg.scheduler.v1.MembershipService/WatchViews", kNodes},

    // An aggregator's calls, with the same checks.
    Rule{"/talweg.scheduler.v1.PoolService/RegisterAggregator", kAggregators, kAsksJobSecret},
    Rule{"/talweg.scheduler.v1.PoolService/RenewAggregator", kAggregators},
    Rule{"/talweg.scheduler.v1.PoolService/DeregisterAggregator", kAggregators},
    Rule{"/talweg.scheduler.v1.PoolService/WatchJobs", kAggregators},

    // Calls that are sealed with the job secret. The rule of the call inside holds as well.
    Rule{"/talweg.scheduler.v1.SealedService/Greet", kSealers},
    Rule{"/talweg.scheduler.v1.SealedService/Call", kSealers},
    Rule{"/talweg.scheduler.v1.SealedService/Watch", kSealers},

    // People and their tools.
    Rule{"/talweg.scheduler.v1.AdminService/ListJobs", kReaders},
    Rule{"/talweg.scheduler.v1.AdminService/GetJob", kReaders},
    Rule{"/talweg.scheduler.v1.AdminService/ListAggregators", kReaders},
    Rule{"/talweg.scheduler.v1.AdminService/GetScheduler", kReaders},
    Rule{"/talweg.scheduler.v1.AdminService/LowerBeginMembers", kOperators, kAsksJobSecret},
    Rule{"/talweg.aggregator.v1.AdminService/GetStatus", kReaders},
    Rule{"/talweg.agent.v1.AdminService/GetStatus", kReaders},
    Rule{"/talweg.agent.v1.AdminService/GetTrace", kReaders},
    Rule{"/talweg.agent.v1.AdminService/SetTrace", kOperators, kAsksJobSecret},
    Rule{"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kReaders},

    // Probes have no identity. They learn only that the daemon serves.
    Rule{"/grpc.health.v1.Health/Check", Callers::Anybody()},
    Rule{"/grpc.health.v1.Health/Watch", Callers::Anybody()},
};

constexpr std::array kAllRoles = {Role::kScheduler, Role::kAggregator, Role::kNode, Role::kOperator,
                                  Role::kViewer};

std::string Names(const Callers& callers) {
  std::string names;
  for (const Role role : kAllRoles) {
    if (!callers.Has(role)) continue;
    if (!names.empty()) names += " or ";
    names += RoleName(role);
  }
  return names;
}

}  // namespace

std::span<const Rule> Rules() { return kRules; }

const Rule* FindRule(std::string_view method) {
  for (const Rule& rule : kRules) {
    if (rule.method == method) return &rule;
  }
  return nullptr;
}

absl::Status MayCall(std::string_view method, const std::optional<Identity>& caller) {
  const Rule* rule = FindRule(method);
  if (rule == nullptr) {
    return absl::PermissionDeniedError("nobody may call " + std::string(method) +
                                       ": it has no rule in this release");
  }
  if (rule->callers.anybody()) return absl::OkStatus();
  const std::string needed = std::string(method) + " is for " + Names(rule->callers);
  if (!caller) {
    return absl::UnauthenticatedError(
        needed +
        ", and the caller has shown no identity: give a client certificate (tls_dir) or a token "
        "(token_file)");
  }
  if (rule->callers.Has(caller->role)) return absl::OkStatus();
  return absl::PermissionDeniedError(needed + ", and the caller is " + Describe(*caller));
}

absl::Status CheckJobSecret(const JobCall& call, const std::optional<membership::SecretHash>& own,
                            std::string_view shown) {
  const Rule* rule = FindRule(call.method);
  if (rule != nullptr && !rule->asks_job_secret) return absl::OkStatus();
  if (!own || membership::SameSecret(*own, HashOf(shown))) return absl::OkStatus();
  const std::string daemon(call.daemon);
  return absl::PermissionDeniedError(
      "the " + daemon + " refuses " + std::string(call.caller) + ", which shows " +
      (shown.empty() ? "no job secret" : "another job secret than its own") +
      "; give it a copy of the " + daemon +
      "'s secret file (option secret_file, TALWEG_SECRET_FILE, or ~/.config/talweg/secret)");
}

absl::Status MayActAs(const Identity& wanted, const std::optional<Identity>& caller) {
  if (!caller || *caller == wanted) return absl::OkStatus();
  if (caller->role == wanted.role && caller->name == "*") return absl::OkStatus();
  // Lane K of an aggregator is registered as NAME/K.
  if (caller->role == Role::kAggregator && wanted.role == Role::kAggregator &&
      wanted.name.starts_with(caller->name + "/")) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError("the caller is " + Describe(*caller) +
                                     ", and may not act as " + Describe(wanted) +
                                     ": give it a certificate or a token for that");
}

}  // namespace talweg::rpc
