// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_COVERAGE_H_
#define TALWEG_TESTS_SIM_COVERAGE_H_

// What the lives of sim_test must have reached together: the rows of the failure tables of
// docs/protocol.md, by section, and the faults that lead to them. A row that no honest or confused
// peer of a simulated cluster can cause is left to the cores' unit tests (docs/testing.md says
// which).
namespace talweg::sim {

inline constexpr const char* kCoverage[] = {
    // Section 2.
    "a Join is repeated",
    "a Join or Renew of a lost incarnation",
    "scheduler: a restart over its store",
    "scheduler: a gap: leases start afresh",
    "a second view",
    "a joiner is let in",
    "a joiner goes on with a later round",
    "a job that is over is collected",
    // Section 4.
    "a tensor poisoned",
    // Section 5.
    "a contribution that is here already",
    "a contribution behind its round: the result again",
    "a contribution of an older epoch",
    "refused: wrong job",
    "refused: wrong epoch",
    "refused: not a member",
    "refused: not declared",
    "refused: not placed here",
    "refused: wrong round",
    "refused: wrong length",
    "refused: wrong mode",
    "a frame does not parse",
    "a connection lost before its contributions were summed",
    "a sum that its epoch has outlived",
    "a sum held back by writes of the result before",
    "a slice of a copy round",
    "somebody is waited for and named",
    // Section 6.
    "a Hello before its view",
    "a Hello refused",
    "a Fence",
    "a Fence before its view",
    "a connection replaced by its member",
    "a newer view while an agent fences",
    "a newer view while an agent waits for decisions",
    "decision: redo",
    "decision: redo, slices that somebody has are discarded",
    "decision: finish, as somebody holds the round",
    "decision: abort, as the root is gone",
    "a rank hears that its round is aborted",
    "a report again",
    "an aggregator that was restarted is in a newer view",
    "an owner dies that has decided to finish a round",
    "agent: a result ignored",
    "agent: a frame ignored",
    "a zombie goes on behind a view without it",
    // Section 7.
    "a clean goodbye",
    "all ranks of a node are done",
    // Faults (section 8 and more).
    "fault: crash an agent",
    "fault: crash an aggregator",
    "fault: restart the scheduler",
    "fault: break a connection",
    "fault: stop a process",
    "fault: partition",
    "fault: kill a rank",
    "fault: break a stream",
    "fault: clock gap",
    "fault: late join",
    "fault: confuse an agent",
    "fault: leave",
    "fault: drain an aggregator",
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_COVERAGE_H_
