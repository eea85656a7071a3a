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

// The requests of members and aggregators to the scheduler's core, and its answers.
namespace talweg::membership {

// One watch stream of a member or an aggregator. The caller names it, and never uses the name
// again.
using StreamId = StrongId<struct StreamIdTag, uint64_t>;
// One attempt to stop a job between two steps. Never 0, and never used again, even after restarts.
using QuiesceId = StrongId<struct QuiesceIdTag, uint64_t>;

// Tells the caller what it may do next.
enum class Code : uint8_t {
  kOk,
  kInvalid,   // The request can never be right.
  kUnknown,   // No such job or aggregator.
  kHeld,      // A live process has that node rank or name.
  kRefused,   // The incarnation or its job is out, or its spec differs.
  kUnproven,  // The caller does not show the secret of the process that it speaks for.
  kReplaced,  // The stream's owner has opened another.
  kFull,      // A limit is reached.
  kNotYet,    // Ask again: it may be granted later.
};

struct Answer {
  Code code = Code::kOk;
  std::string text;  // If not kOk: why not.

  bool ok() const { return code == Code::kOk; }
  friend bool operator==(const Answer&, const Answer&) = default;
};

struct Config {
  int64_t lease_ns = 10'000'000'000;
  // How long a job is still shown after it is over and its members are gone.
  int64_t history_ns = 600'000'000'000;
  // The most such jobs that are shown.
  size_t history_jobs_max = 64;
  // The wall clock at the start; 0: unknown. Only used to draw numbers that no other run has given.
  int64_t start_unix_ns = 0;
  // Limits on forming and running jobs together, and on live aggregators.
  size_t jobs_max = 1024;
  size_t aggregators_max = 1024;

  // The longest time between two calls of OnTick. A silence longer than lease_ns / 2 counts as a
  // gap.
  int64_t TickNs() const { return lease_ns / 20 > 500'000'000 ? 500'000'000 : lease_ns / 20 + 1; }
};

struct JoinRequest {
  std::string job_name;
  JobSpec spec;
  view::ViewMember member;
  SecretHash secret;    // The member has drawn it, and shows it in later calls.
  int64_t unix_ns = 0;  // For JobRecord::created_unix_ns.
  // The member belongs to a job that may have finished, and does not begin another one.
  bool not_after_finish = false;
};

// The caller, as it names itself. Nothing happens for a caller that does not show the member's
// secret.
struct Caller {
  JobId job;
  view::MemberIdentity id;
  Epoch held;  // The epoch of its newest view; 0: none.
  SecretHash secret = {};
};
struct PoolCaller {
  Incarnation incarnation;
  SecretHash secret = {};
};

// What a member says about its node's ranks. nullopt: nothing, as from older members; the condition
// then counts as true.
struct RanksWord {
  std::optional<bool> attached;  // All ranks are connected to the agent.
  // The ranks could take part in steps at once. A member that does not say this knows no standbys.
  std::optional<bool> ready;
  std::optional<bool> have_state;  // The ranks have all of the training's state that others have.
};

struct JoinAnswer {
  Answer answer;
  JobId job;
  JobState state = JobState::kForming;
};

enum class LeaveReason : uint8_t {
  kFinished,  // Its ranks are done.
  kStopped,   // Its ranks are not done: it reports itself as lost.
};

// What a member reports as dead (its own rank, itself) or as unreachable (a peer).
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
  uint32_t job_count = 0;  // How many running jobs have it in their view (with `leave`: had it).
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_REQUESTS_H_
