// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_FOUND_SEEDS_H_
#define TALWEG_TESTS_SIM_FOUND_SEEDS_H_

#include <cstdint>

#include "tests/sim/profile.h"

// Lives past the first ten thousand that have broken something. sim_test lives them in every run. A
// seed leads to another life if a core's messages change, so each finding also has a test beside
// its core.
namespace talweg::sim {

struct FoundSeed {
  Kind kind;
  uint64_t seed;
};

inline constexpr FoundSeed kFoundSeeds[] = {
    // The end of an aborted round is sent again, to a rank that has taken the next round meanwhile.
    {Kind::kRecovery, 1'117'996},
    // A member that has not told a rank its first round yet gets another first round in a later
    // view.
    {Kind::kRecovery, 1'133'183},
    // An older store brings back a job, and an aggregator serves it again in an epoch that it knew.
    {Kind::kRecovery, 158'517'001'405},
    // A member that has just lost its connection is reported to have had none for a tick.
    {Kind::kSilent, 1'037'033},
    {Kind::kSilent, 1'167'756},
    // A tensor has failed at one member, and the others do its round again in the next view.
    {Kind::kGroups, 6'003'641},
    {Kind::kGroups, 9'039'749},
    // The only member that knows of the failure leaves before the next view.
    {Kind::kGroups, 6'023'680},
    // A member gives up a tensor whose root is gone while another lacks the round before.
    {Kind::kGroups, 9'028'883},
    // A rank that is welcomed after the others were told to stop goes on past that step.
    {Kind::kRecovery, 215},
    // After a gap, when no broken stream is a loss, a job has too few ready members for a while.
    {Kind::kUsual, 974'052'000'613},
    // An agent has no memory for a tensor, and declares it to say that it has failed.
    {Kind::kStandbys, 326'532'003'606},
    // A rank names another by the numbers of a view while its follow of the next one is on its way.
    {Kind::kStandbys, 159'687'003'395},
    {Kind::kStandbys, 5'100'194'225},
    // A rank that breaks the rules pushes right data by chance.
    {Kind::kGroups, 9'228'287},
    // A rank that breaks the rules pushes a round again that has ended with a mismatch.
    {Kind::kGroups, 5'100'209'706},
    // The answer to a contribution that a confused agent repeats lands on its next one.
    {Kind::kUsual, 5'100'513'306},
    // Slow ranks of a node go on with a tensor of their own beside a node that is dead.
    {Kind::kGroups, 5'100'419'333},
    // A message that a round waits for a node is read after the node has contributed and left.
    {Kind::kGroups, 5'100'468'803},
    // Two ranks know only themselves among the ranks that agreed on a group.
    {Kind::kStandbys, 5'100'039'176},
    // A member that leaves a failed job after a gap names a lease that had expired before.
    {Kind::kSilent, 5'205'903'317},
    // A round is said to wait for nodes that an owner named under an older view.
    {Kind::kHasty, 5'360'020'377},
    {Kind::kHasty, 5'360'020'563},
    // A round is said to wait for ranks who have pushed it, after its root was lost.
    {Kind::kHasty, 5'360'470'695},
    // A rank declares a dead tensor after the other ranks of its node were told so. Its first round
    // waits for them, and they for the rank.
    {Kind::kGathers, 5'360'549'096},
    // Two nodes go on for a minute, one of them slowly, beside a third one that is dead.
    {Kind::kGathers, 5'360'985'680},
    // A member tells the others that a round needs a member which has left.
    {Kind::kGroups, 5'361'207'754},
    // A rank pushes a round of a tensor that has failed, and takes the tensor's text for the
    // round's.
    {Kind::kLate, 5'361'302'469},
    {Kind::kPatience, 5'361'309'116},
    // A tensor fails by a false report while the answer to a rank's declaration is under way.
    {Kind::kLate, 5'361'314'442},
    // A round that lost ranks had begun in a later step is over where a joiner enters.
    {Kind::kPatience, 5'361'304'692},
    // The scheduler has answered for two leases, and no tick has come since.
    {Kind::kSilent, 5'361'418'444},
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_FOUND_SEEDS_H_
