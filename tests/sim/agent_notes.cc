// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>

#include "tests/sim/agent_process.h"

// Records the points that a life has reached, as far as a simulated agent sees them.
namespace talweg::sim {

void AgentProcess::NoteRound(size_t place, const pipeline::CompleteRound& complete) const {
  const Collective collective = plans_[place]->collective();
  if (complete.status != pipeline::Status::kOk) return;
  trace_->Reached(("a round of " + std::string(collective.name())).c_str());
  if (collective.encodes()) {
    trace_->Reached(
        ("a round encoded as " + std::string(EncodingName(collective.encoding))).c_str());
  }
  const view::View* const view = core().views().present();
  if (view != nullptr && view->aggregators.size() > 1) {
    const std::string dealing = DealingText(view->dealing);
    trace_->Reached(("a round dealt by " + dealing.substr(0, dealing.find(':'))).c_str());
  }
  if (collective.needs_every_rank()) {
    NotePlacement(plans_[place]->group(), *core().tensors()[complete.tensor.value()]);
  }
  if (plans_[place]->group().empty() || collective.needs_every_rank()) return;
  for (const view::Place& each : plans_[place]->group()) {
    if (core().views().present() != nullptr && core().views().present()->IndexOf(each.node))
      continue;
    trace_->Reached("a group goes on with the ranks that are left");
  }
}

// Records whether an aggregator sums a part on the host of the rank that gets or gives it.
void AgentProcess::NotePlacement(const view::Group& group,
                                 const pipeline::AgentTensor& tensor) const {
  const view::View* const view = core().views().present();
  const Collective& collective = tensor.spec.collective;
  if (view == nullptr || view->aggregators.empty()) return;
  const auto rank_count = static_cast<uint32_t>(group.size());
  const auto is_beside = [&](Share share, const view::Slice& slice) {
    const std::optional<uint32_t> rank =
        HolderOf(share, collective.part_at(slice.offset_bytes), rank_count);
    const std::optional<MemberIndex> member =
        rank ? view->IndexOf(group[*rank].node) : std::nullopt;
    return member && !view->members[member->value()].host_id.empty() &&
           view->members[member->value()].host_id == view->aggregators[slice.owner.value()].host_id;
  };
  for (const view::Slice& slice : tensor.slices) {
    if (is_beside(collective.gets, slice)) {
      trace_->Reached("a part is summed beside the rank that gets it");
    } else if (is_beside(collective.gives, slice)) {
      trace_->Reached("a part is summed beside the rank that gives it");
    } else {
      trace_->Reached("a part is summed beside neither");
    }
  }
}

}  // namespace talweg::sim
