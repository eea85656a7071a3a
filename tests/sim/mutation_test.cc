// SPDX-License-Identifier: Apache-2.0
// The simulation finds bugs: each of these, put into a core, breaks a life within so many seeds.
#include "tests/sim/mutation.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include <catch2/catch.hpp>

#include "tests/sim/life.h"

namespace talweg::sim {
namespace {

constexpr uint64_t kSeedsMax = 4'000;

struct Mutation {
  const char* name;    // In a TALWEG_MUTATION of the cores.
  const char* breaks;  // Invariants 1 to 7 of docs/protocol.md's design, and rules of the protocol.
  Kind kind = Kind::kUsual;  // Of the lives that find it.
};

constexpr Mutation kMutations[] = {
    {"duplicate_counted_twice", "invariant 1: each contribution once"},
    {"divisor_counts_members", "invariant 1, rule 11: an average divides by the ranks"},
    {"rank_count_unchecked", "rule 11: no more ranks than the member has"},
    {"summed_over_writes", "invariant 1: a result stays until it has been written to everybody"},
    {"sum_order_reversed", "invariant 2, rule 5: sums in member order"},
    {"visible_slice_by_slice", "invariant 3, rule 4: a result is visible by the tensor"},
    {"slices_kept_over_redo", "invariant 3, rule 4: no slices of two epochs in one result"},
    {"decided_before_all_reported", "invariant 3, rule 1: decisions need every report"},
    {"decision_not_awaited", "invariant 3, rule 1: contributions wait for the decision"},
    {"reported_before_fenced", "rule 1: who reports has stopped the writers of older epochs"},
    {"zombie_not_closed", "rules 1, 2: who is out of the view writes nothing any more"},
    {"slots_inherited", "rules 2, 3: nobody is given the memory of a writer that has left"},
    {"old_connection_heard",
     "rule 3: written again only over a new connection, the old one closed"},
    {"lost_contribution_kept", "rule 3: what a broken connection brought is contributed again"},
    {"stale_sum_published", "invariant 3: a sum of an older epoch is thrown away"},
    {"finish_in_its_own_epoch", "rule 4: a finished round keeps the epoch of its sum"},
    {"wrong_job_taken", "invariant 4: a contribution of another job is refused"},
    {"wrong_epoch_taken", "invariant 4, rule 3: a contribution of another epoch is refused"},
    {"wrong_length_taken", "invariant 4: a contribution of another length is refused"},
    {"broken_stream_ignored", "invariant 5: a dead process is missed at once"},
    {"not_sent_again", "invariant 5: what a broken connection lost is sent again"},
    {"absent_awaited_for_ever", "invariant 5: who is gone as long as the scheduler is not awaited",
     Kind::kSilent},
    {"newer_view_not_told", "invariant 5: nobody waits in an epoch that is over", Kind::kSilent},
    {"late_counted_absent", "invariant 5: who is connected is waited for", Kind::kSilent},
    {"absent_before_it_went", "invariant 5: nobody is given up before the limit", Kind::kSilent},
    {"silence_outlives_an_answer", "invariant 5: a scheduler that answers decides", Kind::kSilent},
    {"each_silence_alone", "invariant 5: nor one that comes back only to go again", Kind::kSilent},
    {"large_slice_never_leaves", "invariant 6: one contribution may always be under way"},
    {"lengths_not_compared", "invariant 7: disagreement on a tensor is seen"},
    {"disagreement_ignored", "invariant 7: disagreement on a round is seen", Kind::kGroups},
    {"disagreement_in_a_node_ignored", "invariant 7: among ranks of one node, too", Kind::kGroups},
    {"own_part_not_copied", "invariant 1: what a rank gives is part of what it gets"},
    {"part_as_long_as_its_slices", "invariant 1: a part is as long as it was given", Kind::kGroups},
    {"part_got_by_all", "invariant 1: a rank gets its parts and no others", Kind::kGroups},
    {"private_slice_sent", "what only one node has to do with stays there", Kind::kGroups},
    {"dead_tensor_goes_on", "rule 7: without a rank that it needs a tensor has no round",
     Kind::kGroups},
    {"lost_round_finished", "rule 4: nobody has for others what they get", Kind::kGroups},
    {"poison_not_told_to_the_first", "invariant 7: both sides hear of a disagreement"},
    {"lost_incarnation_let_in", "rule 5: a lost incarnation stays out"},
    {"joiner_reports_round_zero", "rule 5: a joiner goes on with the others' round"},
    {"one_result_region", "rule 6: a result stays until the next one is taken"},
    {"abort_not_held", "rule 7: an abort is decided once, and held like a result"},
    {"unopened_round_aborted", "rule 7: only what somebody has begun is aborted", Kind::kRecovery},
    {"root_of_this_view", "rule 5: ranks keep their numbers, whoever is lost or joins"},
    {"joiner_without_quiesce", "rule 8: a joiner waits for the end of a step"},
    {"joiner_enters_at_a_loss", "rule 8: failures go first"},
    {"quiesce_asked_once", "rule 8: a joiner waits until all have ended the same step"},
    {"let_go_before_the_view", "rule 8: ranks wait until the joiner's view is known"},
    {"quiesced_inside_a_step", "rule 8: all ranks have ended the agreed step"},
    {"says_the_step_before", "rule 8: whoever has ended a step may be in the next"},
    {"stop_at_an_earlier_step", "rule 8: nobody has begun a step behind the agreed one"},
    {"credit_never_returned", "rule 9: credit returns when the contribution has been received"},
    {"credit_not_charged", "rule 9: no more is under way than was granted"},
    {"placed_by_declaration_order", "rule 10: placement depends on view and tensor alone"},
    {"told_before_stored", "rule 15: stored before it is announced"},
    {"epoch_not_raised", "rule 15: every view has an epoch of its own"},
    {"epoch_forgotten_at_restart", "rule 15: epochs never go back, over a restart either"},
    {"numbers_given_again", "rule 15: what an older store has forgotten is not given again"},
    {"older_store_trusted", "rules 5, 15: who may have missed a view is not taken into the next",
     Kind::kRecovery},
    {"leases_not_fresh_after_gap", "rule 15: leases start afresh after a gap"},
    {"leases_not_fresh_after_restart", "rule 15: leases start afresh after a restart"},
};

TEST_CASE("Every deliberate bug breaks a life", "[sim]") {
  if (std::getenv("TALWEG_SANITIZER") != nullptr) {
    std::printf(
        "SKIPPED: a core with a deliberate bug may touch what it must not; ./test without a "
        "sanitizer looks for them\n");
    return;
  }
  for (const Mutation& mutation : kMutations) {
    TurnOnMutation(mutation.name);
    uint64_t seed = 0;
    std::string violation;
    while (seed < kSeedsMax && violation.empty())
      violation = Live(mutation.kind, seed++, false).violation;
    CAPTURE(mutation.name, mutation.breaks);
    CHECK(!violation.empty());
    std::printf("%5llu seeds (%s)  %-30s %s\n             found as: %.120s\n",
                static_cast<unsigned long long>(seed), KindName(mutation.kind), mutation.name,
                mutation.breaks, violation.empty() ? "NOT FOUND" : violation.c_str());
  }
  TurnOnMutation("");
}

TEST_CASE("The table has every mutation of the cores, and the cores have every row", "[sim]") {
  TurnOnMutation("");
  std::set<std::string> listed;
  for (const Mutation& mutation : kMutations) listed.insert(mutation.name);
  // Some places are come to in one life of hundreds only.
  uint64_t seed = 0;
  while (seed < 300 || (seed < kSeedsMax && MutationsSeen() != listed)) {
    const Kind kind = seed % 2 == 0 ? Kind::kUsual : Kind::kGroups;
    CHECK(Live(kind, seed++, false).violation.empty());
  }
  for (const std::string& name : MutationsSeen()) {
    CAPTURE(name);
    CHECK(listed.contains(name));
  }
  for (const std::string& name : listed) {
    CAPTURE(name);
    CHECK(MutationsSeen().contains(name));
  }
}

}  // namespace
}  // namespace talweg::sim
