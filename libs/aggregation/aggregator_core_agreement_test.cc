// SPDX-License-Identifier: Apache-2.0
#include <catch2/catch.hpp>

#include "libs/aggregation/aggregator_core_fixture.h"

// Declarations (docs/protocol.md, section 4).
namespace talweg::aggregation {
namespace {

using wire::DeclaredStatus;

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("AggregatorCore: equal declarations are agreed, each member with its own slots",
          "[aggregation]") {
  JobFixture f;
  f.Start();
  f.SayDeclare(0, f.DeclareOf("w", 0));
  f.SayDeclare(1, f.DeclareOf("w", 1));
  const auto first = f.Sent<wire::Declared>(Conn(0));
  const auto second = f.Sent<wire::Declared>(Conn(1));
  REQUIRE(first.size() == 1);
  REQUIRE(second.size() == 1);
  CHECK(first[0].status == DeclaredStatus::kOk);
  CHECK(first[0].held == Round{0});
  CHECK_FALSE(first[0].slot == second[0].slot);
  const auto memory = f.Seen<AllocateMemory>();
  REQUIRE(memory.size() == 3);  // The result, and slots for two.
  CHECK_FALSE(memory[0].member.has_value());
  CHECK(memory[1].member == f.view.members[0].id);
  CHECK(memory[1].bytes == 64);
  CHECK(f.budget.used_bytes() == 3 * 64);
}

TEST_CASE("AggregatorCore: declarations are answered when every member has reported",
          "[aggregation]") {
  JobFixture f;
  f.PublishView();
  f.SayHello(0);
  f.SayHello(1);
  f.SayDeclare(0, f.DeclareOf("w", 0));
  f.SayReport(0);
  CHECK(f.Sent<wire::Declared>(Conn(0)).empty());
  f.SayReport(1);
  CHECK(f.Sent<wire::Declared>(Conn(0)).size() == 1);
  f.SayDeclare(1, f.DeclareOf("w", 1));
  CHECK(f.Sent<wire::Declared>(Conn(1)).size() == 1);  // From now on the answer comes at once.
}

TEST_CASE("AggregatorCore: a disagreement poisons the tensor and names both sides to everybody",
          "[aggregation]") {
  JobFixture f({1, 1, 1});
  f.Start();
  f.SayDeclare(0, f.DeclareOf("w", 0, 100));
  f.SayDeclare(1, f.DeclareOf("w", 1, 200));
  const auto failed = f.Sent<wire::Failed>(Conn(0));
  REQUIRE(failed.size() == 1);
  CHECK(failed[0].code == wire::FailedCode::kMismatch);
  CHECK(failed[0].round == Round{0});
  CHECK(Contains(failed[0].text,
                 "tensor 'w': rank 0 declared f32[100] sum, rank 10 declares "
                 "f32[200] sum"));
  REQUIRE(f.Sent<wire::Declared>(Conn(1)).size() == 1);
  CHECK(f.Sent<wire::Declared>(Conn(1))[0].status == DeclaredStatus::kMismatch);
  CHECK(f.Sent<wire::Failed>(Conn(1)).size() == 1);
  // Later members hear the same, even if they agree with the first.
  f.SayDeclare(2, f.DeclareOf("w", 2, 100));
  REQUIRE(f.Sent<wire::Failed>(Conn(2)).size() == 1);
  CHECK(f.Sent<wire::Failed>(Conn(2))[0].text == failed[0].text);
  f.Contribute(0, "w", 1);
  CHECK(f.RefusedCount(wire::RefusedReason::kPoisoned) == 1);
  // Nothing undoes the failure, not even a new view.
  f.NextView();
  f.SayFence(0);
  f.SayDeclare(0, f.DeclareOf("w", 0, 100));
  CHECK(f.Sent<wire::Failed>(Conn(0)).size() == 2);
  CHECK(f.job.counters().tensors_poisoned == 1);
}

TEST_CASE("AggregatorCore: every property is compared", "[aggregation]") {
  struct Case {
    wire::Declare other;
    std::string says;
  };
  JobFixture f;
  f.Start();
  const std::vector<Case> cases = {
      {f.DeclareOf("a", 1, 4, DType::kF64), "f64[4] sum"},
      {f.DeclareOf("b", 1, 5), "f32[5] sum"},
      {f.DeclareOf("c", 1, 4, DType::kF32, Op::kMax), "f32[4] max"},
  };
  for (const Case& one : cases) {
    f.SayDeclare(0, f.DeclareOf(one.other.name, 0));
    f.SayDeclare(1, one.other);
    REQUIRE_FALSE(f.Sent<wire::Failed>(Conn(0)).empty());
    CHECK(Contains(f.Sent<wire::Failed>(Conn(0)).back().text, one.says));
  }
  f.SayDeclare(0, f.DeclareOf("d", 0, 4, DType::kF32, Op::kCopy, 1));
  f.SayDeclare(1, f.DeclareOf("d", 1, 4, DType::kF32, Op::kCopy, 2));
  CHECK(Contains(f.Sent<wire::Failed>(Conn(0)).back().text, "broadcast from rank 2"));
  CHECK(f.job.counters().tensors_poisoned == 4);
}

TEST_CASE("AggregatorCore: a member that contradicts itself poisons as another would",
          "[aggregation]") {
  JobFixture f;
  f.StartWith("w");
  wire::Declare other = f.DeclareOf("w", 0, 7);
  other.by_rank = 1;
  f.SayDeclare(0, other);
  REQUIRE(f.Sent<wire::Failed>(Conn(1)).size() == 1);
  CHECK(Contains(f.Sent<wire::Failed>(Conn(1))[0].text, "rank 0 declared f32[4] sum, rank 1"));
  // Contributions may be on their way: the memory goes when the next view has fenced them all.
  CHECK(f.Seen<ReleaseMemory>().empty());
  CHECK(f.allocated.size() == 3);
  f.NextView();
  for (const uint32_t node : {0u, 1u}) {
    CHECK(f.allocated.size() == 3);
    f.SayFence(node);
    f.SayReport(node);
  }
  CHECK(f.allocated.empty());
  CHECK(f.budget.used_bytes() == 0);
}

TEST_CASE(
    "AggregatorCore: a declaration that nobody can make fails for all, or for its sender alone",
    "[aggregation]") {
  JobFixture f;
  f.Start();
  // A false key names no tensor that others could wait for.
  wire::Declare false_key = f.DeclareOf("w", 0);
  false_key.key = KeyOf("v");
  f.SayDeclare(0, false_key);
  REQUIRE(f.Sent<wire::Declared>(Conn(0)).size() == 1);
  CHECK(f.Sent<wire::Declared>(Conn(0))[0].status == DeclaredStatus::kInvalid);
  CHECK(f.job.tensors().empty());
  f.SayDeclare(0, f.DeclareOf("", 0));
  CHECK(f.job.tensors().empty());

  std::vector<wire::Declare> bad = {
      f.DeclareOf("average", 0, 4, DType::kI32, Op::kAverage),
      f.DeclareOf("dtype", 0, 4, static_cast<DType>(99)),
      f.DeclareOf("op", 0, 4, DType::kF32, static_cast<Op>(99)),
      f.DeclareOf("huge", 0, UINT64_MAX),
      f.DeclareOf("slices", 0, 16 * kGiB / 4 + 1),
      f.DeclareOf("root", 0, 4, DType::kF32, Op::kCopy, 4),
  };
  bad.push_back(f.DeclareOf("newer", 0));
  bad.back().collective.encoding = static_cast<Encoding>(kEncodings.size());
  for (const wire::Declare& declare : bad) {
    f.effects_seen.clear();
    f.SayDeclare(0, declare);
    INFO(declare.name);
    REQUIRE(f.Sent<wire::Declared>(Conn(0)).size() == 1);
    CHECK_FALSE(f.Sent<wire::Declared>(Conn(0))[0].status == DeclaredStatus::kOk);
    // The others do not wait, whatever they declare.
    f.SayDeclare(1, f.DeclareOf(declare.name, 1));
    REQUIRE(f.Sent<wire::Failed>(Conn(1)).size() == 1);
    CHECK(Contains(f.Sent<wire::Failed>(Conn(1))[0].text, "'" + declare.name + "'"));
  }
  CHECK(f.job.counters().declares_invalid == 9);
  CHECK(Contains(f.Sent<wire::Failed>(Conn(1))[0].text,
                 "there is no encoding " + std::to_string(kEncodings.size())));
  CHECK(f.budget.used_bytes() == 0);
}

TEST_CASE("AggregatorCore: a tensor past the budget is refused with the figures, to every member",
          "[aggregation]") {
  JobFixture f({2, 2}, /*budget_bytes=*/1000);
  f.Start();
  f.SayDeclare(0, f.DeclareOf("fits", 0, 80));  // 3 x 320 bytes.
  CHECK(f.Sent<wire::Declared>(Conn(0)).back().status == DeclaredStatus::kOk);
  f.SayDeclare(0, f.DeclareOf("large", 0, 80));
  const wire::Declared declared = f.Sent<wire::Declared>(Conn(0)).back();
  CHECK(declared.status == DeclaredStatus::kOverBudget);
  CHECK(Contains(declared.text, "needs 960 bytes"));
  CHECK(Contains(declared.text, "960 bytes of its 1000 bytes are taken"));
  f.SayDeclare(1, f.DeclareOf("large", 1, 80));
  REQUIRE(f.Sent<wire::Failed>(Conn(1)).size() == 1);
  CHECK(f.Sent<wire::Failed>(Conn(1))[0].code == wire::FailedCode::kOverBudget);
  CHECK(f.budget.used_bytes() == 960);
}

TEST_CASE("AggregatorCore: a job's own limit is kept beside the aggregator's", "[aggregation]") {
  JobFixture f;
  f.job.SetQuota({.limit = {.memory_bytes_max = 500}}, nullptr);
  f.Start();
  f.SayDeclare(0, f.DeclareOf("large", 0, 80));
  const std::string text = f.Sent<wire::Declared>(Conn(0)).back().text;
  CHECK(Contains(text, "job 'job' has 0 bytes of the memory_bytes_max=500 bytes that it may have"));
  CHECK(Contains(text, "raise it for that job in the scheduler's quotas_file"));
}

TEST_CASE("AggregatorCore: a tensor past tensors_max is refused at all members", "[aggregation]") {
  JobFixture f;
  f.job.SetQuota({.limit = {.tensors_max = 1}}, nullptr);
  f.Start();
  f.SayDeclare(0, f.DeclareOf("a", 0));
  f.SayDeclare(0, f.DeclareOf("b", 0));
  const wire::Declared declared = f.Sent<wire::Declared>(Conn(0)).back();
  CHECK(declared.status == DeclaredStatus::kOverBudget);
  CHECK(Contains(declared.text,
                 "job 'job' has 1 of the tensors_max=1 tensors that it may have there"));
  // A later member does not wait for the first, whatever the rules are then.
  f.job.SetQuota({}, nullptr);
  f.SayDeclare(1, f.DeclareOf("b", 1));
  REQUIRE(f.Sent<wire::Failed>(Conn(1)).size() == 1);
  CHECK(f.Sent<wire::Failed>(Conn(1))[0].code == wire::FailedCode::kOverBudget);
  CHECK(f.job.place().used_tensors() == 1);
}

TEST_CASE("AggregatorCore: jobs of a tenant share what it may place", "[aggregation]") {
  const auto tenant = std::make_shared<PlaceBudget>(view::PlaceLimit{.memory_bytes_max = 1000});
  const view::JobQuota quota = {.tenant = "t", .tenant_limit = tenant->limit()};
  JobFixture first;
  first.job.SetQuota(quota, tenant);
  first.Start();
  first.SayDeclare(0, first.DeclareOf("w", 0, 80));  // 3 x 320 bytes.
  CHECK(tenant->used_bytes() == 960);
  {
    JobFixture second;
    second.job.SetQuota(quota, tenant);
    second.Start();
    second.SayDeclare(0, second.DeclareOf("v", 0, 80));
    CHECK(Contains(second.Sent<wire::Declared>(Conn(0)).back().text,
                   "tenant 't' has 960 bytes of the memory_bytes_max=1000 bytes"));
    // From now on the job belongs to another tenant.
    const auto other = std::make_shared<PlaceBudget>();
    first.job.SetQuota({.tenant = "u"}, other);
    CHECK(tenant->used_bytes() == 0);
    CHECK(other->used_bytes() == 960);
    second.SayDeclare(0, second.DeclareOf("u", 0, 80));
    CHECK(second.Sent<wire::Declared>(Conn(0)).back().status == DeclaredStatus::kOk);
    CHECK(tenant->used_bytes() == 960);
    CHECK(tenant->used_tensors() == 1);
  }
  CHECK(tenant->used_bytes() == 0);
  CHECK(tenant->used_tensors() == 0);
}

TEST_CASE("AggregatorCore: a tensor that is placed stays when its limit shrinks, also over a view",
          "[aggregation]") {
  JobFixture f({1, 1, 1});
  f.StartWith("w", 80);
  f.job.SetQuota({.limit = {.memory_bytes_max = 1, .tensors_max = 1}}, nullptr);
  f.NextView({2});
  f.effects_seen.clear();
  for (const uint32_t node : {0u, 1u}) {
    f.SayFence(node);
    f.SayDeclare(node, f.DeclareOf("w", node, 80));
  }
  CHECK(f.Sent<wire::Failed>(Conn(0)).empty());
  CHECK(f.job.place().used_bytes() == 3 * 320);
  CHECK(f.job.place().used_tensors() == 1);
}

TEST_CASE("AggregatorCore: memory that the system does not give poisons the tensor",
          "[aggregation]") {
  JobFixture f;
  f.Start();
  f.allocations_fail = true;
  f.SayDeclare(0, f.DeclareOf("w", 0));
  REQUIRE(f.Sent<wire::Declared>(Conn(0)).size() == 1);
  CHECK(f.Sent<wire::Declared>(Conn(0))[0].status == DeclaredStatus::kOverBudget);
  CHECK(Contains(f.Sent<wire::Declared>(Conn(0))[0].text, "mmap says no"));
}

TEST_CASE("AggregatorCore: a job has no more names of tensors than it may", "[aggregation]") {
  JobFixture f({2, 2}, kGiB, {.tensors_max = 1});
  f.Start();
  f.SayDeclare(0, f.DeclareOf("a", 0));
  f.SayDeclare(0, f.DeclareOf("b", 0));
  CHECK(f.Sent<wire::Declared>(Conn(0)).back().status == DeclaredStatus::kOverBudget);
  CHECK(f.job.tensors().size() == 1);
}

TEST_CASE(
    "AggregatorCore: slots stay over a view when their size stays, but only those of survivors",
    "[aggregation]") {
  JobFixture f({1, 1, 1});
  f.StartWith("w", 1000);
  const auto before = f.allocated;
  REQUIRE(before.size() == 4);
  f.NextView({2});
  f.effects_seen.clear();
  for (const uint32_t node : {0u, 1u}) {
    f.SayFence(node);
    f.SayDeclare(node, f.DeclareOf("w", node, 1000));
    f.SayReport(node);
  }
  CHECK(f.Seen<AllocateMemory>().empty());
  CHECK(f.allocated == std::vector<AllocationId>(before.begin(), before.end() - 1));
  CHECK(f.Sent<wire::Declared>(Conn(0)).size() == 1);
}

TEST_CASE("AggregatorCore: slots are made anew when another aggregator takes its share",
          "[aggregation]") {
  JobFixture f;
  f.StartWith("w", 100'000);
  const uint64_t reserved = f.budget.used_bytes();
  f.view.aggregators.push_back({.incarnation = Incarnation{950}, .name = "bgg"});
  f.NextView();
  f.effects_seen.clear();
  f.SayFence(0);
  f.SayDeclare(0, f.DeclareOf("w", 0, 100'000));
  // Only the memory that the fenced member writes may go now. The other member's goes after its own
  // fence.
  const auto released = f.Seen<ReleaseMemory>();
  REQUIRE(released.size() == 2);
  f.SayReport(0);
  f.SayFence(1);
  f.SayDeclare(1, f.DeclareOf("w", 1, 100'000));
  f.SayReport(1);
  CHECK(f.Seen<ReleaseMemory>().size() == 3);
  CHECK(f.budget.used_bytes() < reserved);
  CHECK(f.budget.used_bytes() > 0);
  CHECK(f.allocated.size() == 3);
}

TEST_CASE("AggregatorCore: tensors that nobody declares in a new view are released",
          "[aggregation]") {
  JobFixture f;
  f.StartWith("w");
  f.NextView();
  for (const uint32_t node : {0u, 1u}) {
    f.SayFence(node);
    f.SayReport(node);
  }
  CHECK(f.allocated.empty());
  CHECK(f.budget.used_bytes() == 0);
  // The agreement remains.
  f.SayDeclare(0, f.DeclareOf("w", 0, 5));
  CHECK(f.Sent<wire::Failed>(Conn(0)).size() == 1);
}

TEST_CASE("AggregatorCore: an empty tensor needs no memory", "[aggregation]") {
  JobFixture f;
  f.StartWith("barrier", 0);
  CHECK(f.allocated.empty());
  for (const uint32_t node : {0u, 1u}) {
    wire::Contribute part = f.Part("barrier", 1);
    part.form = wire::Form::kInline;
    f.Contribute(node, part);
  }
  REQUIRE(f.Results(0).size() == 1);
  CHECK(f.Results(0)[0].entry.form == wire::Form::kInline);
}

TEST_CASE("AggregatorCore: texts are cut to what a frame takes", "[aggregation]") {
  JobFixture f;
  f.Start();
  const std::string name(wire::kNameBytesMax, 'n');
  f.view.members[0].name = name;
  f.SayDeclare(0, f.DeclareOf(name, 0, UINT64_MAX));
  f.SayDeclare(1, f.DeclareOf(name, 1, 5));
  for (const uint32_t node : {0u, 1u}) {
    for (const wire::Failed& failed : f.Sent<wire::Failed>(Conn(node))) {
      CHECK(failed.text.size() <= wire::kTextBytesMax);
    }
  }
}

}  // namespace
}  // namespace talweg::aggregation
