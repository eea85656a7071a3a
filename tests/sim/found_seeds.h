// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_FOUND_SEEDS_H_
#define TALWEG_TESTS_SIM_FOUND_SEEDS_H_

#include <cstdint>

#include "tests/sim/profile.h"

// Lives past the first ten thousand that have broken something: sim_test lives them in every run. A
// seed leads to another life when a core sends otherwise, so what each one found has a test of its
// own beside its core, too.
namespace talweg::sim {

struct FoundSeed {
  Kind kind;
  uint64_t seed;
};

inline constexpr FoundSeed kFoundSeeds[] = {
    // The end of an aborted round is said again, to a rank that has taken the next one meanwhile.
    {Kind::kRecovery, 1'117'996},
    // A member that has told no rank yet which round comes first hears another one in a later view.
    {Kind::kRecovery, 1'133'183},
    // An older store brings back a job, and an aggregator serves it anew in the epoch that it knew.
    {Kind::kRecovery, 158'517'001'405},
    // A member that has just lost its connection is said to have had none for a tick.
    {Kind::kSilent, 1'037'033},
    {Kind::kSilent, 1'167'756},
    // A tensor has failed at one member, and the others do its round again in the next view.
    {Kind::kGroups, 6'003'641},
    {Kind::kGroups, 9'039'749},
    // The only member that has heard of it leaves before the next view.
    {Kind::kGroups, 6'023'680},
    // A member gives up a tensor whose root is gone while another lacks the round before.
    {Kind::kGroups, 9'028'883},
    // A rank that its agent greets after the others were told to stop goes on past that step.
    {Kind::kRecovery, 215},
    // After a gap, when no broken stream is a loss, a job has too few ready members for a while.
    {Kind::kUsual, 974'052'000'613},
    // An agent has no memory for a tensor, and declares it to say that it has failed.
    {Kind::kStandbys, 326'532'003'606},
    // A rank names another by the numbers of a view while its follow of the next one is on its way.
    {Kind::kStandbys, 159'687'003'395},
    {Kind::kStandbys, 5'100'194'225},
    // A rank that breaks the rules pushes what is right by chance.
    {Kind::kGroups, 9'228'287},
    // A rank that breaks the rules pushes again what has ended on a mismatch.
    {Kind::kGroups, 5'100'209'706},
    // What answers a contribution that a confused agent sends again lands on its next one.
    {Kind::kUsual, 5'100'513'306},
    // Slow ranks of a node go on with a tensor of their own beside a node that is dead.
    {Kind::kGroups, 5'100'419'333},
    // That a round waits for a node is read when the node has given its part and left.
    {Kind::kGroups, 5'100'468'803},
    // All that two ranks know of those who agreed on a group is themselves.
    {Kind::kStandbys, 5'100'039'176},
    // One who leaves a failed job after a gap quotes a lease that had lapsed before.
    {Kind::kSilent, 5'205'903'317},
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_FOUND_SEEDS_H_
