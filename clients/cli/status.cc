// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/status.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <string>
#include <vector>

#include "clients/cli/table.h"
#include "libs/base/bytes.h"
#include "libs/base/counted.h"
#include "libs/base/dealing.h"
#include "libs/base/json.h"
#include "libs/rpc/conversion.h"

namespace talweg::cli {
namespace {

using scheduler::v1::GetJobResponse;
using scheduler::v1::View;

double Seconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + duration.nanos() * 1e-9;
}

std::string JobStateText(scheduler::v1::JobState state) {
  switch (state) {
    case scheduler::v1::JOB_STATE_FORMING: return "forming";
    case scheduler::v1::JOB_STATE_RUNNING: return "running";
    case scheduler::v1::JOB_STATE_FAILED: return "failed";
    case scheduler::v1::JOB_STATE_FINISHED: return "finished";
    default: return absl::StrCat("state ", static_cast<int>(state));
  }
}

std::string MemberStateText(const scheduler::v1::MemberStatus& member) {
  switch (member.state()) {
    case scheduler::v1::MEMBER_STATE_JOINED:
      return absl::StrCat(member.member().standby() ? "standby" : "joined",
                          member.attached() ? "" : ", detached");
    case scheduler::v1::MEMBER_STATE_PENDING: return "pending";
    case scheduler::v1::MEMBER_STATE_LEFT: return "left";
    case scheduler::v1::MEMBER_STATE_LOST: return "lost";
    default: return absl::StrCat("state ", static_cast<int>(member.state()));
  }
}

std::string AggregatorStateText(const scheduler::v1::AggregatorStatus& aggregator) {
  using Status = scheduler::v1::AggregatorStatus;
  switch (aggregator.state()) {
    case Status::STATE_LIVE: return aggregator.attached() ? "live" : "live, detached";
    case Status::STATE_DRAINING: return "draining";
    case Status::STATE_LOST: return "lost";
    default: return absl::StrCat("state ", static_cast<int>(aggregator.state()));
  }
}

// Returns the job's first rank on each node.
std::map<uint32_t, uint32_t> RankBases(const View& view) {
  std::map<uint32_t, uint32_t> bases;
  uint32_t base = 0;
  for (const bool standby : {false, true}) {
    for (const auto& member : view.members()) {
      if (member.standby() != standby) continue;
      bases[member.id().node_rank()] = base;
      base += member.rank_count();
    }
  }
  return bases;
}

std::string RankRange(uint32_t base, uint32_t count) {
  if (count <= 1) return absl::StrCat(base);
  return absl::StrCat(base, "-", base + count - 1);
}

std::string JoinNumbers(const std::set<uint32_t>& numbers, const std::string& what) {
  if (numbers.empty()) return "";
  return absl::StrCat(what, numbers.size() == 1 ? " " : "s ", absl::StrJoin(numbers, ", "));
}

// The key of a round in both sides' answers.
class Rounds {
 public:
  WaitingRound& Of(const std::string& tensor, uint64_t round, double waited_s) {
    WaitingRound& waiting = rounds_[{tensor, round}];
    waiting.tensor = tensor;
    waiting.round = round;
    waiting.waited_s = std::max(waiting.waited_s, waited_s);
    return waiting;
  }

  // A node need not be named if its ranks are.
  std::vector<WaitingRound> Take(const std::map<uint32_t, uint32_t>& node_of_rank) {
    std::vector<WaitingRound> list;
    for (auto& [key, waiting] : rounds_) {
      for (const uint32_t rank : waiting.ranks) {
        const auto node = node_of_rank.find(rank);
        if (node != node_of_rank.end()) waiting.nodes.erase(node->second);
      }
      list.push_back(waiting);
    }
    std::stable_sort(list.begin(), list.end(), [](const WaitingRound& a, const WaitingRound& b) {
      return a.waited_s > b.waited_s;
    });
    return list;
  }

 private:
  std::map<std::pair<std::string, uint64_t>, WaitingRound> rounds_;
};

void AddAgentRounds(const agent::v1::GetStatusResponse& agent, uint32_t rank_base, Rounds& rounds,
                    std::map<uint32_t, uint32_t>& node_of_rank) {
  for (const auto& open : agent.open_rounds()) {
    WaitingRound& waiting = rounds.Of(open.tensor(), open.round(), Seconds(open.waited()));
    switch (open.waits_for()) {
      case agent::v1::WAITS_FOR_LOCAL_RANKS:
        for (const uint32_t local_rank : open.local_ranks()) {
          waiting.ranks.insert(rank_base + local_rank);
          node_of_rank[rank_base + local_rank] = agent.id().node_rank();
        }
        break;
      case agent::v1::WAITS_FOR_NODES:
        waiting.nodes.insert(open.node_ranks().begin(), open.node_ranks().end());
        break;
      case agent::v1::WAITS_FOR_CREDIT: waiting.reasons.insert("credit at its owners"); break;
      case agent::v1::WAITS_FOR_VIEW: waiting.reasons.insert("a change of members"); break;
      default: break;
    }
  }
}

// Returns how to ask a daemon whose admin port other hosts cannot reach; nothing for others.
std::string OfOwnHost(const std::string& address) {
  const std::vector<std::string> loopback = {"127.0.0.", "[::1]:", "localhost:"};
  if (std::none_of(loopback.begin(), loopback.end(),
                   [&](const std::string& prefix) { return absl::StartsWith(address, prefix); })) {
    return "";
  }
  return absl::StrCat(" (", Plain(address), " serves its own host alone: ask there, or start it ",
                      "with --admin_listen=0.0.0.0:0)");
}

std::string RoundsText(const std::vector<WaitingRound>& rounds, const std::string& indent) {
  if (rounds.empty()) return "";
  Table table(indent, {"TENSOR", "ROUND", "WAITS FOR", "SINCE"});
  for (const WaitingRound& waiting : rounds) {
    table.Add({waiting.tensor, absl::StrCat(waiting.round), waiting.For(),
               FormatSeconds(waiting.waited_s)});
  }
  return table.Text();
}

std::string PriorityText(scheduler::v1::Priority priority) {
  switch (priority) {
    case scheduler::v1::PRIORITY_LOW: return "low";
    case scheduler::v1::PRIORITY_HIGH: return "high";
    default: return "normal";
  }
}

// Returns "1.5 GiB of 8 GiB", "7 of any number".
std::string UseText(const std::string& has, uint64_t max, const std::string& max_text) {
  return absl::StrCat(has, max == 0 ? "" : absl::StrCat(" of ", max_text));
}

// Returns the quotas of the job, and what it uses of them; nothing if it has none.
std::string QuotaText(const StatusFacts& facts, const GetJobResponse& job) {
  const auto& quota = job.summary().quota();
  std::vector<std::string> parts;
  if (!quota.tenant().empty()) {
    parts.push_back(absl::StrCat("tenant '", Plain(quota.tenant()), "'"));
  }
  if (quota.weight() > 1) parts.push_back(absl::StrCat("weight ", quota.weight()));
  if (quota.priority() == scheduler::v1::PRIORITY_LOW ||
      quota.priority() == scheduler::v1::PRIORITY_HIGH) {
    parts.push_back(absl::StrCat("priority ", PriorityText(quota.priority())));
  }
  if (job.summary().members_max() != 0) {
    parts.push_back(absl::StrCat("at most ", Counted(job.summary().members_max(), "member")));
  }
  std::string text;
  if (!parts.empty()) absl::StrAppend(&text, "  rules: ", absl::StrJoin(parts, ", "), "\n");
  if (quota.memory_bytes_max() == 0 && quota.tensors_max() == 0) return text;
  for (const auto& [name, answer] : facts.aggregators) {
    for (const auto& status : answer.response.jobs()) {
      if (status.job_id() != job.summary().job_id()) continue;
      absl::StrAppend(&text, "  at ", Plain(name), ": ",
                      UseText(FormatBytes(status.memory_bytes()), quota.memory_bytes_max(),
                              FormatBytes(quota.memory_bytes_max())),
                      ", ",
                      quota.tensors_max() == 0
                          ? Counted(status.tensors_placed(), "tensor")
                          : absl::StrCat(status.tensors_placed(), " of ",
                                         Counted(quota.tensors_max(), "tensor")),
                      "\n");
    }
  }
  return text;
}

std::string TenantsText(const StatusFacts& facts) {
  std::string text;
  if (facts.listed.tenants_size() > 0) {
    text += "\ntenants\n";
    Table table("  ", {"NAME", "JOBS", "MEMBERS", "WEIGHT", "MEMORY", "TENSORS"});
    for (const auto& tenant : facts.listed.tenants()) {
      table.Add({Plain(tenant.name()),
                 UseText(absl::StrCat(tenant.job_count()), tenant.jobs_max(),
                         absl::StrCat(tenant.jobs_max())),
                 UseText(absl::StrCat(tenant.members_held()), tenant.members_max(),
                         absl::StrCat(tenant.members_max())),
                 absl::StrCat(tenant.weight()),
                 tenant.memory_bytes_max() == 0 ? "-" : FormatBytes(tenant.memory_bytes_max()),
                 tenant.tensors_max() == 0 ? "-" : absl::StrCat(tenant.tensors_max())});
    }
    text += table.Text();
  }
  if (facts.listed.waiting_size() > 0) text += "\nwaiting for room\n";
  for (const auto& join : facts.listed.waiting()) {
    absl::StrAppend(&text, "  ", Plain(join.text()), " (for ",
                    FormatSeconds(Seconds(join.waited())), ")\n");
  }
  return text;
}

// Returns "" for the usual dealing.
std::string DealingNote(const scheduler::v1::Dealing& dealing) {
  const talweg::Dealing known = rpc::FromProto(dealing);
  return known == talweg::Dealing{} ? "" : ", dealing " + talweg::DealingText(known);
}

// How often one node's contributions came last at the job's aggregators.
struct Lateness {
  uint64_t last_count = 0;
  double behind_s = 0;  // How long after those before them, over all of these.
};

// Returns who holds the others up, or "" if nobody does for most of the time.
std::string LatenessText(const StatusFacts& facts, const GetJobResponse& job) {
  constexpr double kShareMin = 0.75;  // Two equal nodes come last in half of the sums each.
  constexpr double kBehindMinS = 0.001;
  uint64_t sums = 0;
  std::map<uint32_t, Lateness> nodes;
  for (const auto& [name, answer] : facts.aggregators) {
    for (const auto& status : answer.response.jobs()) {
      if (status.job_id() != job.summary().job_id()) continue;
      sums += status.sums_known();
      for (const auto& member : status.members()) {
        Lateness& node = nodes[member.node_rank()];
        node.last_count += member.came_last();
        node.behind_s += member.came_last() * Seconds(member.behind());
      }
    }
  }
  for (const auto& [node, lateness] : nodes) {
    const double count = static_cast<double>(lateness.last_count);
    if (sums == 0 || count < kShareMin * static_cast<double>(sums)) continue;
    if (lateness.behind_s < kBehindMinS * count) continue;
    return absl::StrFormat(
        "  node %d holds the others up: its part came last in %.0f %% of the newest sums, %s after "
        "the one before\n",
        node, 100 * count / static_cast<double>(sums), FormatSeconds(lateness.behind_s / count));
  }
  return "";
}

std::string JobText(const StatusFacts& facts, const GetJobResponse& job) {
  const auto& summary = job.summary();
  std::string text = absl::StrFormat(
      "\njob '%s' (id %d): %s, epoch %d, %d of %d to %s, %s, %s%s\n", Plain(summary.name()),
      summary.job_id(), JobStateText(summary.state()), summary.epoch(), summary.member_count(),
      summary.spec().min_members(), Counted(summary.spec().max_members(), "member"),
      Counted(summary.rank_count(), "rank"),
      summary.spec().loss_policy() == scheduler::v1::LOSS_POLICY_CONTINUE ? "goes on after a loss"
                                                                          : "fails with a loss",
      DealingNote(summary.spec().dealing()));
  if (!summary.state_text().empty()) {
    absl::StrAppend(&text, "  ", Plain(summary.state_text()), "\n");
  }
  text += QuotaText(facts, job);
  const auto bases = RankBases(job.view());
  Table members("  ", {"NODE", "NAME", "RANKS", "STATE", "LEASE", "EPOCH", "ADMIN"});
  for (const auto& status : job.members()) {
    const auto& member = status.member();
    const auto base = bases.find(member.id().node_rank());
    members.Add(
        {absl::StrCat(member.id().node_rank()), member.name(),
         base == bases.end() ? absl::StrCat("(", member.rank_count(), ")")
                             : RankRange(base->second, member.rank_count()),
         absl::StrCat(MemberStateText(status), status.state_text().empty() ? "" : ": ",
                      status.state_text()),
         status.has_lease_remaining() ? FormatSeconds(Seconds(status.lease_remaining())) : "-",
         absl::StrCat(status.epoch_held()), member.admin_address()});
  }
  text += members.Text();
  text += LatenessText(facts, job);
  if (job.shares_size() > 0) {
    std::vector<std::string> shares;
    for (const auto& share : job.shares()) {
      shares.push_back(
          absl::StrFormat("%s %.1f %%", Plain(share.name()), share.share_of_bytes() * 100));
    }
    absl::StrAppend(&text, "  share of bytes: ", absl::StrJoin(shares, ", "), "\n");
  }
  for (const bool enters_next_view : {true, false}) {
    std::vector<std::string> names;
    for (const auto& spare : job.spare_aggregators()) {
      if (spare.enters_next_view() == enters_next_view) names.push_back(Plain(spare.name()));
    }
    if (names.empty()) continue;
    absl::StrAppend(&text, "  not used: ", absl::StrJoin(names, ", "),
                    enters_next_view ? " (registered after the job began; its next view has them)"
                                     : " (beside members; the links of the rest carry all)",
                    "\n");
  }
  if (job.quiesce_id() != 0) {
    std::set<uint32_t> nodes;
    for (const auto& id : job.quiesce_waits_for()) nodes.insert(id.node_rank());
    absl::StrAppend(&text, "  members change; waits for ", JoinNumbers(nodes, "node"), "\n");
  }
  for (const auto& complaint : job.complaints()) {
    absl::StrAppend(&text, "  node ", complaint.reporter().node_rank(), " cannot reach ",
                    Plain(complaint.about()), " since ", FormatSeconds(Seconds(complaint.age())),
                    ": ", Plain(complaint.text()), "\n");
  }
  for (const AgentAnswer& answer : facts.agents) {
    if (answer.job_id != summary.job_id() || answer.error.empty()) continue;
    absl::StrAppend(&text, "  agent of node ", answer.node_rank,
                    " did not answer: ", Plain(answer.error), OfOwnHost(answer.address), "\n");
  }
  text += RoundsText(WaitingRounds(facts, job), "  ");
  return text;
}

std::string PoolText(const StatusFacts& facts) {
  if (facts.pool.empty()) return "\nno aggregators\n";
  std::string text = "\naggregators\n";
  Table table("  ", {"NAME", "STATE", "WEIGHT", "LEASE", "JOBS", "RECEIVED", "SENT", "SUMMED",
                     "REFUSED", "MEMORY", "KERNEL", "ADDRESS"});
  for (const auto& status : facts.pool) {
    const auto& aggregator = status.aggregator();
    const auto answer = facts.aggregators.find(aggregator.name());
    const bool known = answer != facts.aggregators.end() && answer->second.error.empty();
    std::vector<std::string> row = {
        aggregator.name(), AggregatorStateText(status), absl::StrCat(aggregator.weight()),
        status.has_lease_remaining() ? FormatSeconds(Seconds(status.lease_remaining())) : "-",
        absl::StrCat(status.job_ids_size())};
    if (known) {
      const auto& response = answer->second.response;
      uint64_t refused = 0;
      for (const auto& [reason, count] : response.refused_by_reason()) refused += count;
      for (const std::string& cell :
           {FormatBytes(response.bytes_received()), FormatBytes(response.bytes_sent()),
            FormatBytes(response.bytes_summed()), absl::StrCat(refused),
            FormatBytes(response.memory_bytes()), response.kernel()}) {
        row.push_back(cell);
      }
    } else {
      row.insert(row.end(), 6, "-");
    }
    row.push_back(aggregator.data_address());
    table.Add(row);
  }
  text += table.Text();
  for (const auto& [name, answer] : facts.aggregators) {
    if (answer.error.empty()) continue;
    absl::StrAppend(&text, "  aggregator ", Plain(name), " did not answer: ", Plain(answer.error),
                    OfOwnHost(answer.address), "\n");
  }
  return text;
}

std::string Json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(message, &json, options).ok()) return "null";
  return json;
}

template <typename Response>
std::string AnswerJson(const Answer<Response>& answer) {
  if (!answer.error.empty()) return absl::StrCat("{\"error\":", JsonString(answer.error), "}");
  return Json(answer.response);
}

std::string RoundJson(const WaitingRound& waiting) {
  std::vector<std::string> reasons;
  for (const std::string& reason : waiting.reasons) reasons.push_back(JsonString(reason));
  return absl::StrCat("{\"tensor\":", JsonString(waiting.tensor), ",\"round\":", waiting.round,
                      ",\"ranks\":[", absl::StrJoin(waiting.ranks, ","), "],\"nodes\":[",
                      absl::StrJoin(waiting.nodes, ","), "],\"reasons\":[",
                      absl::StrJoin(reasons, ","),
                      "],\"waited_s\":", absl::StrFormat("%.3f", waiting.waited_s), "}");
}

}  // namespace

std::string WaitingRound::For() const {
  std::vector<std::string> parts;
  if (!ranks.empty()) parts.push_back(JoinNumbers(ranks, "rank"));
  if (!nodes.empty()) parts.push_back(JoinNumbers(nodes, "node"));
  parts.insert(parts.end(), reasons.begin(), reasons.end());
  return parts.empty() ? "results under way" : absl::StrJoin(parts, ", ");
}

std::vector<WaitingRound> WaitingRounds(const StatusFacts& facts, const GetJobResponse& job) {
  Rounds rounds;
  std::map<uint32_t, uint32_t> node_of_rank;
  const auto bases = RankBases(job.view());
  for (const AgentAnswer& answer : facts.agents) {
    if (answer.job_id != job.summary().job_id() || !answer.error.empty()) continue;
    const auto base = bases.find(answer.node_rank);
    AddAgentRounds(answer.response, base == bases.end() ? 0 : base->second, rounds, node_of_rank);
  }
  for (const auto& [name, answer] : facts.aggregators) {
    for (const auto& status : answer.response.jobs()) {
      if (status.job_id() != job.summary().job_id()) continue;
      for (const auto& open : status.open_rounds()) {
        WaitingRound& waiting = rounds.Of(open.tensor(), open.round(), Seconds(open.waited()));
        waiting.nodes.insert(open.missing_node_ranks().begin(), open.missing_node_ranks().end());
      }
    }
  }
  return rounds.Take(node_of_rank);
}

std::string StatusText(const StatusFacts& facts) {
  const auto& scheduler = facts.scheduler;
  std::string text = absl::StrFormat(
      "scheduler %s: up %s, store %s, lease %s, version %d.%d (%s), pid %d\n",
      facts.scheduler_address, FormatSeconds(Seconds(scheduler.uptime())), Plain(scheduler.store()),
      FormatSeconds(Seconds(scheduler.lease_duration())), scheduler.version().major(),
      scheduler.version().minor(), Plain(scheduler.version().build()), scheduler.pid());
  if (facts.jobs.empty()) text += "\nno jobs\n";
  for (const GetJobResponse& job : facts.jobs) text += JobText(facts, job);
  return text + TenantsText(facts) + PoolText(facts);
}

std::string StatusJson(const StatusFacts& facts) {
  std::vector<std::string> jobs;
  for (const GetJobResponse& job : facts.jobs) {
    std::vector<std::string> agents;
    for (const AgentAnswer& answer : facts.agents) {
      if (answer.job_id != job.summary().job_id()) continue;
      agents.push_back(absl::StrCat("\"", answer.node_rank, "\":", AnswerJson(answer)));
    }
    std::vector<std::string> rounds;
    for (const WaitingRound& waiting : WaitingRounds(facts, job)) {
      rounds.push_back(RoundJson(waiting));
    }
    jobs.push_back(absl::StrCat("{\"job\":", Json(job), ",\"agents\":{", absl::StrJoin(agents, ","),
                                "},\"waiting_rounds\":[", absl::StrJoin(rounds, ","), "]}"));
  }
  std::vector<std::string> pool;
  for (const auto& status : facts.pool) pool.push_back(Json(status));
  std::vector<std::string> aggregators;
  for (const auto& [name, answer] : facts.aggregators) {
    aggregators.push_back(absl::StrCat(JsonString(name), ":", AnswerJson(answer)));
  }
  std::vector<std::string> waiting;
  for (const auto& join : facts.listed.waiting()) waiting.push_back(Json(join));
  std::vector<std::string> tenants;
  for (const auto& tenant : facts.listed.tenants()) tenants.push_back(Json(tenant));
  return absl::StrCat("{\"scheduler\":", Json(facts.scheduler), ",\"jobs\":[",
                      absl::StrJoin(jobs, ","), "],\"waiting\":[", absl::StrJoin(waiting, ","),
                      "],\"tenants\":[", absl::StrJoin(tenants, ","), "],\"pool\":[",
                      absl::StrJoin(pool, ","), "],\"aggregators\":{",
                      absl::StrJoin(aggregators, ","), "}}\n");
}

std::string AgentText(const std::string& address, const agent::v1::GetStatusResponse& agent) {
  std::string text = absl::StrFormat(
      "agent %s: node %d of job '%s', %s, %s, %s done, %s pushed, %s sent, %s "
      "received, pid %d\n",
      address, agent.id().node_rank(), Plain(agent.job_name()), Plain(agent.state()),
      Counted(agent.tensor_count(), "tensor"), Counted(agent.rounds_done(), "round"),
      FormatBytes(agent.bytes_pushed()), FormatBytes(agent.bytes_sent()),
      FormatBytes(agent.bytes_received()), agent.pid());
  Table ranks("  ", {"RANK", "LOCAL", "PID", "STATE", "ARENA"});
  for (const auto& rank : agent.ranks()) {
    ranks.Add({absl::StrCat(rank.rank()), absl::StrCat(rank.local_rank()), absl::StrCat(rank.pid()),
               !rank.ended().empty() ? rank.ended()
               : rank.attached()     ? "attached"
                                     : "awaited",
               FormatBytes(rank.arena_bytes())});
  }
  text += ranks.Text();
  Rounds rounds;
  std::map<uint32_t, uint32_t> node_of_rank;
  AddAgentRounds(agent,
                 agent.ranks_size() == 0 ? 0 : agent.ranks(0).rank() - agent.ranks(0).local_rank(),
                 rounds, node_of_rank);
  return text + RoundsText(rounds.Take(node_of_rank), "  ");
}

std::string AgentJson(const agent::v1::GetStatusResponse& agent) {
  return absl::StrCat(Json(agent), "\n");
}

}  // namespace talweg::cli
