// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/texts.h"

#include <cstdio>

#include "libs/base/counted.h"

namespace talweg::membership {
namespace {

constexpr size_t kJobNameBytesMax = 1024;
constexpr size_t kNameBytesMax = 255;
constexpr size_t kAddressBytesMax = 1024;
constexpr uint32_t kRanksMax = 4096;
constexpr uint32_t kMembersMax = 65536;
constexpr uint32_t kWeightMax = 1'000'000;
constexpr int64_t kJoinTimeoutMaxNs = 366 * 86400 * int64_t{1'000'000'000};

const char* PolicyName(LossPolicy policy) {
  return policy == LossPolicy::kFailJob ? "fail-job" : "continue";
}

// Names are shown, logged and compared; a NUL would cut them.
std::string TextProblem(const char* field, const std::string& text, size_t bytes_min,
                        size_t bytes_max) {
  if (text.size() < bytes_min) return std::string(field) + " is empty";
  if (text.size() > bytes_max) {
    return std::string(field) + " has " + std::to_string(text.size()) + " bytes; at most " +
           std::to_string(bytes_max) + " are allowed";
  }
  if (text.find('\0') != std::string::npos) return std::string(field) + " contains a NUL byte";
  return "";
}

std::string SpecProblem(const JobSpec& spec) {
  if (spec.min_members < 1 || spec.max_members < spec.min_members ||
      spec.max_members > kMembersMax) {
    return "min_members is " + std::to_string(spec.min_members) + " and max_members " +
           std::to_string(spec.max_members) +
           "; they must be 1 <= min_members <= max_members <= " + std::to_string(kMembersMax);
  }
  if (spec.BeginMembers() < spec.min_members || spec.BeginMembers() > spec.max_members) {
    return "begin_members is " + std::to_string(spec.begin_members) +
           "; it must be from min_members (" + std::to_string(spec.min_members) +
           ") to max_members (" + std::to_string(spec.max_members) + "), or 0 for max_members";
  }
  if (spec.slice_bytes_max < 4 * kKiB || spec.slice_bytes_max > kGiB ||
      spec.slice_bytes_max % kCacheLineBytes != 0) {
    return "slice_bytes_max is " + std::to_string(spec.slice_bytes_max) +
           "; it must be a multiple of 64 from 4096 to 1073741824";
  }
  if (!IsValid(spec.dealing)) {
    return "dealing is " + DealingText(spec.dealing) + "; it must be " + std::string(kDealingForms);
  }
  if (spec.loss_policy != LossPolicy::kFailJob && spec.loss_policy != LossPolicy::kContinue) {
    return "loss_policy is " + std::to_string(static_cast<int>(spec.loss_policy)) +
           "; it must be given";
  }
  if (spec.join_timeout_ns <= 0 || spec.join_timeout_ns > kJoinTimeoutMaxNs) {
    return "join_timeout is " + SecondsText(spec.join_timeout_ns) +
           "; it must be above 0 and at most a year";
  }
  if (spec.gather_ns < 0 || spec.gather_ns > kJoinTimeoutMaxNs) {
    return "gather is " + SecondsText(spec.gather_ns) + "; it must be from 0 to a year";
  }
  return "";
}

}  // namespace

std::string AgentText(const view::ViewMember& member) {
  return "agent of node " + std::to_string(member.id.node.value()) + " (" +
         (member.name.empty() ? "" : member.name + ", ") + "incarnation " +
         view::HexText(member.id.incarnation) + ")";
}

std::string AggregatorText(const view::ViewAggregator& aggregator) {
  return "aggregator " + aggregator.name + " (incarnation " +
         view::HexText(aggregator.incarnation) + ")";
}

std::string SecondsText(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3g s", static_cast<double>(ns) / 1e9);
  return text;
}

std::string NodesText(const std::vector<NodeRank>& nodes) {
  std::string text = nodes.size() == 1 ? "node " : "nodes ";
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i == 8) return text + " and " + std::to_string(nodes.size() - i) + " more";
    text += (i > 0 ? ", " : "") + std::to_string(nodes[i].value());
  }
  return text;
}

std::string JobsText(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i == 8) return text + " and " + std::to_string(names.size() - i) + " more";
    text += (i > 0 ? ", '" : "'") + names[i] + "'";
  }
  return text;
}

std::string StateText(const LiveJob& job, uint64_t members_to_begin, int64_t now_ns) {
  if (job.Over()) return job.text;
  if (job.state == JobState::kForming) {
    std::vector<NodeRank> ready;
    for (const auto& [node, member] : job.members) {
      if (member.stream) ready.push_back(node);
    }
    if (ready.size() < job.spec.min_members) {
      return "waits for " + Counted(job.spec.min_members - ready.size(), "more member") + " of " +
             std::to_string(job.spec.min_members) +
             (ready.empty() ? "" : "; has " + NodesText(ready));
    }
    if (ready.size() < members_to_begin && job.gather_end_ns && *job.gather_end_ns > now_ns) {
      return "has " + NodesText(ready) + " and waits for " +
             Counted(members_to_begin - ready.size(), "more member") + " of " +
             std::to_string(members_to_begin) + ", for at most " + SecondsText(job.spec.gather_ns);
    }
    return "waits for an aggregator; start one with talweg-aggregator";
  }
  const std::vector<NodeRank> joining = job.JoiningNodes();
  if (joining.empty()) {
    std::vector<NodeRank> without_ranks;
    std::vector<NodeRank> not_ready;
    for (const auto& [node, member] : job.members) {
      if (job.Pending(member) && !member.ranks.attached.value_or(true))
        without_ranks.push_back(node);
      if (job.IsStandby(member)) not_ready.push_back(node);
    }
    std::string text;
    if (!without_ranks.empty()) {
      text = NodesText(without_ranks) + " can enter when all ranks are there";
    }
    if (!not_ready.empty()) {
      text += (text.empty() ? "" : "; ") + NodesText(not_ready) +
              ": a standby until all its ranks are ready";
    }
    return text;
  }
  if (!job.quiesce) return NodesText(joining) + " cannot enter: there is no aggregator";
  std::vector<NodeRank> waits_for;
  for (const view::MemberIdentity& id : job.quiesce->waits_for) waits_for.push_back(id.node);
  const uint64_t step = job.quiesce->step;
  return "waits for " + NodesText(waits_for) +
         (step == 0 ? " to say which step it is in"
                    : " to end step " + std::to_string(step) +
                          " (its program says so with talweg.end_step(); one that never does "
                          "lets nobody in)") +
         ", so that " + NodesText(joining) + " can enter";
}

Answer Unproven(const view::MemberIdentity& id) {
  return Refuse(Code::kUnproven, "the caller does not show the secret that the agent of node " +
                                     std::to_string(id.node.value()) +
                                     " has joined with; only that agent may speak for it");
}

std::string ProblemOf(const JoinRequest& request) {
  std::string problem = TextProblem("job_name", request.job_name, 1, kJobNameBytesMax);
  if (problem.empty()) problem = TextProblem("name", request.member.name, 0, kNameBytesMax);
  if (problem.empty()) {
    problem = TextProblem("admin_address", request.member.admin_address, 0, kAddressBytesMax);
  }
  if (problem.empty()) {
    problem = TextProblem("host_id", request.member.host_id, 0, kAddressBytesMax);
  }
  if (problem.empty()) problem = TextProblem("tenant", request.spec.tenant, 0, kJobNameBytesMax);
  if (problem.empty()) problem = SpecProblem(request.spec);
  if (!problem.empty()) return problem;
  if (request.member.id.incarnation == Incarnation{0})
    return "incarnation is 0; draw one at random";
  if (request.member.rank_count < 1 || request.member.rank_count > kRanksMax) {
    return "rank_count is " + std::to_string(request.member.rank_count) +
           "; a node has 1 to 4096 ranks";
  }
  return "";
}

std::string ProblemOf(const view::ViewAggregator& aggregator) {
  std::string problem = TextProblem("name", aggregator.name, 1, kNameBytesMax);
  if (problem.empty()) {
    problem = TextProblem("data_address", aggregator.data_address, 1, kAddressBytesMax);
  }
  if (problem.empty()) problem = TextProblem("host_id", aggregator.host_id, 0, kAddressBytesMax);
  if (problem.empty()) {
    problem = TextProblem("admin_address", aggregator.admin_address, 0, kAddressBytesMax);
  }
  if (!problem.empty()) return problem;
  if (aggregator.incarnation == Incarnation{0}) return "incarnation is 0; draw one at random";
  if (aggregator.weight < 1 || aggregator.weight > kWeightMax) {
    return "weight is " + std::to_string(aggregator.weight) + "; it must be 1 to 1000000";
  }
  return "";
}

std::string DifferenceOf(const JobSpec& set, const JobSpec& asked) {
  const auto differ = [](const char* field, const std::string& ours, const std::string& theirs) {
    return std::string(field) + " is " + ours + " in the job and " + theirs + " in the request";
  };
  if (set.min_members != asked.min_members) {
    return differ("min_members", std::to_string(set.min_members),
                  std::to_string(asked.min_members));
  }
  if (set.max_members != asked.max_members) {
    return differ("max_members", std::to_string(set.max_members),
                  std::to_string(asked.max_members));
  }
  if (set.BeginMembers() != asked.BeginMembers()) {
    return differ("begin_members", std::to_string(set.BeginMembers()),
                  std::to_string(asked.BeginMembers()));
  }
  if (set.slice_bytes_max != asked.slice_bytes_max) {
    return differ("slice_bytes_max", std::to_string(set.slice_bytes_max),
                  std::to_string(asked.slice_bytes_max));
  }
  if (set.dealing != asked.dealing) {
    return differ("dealing", DealingText(set.dealing), DealingText(asked.dealing));
  }
  if (set.loss_policy != asked.loss_policy) {
    return differ("loss_policy", PolicyName(set.loss_policy), PolicyName(asked.loss_policy));
  }
  if (set.join_timeout_ns != asked.join_timeout_ns) {
    return differ("join_timeout", SecondsText(set.join_timeout_ns),
                  SecondsText(asked.join_timeout_ns));
  }
  if (set.gather_ns != asked.gather_ns) {
    return differ("gather", SecondsText(set.gather_ns), SecondsText(asked.gather_ns));
  }
  if (set.tenant != asked.tenant) {
    return differ("tenant", "'" + set.tenant + "'", "'" + asked.tenant + "'");
  }
  return "";
}

}  // namespace talweg::membership
