// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/joiner_checks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "tests/sim/ledger.h"

namespace talweg::sim {

// Returns whether this full member was absent or a standby in the view before.
static bool Enters(const view::View& held, const view::ViewMember& member) {
  const std::optional<MemberIndex> before = held.IndexOf(member.id);
  return !member.standby && (!before || held.members[before->value()].standby);
}

bool HasJoiner(const view::View& held, const view::View& view) {
  return std::any_of(view.members.begin(), view.members.end(),
                     [&held](const view::ViewMember& member) {
                       return !held.IndexOf(member.id) || Enters(held, member);
                     });
}

namespace {

// Returns whether a joiner takes part in the tensor's rounds. A round of a named group concerns
// nobody outside the group.
bool TakesJoiner(const pipeline::AgentCore& member, const pipeline::AgentTensor& tensor,
                 const view::View& view) {
  // A standby already takes part in side tensors.
  if (tensor.spec.collective.side) return false;
  if (tensor.group.empty()) return true;
  return std::any_of(tensor.group.begin(), tensor.group.end(), [&](const view::Place& place) {
    const std::optional<MemberIndex> index = view.IndexOf(place.node);
    return index && Enters(*member.views().newest(), view.members[index->value()]);
  });
}

}  // namespace

void CheckNothingOpen(const std::vector<const pipeline::AgentCore*>& members,
                      const view::View& view) {
  std::map<TensorKey, std::pair<Round, const pipeline::AgentCore*>> held;
  for (const pipeline::AgentCore* member : members) {
    const std::string who =
        "a joiner enters while node " + std::to_string(member->config().self.node.value());
    for (const auto& tensor : member->tensors()) {
      if (tensor->state == pipeline::TensorState::kFailed || !tensor->announced()) continue;
      if (tensor->spec.collective.side && tensor->finish()) {
        throw Violation{who + " finishes a round of " + tensor->spec.name};
      }
      if (!TakesJoiner(*member, *tensor, view)) continue;
      if (tensor->pushed_count > 0 || tensor->finish()) {
        throw Violation{who + " has round " + std::to_string(tensor->active_round().value()) +
                        " of " + tensor->spec.name + " open"};
      }
      const auto [known, is_first] =
          held.emplace(tensor->key, std::pair(tensor->held.round, member));
      if (is_first || known->second.first == tensor->held.round) continue;
      throw Violation{who + " holds round " + std::to_string(tensor->held.round.value()) + " of " +
                      tensor->spec.name + ", and node " +
                      std::to_string(known->second.second->config().self.node.value()) + " holds " +
                      std::to_string(known->second.first.value())};
    }
  }
}

}  // namespace talweg::sim
