// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_REQUESTS_H_
#define TALWEG_LIBS_MEMBERSHIP_REQUESTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "libs/base/ids.h"
#include "libs/membership/records.h"
#include "libs/view/view.h"

// What members and aggregators ask of the scheduler's core, and its answers.
namespace talweg::membership {

// One watch stream of a member or an aggregator, named by the caller, never again after its end.
using StreamId = StrongId<struct StreamIdTag, uint64_t>;
// One attempt to stop a job between two steps. Never 0, never used again, also over restarts.
using QuiesceId = StrongId<struct QuiesceIdTag, uint64_t>;

// What the one who asked may do.
enum class Code : uint8_t {
  kOk,
  kInvalid,   // The request can never be right.
  kUnknown,   // No such job or aggregator.
  kHeld,      // A live process has that node rank or name.
  kRefused,   // This incarnation is out, or the job is, or its spec differs.
  kUnproven,  // It does not show the secret of the process that it speaks for.
  kReplaced,  // A stream whose owner has opened another.
  kFull,      // A limit is reached.
  kNotYet,    // It would be right later: ask again.
};

struct Answer {
  Code code = Code::kOk;
  std::string text;  // Why not, if not kOk.

  bool ok() const { return code == Code::kOk; }
  friend bool operator==(const Answer&, const Answer&) = default;
};

struct Config {
  int64_t lease_ns = 10'000'000'000;
  // How long a job that is over, and whose members are gone, is still shown.
  int64_t history_ns = 600'000'000'000;
  // At most so many of them.
  size_t history_jobs_max = 64;
  // The wall clock at the start; 0: unknown. Only for numbers that no other start has given.
  int64_t start_unix_ns = 0;
  // Forming and running jobs, and live aggregators.
  size_t jobs_max = 1024;
  size_t aggregators_max = 1024;

  // OnTick is to be called at least so often. A longer silence than lease_ns / 2 counts as a gap.
  int64_t TickNs() const { return lease_ns / 20 > 500'000'000 ? 500'000'000 : lease_ns / 20 + 1; }
};

struct JoinRequest {
  std::string job_name;
  JobSpec spec;
  view::ViewMember member;
  SecretHash secret;    // Drawn by the member; its later calls show it again.
  int64_t unix_ns = 0;  // For JobRecord::created_unix_ns.
};

// Who calls, as it says itself. Nothing happens for a caller that does not show the member's
// secret.
struct Caller {
  JobId job;
  view::MemberIdentity id;
  Epoch held;  // The newest view's that it holds; 0: none.
  SecretHash secret = {};
};
struct PoolCaller {
  Incarnation incarnation;
  SecretHash secret = {};
};

// What a member says of its node's ranks. nullopt: nothing, as older members do; then it is so.
struct RanksWord {
  std::optional<bool> attached;  // All are connected to it.
  // They could take part in steps at once. A member that says nothing of it knows no standbys.
  std::optional<bool> ready;
  std::optional<bool> have_state;  // They have what the others have of the training's state.
};

struct JoinAnswer {
  Answer answer;
  JobId job;
  JobState state = JobState::kForming;
};

enum class LeaveReason : uint8_t {
  kFinished,  // Its ranks are done.
  kStopped,   // Its ranks are not: a loss by its own word.
};

// What a member reports as dead (its own rank, itself) or out of its reach (a peer).
struct LostRank {
  Rank rank;
};
struct LostMember {
  view::MemberIdentity id;
};
struct LostAggregator {
  Incarnation incarnation;
};
using Lost = std::variant<LostRank, LostMember, LostAggregator>;

struct HeldJob {
  JobId job;
  Epoch epoch;
};

struct DeregisterAnswer {
  Answer answer;
  uint32_t job_count = 0;  // Running jobs whose view has (with `leave`: had) it.
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_REQUESTS_H_
