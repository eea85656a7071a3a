// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/reached.h"

#include "libs/pipeline/agent_core.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

namespace talweg::sim {

void GatherLedger(const Ledger& ledger, std::map<std::string, uint64_t>& coverage) {
  if (ledger.views().size() > 1) ++coverage["a second view"];
  if (ledger.LostSeveralAtOnce()) ++coverage["several losses at once"];
  std::map<std::string, Incarnation> aggregators;
  for (const auto& [epoch, view] : ledger.views()) {
    for (const view::ViewAggregator& aggregator : view.aggregators) {
      Incarnation& known = aggregators[aggregator.name];
      if (known != Incarnation{0} && known != aggregator.incarnation) {
        ++coverage["an aggregator that was restarted is in a newer view"];
      }
      known = aggregator.incarnation;
    }
    if (view.members.size() > ledger.views().begin()->second.members.size()) {
      ++coverage["a joiner is let in"];
    }
  }
}

void GatherJob(const aggregation::Counters& counters, std::map<std::string, uint64_t>& coverage) {
  coverage["a contribution that has come before"] += counters.duplicates;
  coverage["a contribution after its round: the result again"] += counters.results_again;
  coverage["a contribution of an older epoch"] += counters.contributions_late;
  coverage["a connection lost before its contributions were summed"] +=
      counters.contributions_forgotten;
  coverage["a sum that ends after its epoch"] += counters.sums_stale;
  coverage["a sum held back by writes of the result before"] += counters.sums_held_back;
  coverage["a Hello before its view"] += counters.hellos_held;
  coverage["a Hello refused"] += counters.hellos_refused;
  coverage["a Fence"] += counters.fences;
  coverage["a Fence before its view"] += counters.fences_held;
  coverage["a connection that its member replaces"] += counters.connections_replaced;
  coverage["decision: redo"] += counters.decisions[static_cast<int>(wire::Verdict::kRedo)];
  coverage["decision: finish"] += counters.decisions[static_cast<int>(wire::Verdict::kFinish)];
  coverage["decision: abort"] += counters.decisions[static_cast<int>(wire::Verdict::kAbort)];
  coverage["a slice of a round that ends with a disagreement"] += counters.rounds_disagreed;
  coverage["a report that has come before"] += counters.decisions_again;
  coverage["a tensor poisoned"] += counters.tensors_poisoned;
  coverage["a missing member is named"] += counters.waiting_notices;
  coverage["a clean goodbye"] += counters.goodbyes;
  coverage["a slice of a copy round"] += counters.copies;
  for (int reason = 1; reason < wire::kRefusedReasonCount; ++reason) {
    coverage[std::string("refused: ") +
             wire::RefusedReasonName(static_cast<wire::RefusedReason>(reason))] +=
        counters.refused[reason];
  }
}

void GatherAgent(const AgentProcess& process, std::map<std::string, uint64_t>& coverage) {
  const pipeline::AgentCoreCounters& counters = process.core().counters();
  coverage["agent: a result ignored"] += counters.results_ignored;
  coverage["agent: a frame ignored"] += counters.frames_ignored;
  coverage["agent: a round redone"] += counters.redos;
  coverage["agent: a round finished for others"] += counters.finishes;
  coverage["agent: a round aborted"] += counters.rounds_aborted;
  if (process.AllRanksDone()) ++coverage["all ranks of a node are done"];
}

}  // namespace talweg::sim
