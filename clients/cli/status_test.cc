// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/status.h"

#include <google/protobuf/text_format.h>
#include <google/protobuf/util/json_util.h>

#include <catch2/catch.hpp>
#include <google/protobuf/struct.pb.h>

#include "clients/cli/table.h"

namespace talweg::cli {
namespace {

using Catch::Matchers::Contains;

template <typename Message>
Message Parse(const std::string& text) {
  Message message;
  REQUIRE(google::protobuf::TextFormat::ParseFromString(text, &message));
  return message;
}

StatusFacts TwoNodes() {
  StatusFacts facts;
  facts.scheduler_address = "127.0.0.1:7447";
  facts.scheduler = Parse<scheduler::v1::GetSchedulerResponse>(R"pb(
    version { major: 1 build: "0.1.0" }
    uptime { seconds: 90 }
    store: "memory"
    lease_duration { seconds: 10 }
    pid: 12)pb");
  facts.jobs.push_back(Parse<scheduler::v1::GetJobResponse>(R"pb(
    summary {
      job_id: 3
      name: "digits\n"
      state: JOB_STATE_RUNNING
      epoch: 2
      member_count: 2
      rank_count: 3
      spec { min_members: 2 max_members: 2 loss_policy: LOSS_POLICY_FAIL_JOB }
    }
    members {
      member {
        id { node_rank: 0 incarnation: 10 }
        rank_count: 2
        name: "host-a"
      }
      state: MEMBER_STATE_JOINED
      attached: true
      lease_remaining { seconds: 9 }
      epoch_held: 2
    }
    members {
      member {
        id { node_rank: 1 incarnation: 11 }
        rank_count: 1
        name: "host-b"
      }
      state: MEMBER_STATE_LOST
      state_text: "its stream broke"
    }
    view {
      job_id: 3
      epoch: 2
      members {
        id { node_rank: 0 }
        rank_count: 2
      }
      members {
        id { node_rank: 1 }
        rank_count: 1
      }
    }
    shares { name: "a" share_of_bytes: 0.75 }
    shares { name: "b" share_of_bytes: 0.25 }
    spare_aggregators { name: "c" enters_next_view: true }
    spare_aggregators { name: "d" enters_next_view: true }
    spare_aggregators { name: "e" })pb"));
  facts.pool.push_back(Parse<scheduler::v1::AggregatorStatus>(R"pb(
    aggregator { name: "a" weight: 3 }
    state: STATE_LIVE
    attached: true
    job_ids: 3)pb"));
  facts.pool.push_back(Parse<scheduler::v1::AggregatorStatus>(R"pb(
    aggregator { name: "b" weight: 1 }
    state: STATE_LIVE)pb"));
  facts.aggregators["a"].response = Parse<aggregator::v1::GetStatusResponse>(R"pb(
    bytes_received: 2097152
    kernel: "avx2"
    refused_by_reason { key: "wrong_epoch" value: 4 }
    jobs {
      job_id: 3
      open_rounds {
        tensor: "w1"
        round: 7
        missing_node_ranks: 1
        waited { seconds: 5 }
      }
    }
    jobs {
      job_id: 9
      open_rounds { tensor: "other" round: 1 missing_node_ranks: 0 }
    })pb");
  facts.aggregators["b"].error = "connection refused";
  AgentAnswer first;
  first.job_id = 3;
  first.node_rank = 0;
  first.response = Parse<agent::v1::GetStatusResponse>(R"pb(
    id { node_rank: 0 }
    open_rounds {
      tensor: "w1"
      round: 7
      waits_for: WAITS_FOR_NODES
      node_ranks: 1
      waited { seconds: 6 }
    }
    open_rounds {
      tensor: "w2"
      round: 7
      waits_for: WAITS_FOR_LOCAL_RANKS
      local_ranks: 1
      waited { nanos: 500000000 }
    }
    open_rounds { tensor: "w3" round: 6 waits_for: WAITS_FOR_CREDIT })pb");
  facts.agents.push_back(first);
  AgentAnswer second;
  second.job_id = 3;
  second.node_rank = 1;
  second.response = Parse<agent::v1::GetStatusResponse>(R"pb(
    id { node_rank: 1 }
    open_rounds { tensor: "w1" round: 7 waits_for: WAITS_FOR_LOCAL_RANKS local_ranks: 0 })pb");
  facts.agents.push_back(second);
  return facts;
}

TEST_CASE("status: it combines all sides to say which ranks everybody waits for", "[cli]") {
  const StatusFacts facts = TwoNodes();
  const std::vector<WaitingRound> rounds = WaitingRounds(facts, facts.jobs[0]);
  REQUIRE(rounds.size() == 3);
  CHECK(rounds[0].tensor == "w1");
  // Node 1 has one rank, so the text names the rank and not the node.
  CHECK(rounds[0].For() == "rank 2");
  CHECK(rounds[0].waited_s == 6);
  CHECK(rounds[1].tensor == "w2");
  CHECK(rounds[1].For() == "rank 1");
  CHECK(rounds[2].For() == "credit at its owners");
}

TEST_CASE("status: a node that does not answer is awaited as a node", "[cli]") {
  StatusFacts facts = TwoNodes();
  facts.agents[1].error = "deadline exceeded";
  CHECK(WaitingRounds(facts, facts.jobs[0])[0].For() == "node 1");
  CHECK_THAT(StatusText(facts), Contains("agent of node 1 did not answer: deadline exceeded\n"));
}

TEST_CASE("status: who serves its own host alone is told how others can ask", "[cli]") {
  StatusFacts facts = TwoNodes();
  facts.agents[1].error = "connection refused";
  for (const std::string address : {"127.0.0.1:4711", "[::1]:4711"}) {
    facts.agents[1].address = address;
    CHECK_THAT(StatusText(facts),
               Contains("agent of node 1 did not answer: connection refused (" + address +
                        " serves its own host alone: ask there, or start it with "
                        "--admin_listen=0.0.0.0:0)\n"));
  }
  facts.agents[1].address = "10.0.0.1:4711";
  CHECK_THAT(StatusText(facts), Contains("did not answer: connection refused\n"));
}

TEST_CASE("status: the text has the facts", "[cli]") {
  const std::string text = StatusText(TwoNodes());
  CHECK_THAT(text, Contains("scheduler 127.0.0.1:7447: up 90.0 s, store memory, lease 10.0 s"));
  CHECK_THAT(text,
             Contains("job 'digits?' (id 3): running, epoch 2, 2 of 2 to 2 members, 3 ranks"));
  CHECK_THAT(text, Contains("host-a") && Contains("0-1") && Contains("9.0 s"));
  CHECK_THAT(text, Contains("lost: its stream broke"));
  CHECK_THAT(text, Contains("share of bytes: a 75.0 %, b 25.0 %"));
  CHECK_THAT(text, Contains("not used: c, d (registered after the job began"));
  CHECK_THAT(text, Contains("not used: e (beside members"));
  CHECK_THAT(text, Contains("w1      7      rank 2                6.0 s"));
  CHECK_THAT(text, Contains("2 MiB") && Contains("avx2"));
  CHECK_THAT(text, Contains("aggregator b did not answer: connection refused"));
  CHECK_THAT(text, !Contains("other"));
}

TEST_CASE("status: a node whose part comes last is named", "[cli]") {
  StatusFacts facts = TwoNodes();
  const auto told = [&facts](const std::string& aggregator, const std::string& text) {
    auto* const jobs = facts.aggregators[aggregator].response.mutable_jobs();
    jobs->Clear();
    *jobs->Add() = Parse<aggregator::v1::JobStatus>("job_id: 3 " + text);
  };
  const std::string slow = R"pb(
    sums_known: 100
    members {
      node_rank: 0
      came_last: 4
      behind { nanos: 1000000 }
    }
    members {
      node_rank: 1
      came_last: 96
      behind { nanos: 41000000 }
    })pb";
  told("a", slow);
  told("b", slow);
  CHECK_THAT(StatusText(facts),
             Contains("node 1 holds the others up: its part came last in 96 % of the newest sums, "
                      "41.0 ms after the one before\n"));
  // What one aggregator sees is not all.
  told("b", "sums_known: 900 members { node_rank: 0 came_last: 900 behind { nanos: 900 } }");
  CHECK_THAT(StatusText(facts), !Contains("holds the others up"));
}

TEST_CASE("status: one is not several", "[cli]") {
  StatusFacts facts = TwoNodes();
  auto* const summary = facts.jobs[0].mutable_summary();
  summary->set_rank_count(1);
  summary->set_members_max(1);
  summary->mutable_spec()->set_max_members(1);
  const std::string text = StatusText(facts);
  CHECK_THAT(text, Contains(" to 1 member, 1 rank, ") && Contains("at most 1 member\n"));
  agent::v1::GetStatusResponse agent;
  agent.set_tensor_count(1);
  agent.set_rounds_done(1);
  CHECK_THAT(AgentText("unix:/a", agent), Contains("1 tensor, 1 round done, "));
}

TEST_CASE("status: a member that makes no steps yet is marked", "[cli]") {
  StatusFacts facts = TwoNodes();
  CHECK_THAT(StatusText(facts), Contains("joined") && !Contains("standby"));
  facts.jobs[0].mutable_members(0)->mutable_member()->set_standby(true);
  CHECK_THAT(StatusText(facts), Contains("standby") && !Contains("joined"));
}

TEST_CASE("status: a dealing that is not the usual one is shown", "[cli]") {
  StatusFacts facts = TwoNodes();
  auto* const dealing = facts.jobs[0].mutable_summary()->mutable_spec()->mutable_dealing();
  dealing->set_rule(scheduler::v1::DEALING_RULE_STRIPED);
  CHECK_THAT(StatusText(facts), !Contains("dealing"));
  dealing->set_rule(scheduler::v1::DEALING_RULE_WEIGHTED);
  dealing->set_constant(101);
  CHECK_THAT(StatusText(facts), Contains("fails with a loss, dealing weighted:101\n"));
}

TEST_CASE("status: rules, their use, and jobs that wait for room are shown", "[cli]") {
  StatusFacts facts = TwoNodes();
  CHECK_THAT(StatusText(facts), !Contains("rules:") && !Contains("tenants"));
  *facts.jobs[0].mutable_summary() = Parse<scheduler::v1::JobSummary>(R"pb(
    job_id: 3
    name: "digits"
    members_max: 4
    quota {
      tenant: "vision"
      priority: PRIORITY_HIGH
      weight: 3
      tenant_weight: 2
      memory_bytes_max: 8388608
    })pb");
  auto* job = facts.aggregators["a"].response.mutable_jobs(0);
  job->set_memory_bytes(1 << 20);
  job->set_tensors_placed(7);
  facts.listed = Parse<scheduler::v1::ListJobsResponse>(R"pb(
    waiting {
      job_name: "c"
      text: "job 'c' waits: tenant 'vision' has 2 jobs"
      waited { seconds: 12 }
    }
    tenants { name: "vision" job_count: 2 jobs_max: 2 members_held: 5 weight: 2 })pb");
  const std::string text = StatusText(facts);
  CHECK_THAT(text, Contains("rules: tenant 'vision', weight 3, priority high, at most 4 members"));
  CHECK_THAT(text, Contains("at a: 1 MiB of 8 MiB, 7 tensors"));
  CHECK_THAT(text, Contains("vision  2 of 2  5        2       -       -"));
  CHECK_THAT(text, Contains("job 'c' waits: tenant 'vision' has 2 jobs (for 12.0 s)"));
  google::protobuf::Struct parsed;
  REQUIRE(google::protobuf::util::JsonStringToMessage(StatusJson(facts), &parsed).ok());
  CHECK(parsed.fields().at("waiting").list_value().values_size() == 1);
  CHECK(parsed.fields().at("tenants").list_value().values_size() == 1);
}

TEST_CASE("status: the JSON is JSON and has the facts", "[cli]") {
  google::protobuf::Struct parsed;
  REQUIRE(google::protobuf::util::JsonStringToMessage(StatusJson(TwoNodes()), &parsed).ok());
  const auto& job = parsed.fields().at("jobs").list_value().values(0).struct_value().fields();
  CHECK(job.at("job")
            .struct_value()
            .fields()
            .at("summary")
            .struct_value()
            .fields()
            .at("name")
            .string_value() == "digits\n");
  CHECK(job.at("waiting_rounds")
            .list_value()
            .values(0)
            .struct_value()
            .fields()
            .at("ranks")
            .list_value()
            .values(0)
            .number_value() == 2);
  CHECK(job.at("agents").struct_value().fields().count("1") == 1);
  CHECK(parsed.fields()
            .at("aggregators")
            .struct_value()
            .fields()
            .at("b")
            .struct_value()
            .fields()
            .at("error")
            .string_value() == "connection refused");
}

TEST_CASE("status: one agent alone is shown", "[cli]") {
  const auto agent = Parse<agent::v1::GetStatusResponse>(R"pb(
    job_name: "j"
    state: "active"
    rounds_done: 5
    ranks { rank: 4 local_rank: 0 pid: 77 attached: true }
    ranks { rank: 5 local_rank: 1 }
    open_rounds { tensor: "w" round: 2 waits_for: WAITS_FOR_LOCAL_RANKS local_ranks: 1 })pb");
  const std::string text = AgentText("127.0.0.1:9", agent);
  CHECK_THAT(text, Contains("agent 127.0.0.1:9: node 0 of job 'j', active"));
  CHECK_THAT(text, Contains("attached") && Contains("awaited") && Contains("rank 5"));
}

TEST_CASE("Table: it counts columns in characters, not bytes", "[cli]") {
  Table table("> ", {"A", "B"});
  table.Add({"\xc3\xa4\xc3\xb6", "x"});
  table.Add({"abc\n", "y"});
  CHECK(table.Text() == "> A     B\n> \xc3\xa4\xc3\xb6    x\n> abc?  y\n");
  CHECK(Plain("a\u009b31m\u00a3") == "a?31m\u00a3");
}

}  // namespace
}  // namespace talweg::cli
