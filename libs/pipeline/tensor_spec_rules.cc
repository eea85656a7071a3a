// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/tensor_spec_rules.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/collective.h"
#include "libs/base/counted.h"
#include "libs/base/dtype.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"

namespace talweg::pipeline {
namespace {

constexpr size_t kRanksShown = 8;

bool Names(const TensorSpec& spec, Rank rank) {
  return std::binary_search(spec.ranks.begin(), spec.ranks.end(), rank);
}

std::string GroupProblem(const TensorSpec& spec, const ViewState& views) {
  const std::string tensor = "tensor '" + spec.name + "': ";
  const bool side = spec.collective.side;
  if (side && spec.ranks.empty()) {
    return tensor + "a side tensor is of a group: name the ranks that take part in it";
  }
  if (!side && views.IsStandby()) {
    return tensor + "node " + std::to_string(views.self_id().node.value()) +
           " is a standby, whose ranks take part in side tensors only: say that they are ready "
           "(talweg_ready), and follow the view in which it is a full member (talweg_follow)";
  }
  const view::View* const numbers = views.numbers();
  const uint32_t job_ranks = numbers == nullptr ? 0
                             : side             ? numbers->NumberCount()
                                                : numbers->RankCount();
  for (size_t i = 0; i < spec.ranks.size(); ++i) {
    if (i > 0 && spec.ranks[i - 1] >= spec.ranks[i]) {
      return tensor + "the ranks of a group are in ascending order, each once, and rank " +
             std::to_string(spec.ranks[i].value()) + " comes after rank " +
             std::to_string(spec.ranks[i - 1].value());
    }
    if (numbers != nullptr && spec.ranks[i].value() >= job_ranks) {
      return tensor + "there is no rank " + std::to_string(spec.ranks[i].value()) +
             "; the job has ranks 0 to " + std::to_string(job_ranks - 1);
    }
  }
  if (!spec.collective.has_root() || spec.ranks.empty() || Names(spec, Rank{spec.root_rank})) {
    return "";
  }
  return tensor + "its root is rank " + std::to_string(spec.root_rank) +
         ", which is not among the ranks that take part: " + Describe(spec);
}

std::string SpecProblem(const TensorSpec& spec, const ViewState& views,
                        const AgentCoreConfig& config) {
  if (spec.name.empty() || spec.name.size() > wire::kNameBytesMax) {
    return "a tensor's name has " + Counted(spec.name.size(), "byte") + "; 1 to " +
           std::to_string(wire::kNameBytesMax) + " are allowed";
  }
  const std::string tensor = "tensor '" + spec.name + "': ";
  if (const std::string problem = talweg::Problem(spec.collective); !problem.empty()) {
    return tensor + problem;
  }
  if (spec.ranks.size() > wire::kGroupRanksMax) {
    return tensor + "a group has at most " + std::to_string(wire::kGroupRanksMax) + " ranks, not " +
           std::to_string(spec.ranks.size());
  }
  // Checks one part first, so that the product below cannot overflow.
  if (spec.collective.element_count > config.tensor_bytes_max / DTypeSize(spec.collective.dtype) ||
      spec.bytes() > config.tensor_bytes_max) {
    return tensor + Describe(spec) + " is larger than " + FormatBytes(config.tensor_bytes_max) +
           "; split it";
  }
  return GroupProblem(spec, views);
}

}  // namespace

std::string Describe(const TensorSpec& spec) {
  std::string text = talweg::Describe(spec.collective);
  if (spec.collective.has_root()) {
    text += (spec.collective.from_root() ? " from rank " : " to rank ") +
            std::to_string(spec.root_rank);
  }
  if (spec.ranks.empty()) return text;
  text += " among ranks";
  for (size_t i = 0; i < spec.ranks.size() && i < kRanksShown; ++i) {
    text += (i == 0 ? " " : ", ") + std::to_string(spec.ranks[i].value());
  }
  return text + (spec.ranks.size() > kRanksShown ? ", ..." : "");
}

TensorSpec Normalized(TensorSpec spec, const ViewState& views) {
  if (!spec.collective.has_root()) spec.root_rank = 0;
  if (spec.collective.side) return spec;  // A side tensor keeps naming its ranks.
  std::vector<Rank> all;
  const view::View* const numbers = views.numbers();
  for (uint32_t i = 0; numbers != nullptr && i < numbers->RankCount(); ++i) all.push_back(Rank{i});
  // A collective that works with any ranks does not name them, because "all" includes joiners.
  if (!spec.collective.needs_every_rank() && spec.ranks == all) spec.ranks.clear();
  if (spec.collective.needs_every_rank() && spec.ranks.empty()) spec.ranks = std::move(all);
  return spec;
}

std::string Problem(const TensorSpec& spec, LocalRank rank, const ViewState& views,
                    const AgentCoreConfig& config) {
  if (std::string problem = SpecProblem(spec, views, config); !problem.empty()) return problem;
  if (spec.collective.needs_every_rank() && spec.ranks.empty()) {
    return "tensor '" + spec.name + "': the job has not begun, so that nobody knows its ranks";
  }
  const Rank global = views.GlobalRank(rank);
  if (!spec.ranks.empty() && !Names(spec, global)) {
    return "tensor '" + spec.name + "': rank " + std::to_string(global.value()) +
           " is not among the ranks that take part: " + Describe(spec);
  }
  return "";
}

}  // namespace talweg::pipeline
