// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/profile.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "libs/view/placement.h"
#include "tests/sim/timeline.h"

namespace talweg::sim {

const char* FaultName(Fault fault) {
  static constexpr const char* kNames[kFaultCount] = {"crash an agent",
                                                      "crash an aggregator",
                                                      "restart the scheduler",
                                                      "break a connection",
                                                      "stop a process",
                                                      "partition",
                                                      "kill a rank",
                                                      "break a stream",
                                                      "clock gap",
                                                      "late join",
                                                      "confuse an agent",
                                                      "leave",
                                                      "drain an aggregator",
                                                      "break a connection at one end",
                                                      "stall a connection",
                                                      "confuse a rank",
                                                      "confuse an aggregator",
                                                      "lose the scheduler"};
  return kNames[static_cast<int>(fault)];
}

namespace {

template <typename... Values>
uint64_t Pick(Random& random, Values... values) {
  const uint64_t list[] = {static_cast<uint64_t>(values)...};
  return list[random.Below(sizeof...(values))];
}

Profile DrawUsual(Random& random) {
  Profile profile;
  const auto pick = [&random](auto... values) { return Pick(random, values...); };
  const uint64_t nodes = pick(1, 2, 2, 2, 3, 3, 4);
  for (uint64_t i = 0; i < nodes; ++i) {
    profile.rank_counts.push_back(static_cast<uint32_t>(pick(1, 1, 2, 2, 3)));
  }
  profile.job_count = random.OneIn(8) ? 2 : 1;
  profile.aggregator_count = static_cast<uint32_t>(pick(1, 1, 2, 2, 3));
  if (nodes == 1 && random.OneIn(2)) profile.aggregator_count = 0;
  profile.slice_bytes_max = pick(4096, 12288, 16384);
  profile.credit_bytes = pick(4096, 16384, 1 << 20);
  const uint64_t tensor_count = 1 + random.Below(4);
  for (uint64_t i = 0; i < tensor_count; ++i) {
    TensorProfile tensor;
    // Multiples of 8, so that the last cell is whole even where it travels as bytes.
    tensor.bytes = 8 * (1 + random.Below(pick(5, 500, 2000, 5000, 5000)));
    if (random.OneIn(24)) {
      tensor.bytes =
          std::max<uint64_t>(65536 * profile.aggregator_count + 8 * random.Below(4500), 8);
    }
    tensor.op = Op{static_cast<uint8_t>(pick(1, 1, 1, 2, 2, 6, 6))};
    if (tensor.op == Op::kCopy) tensor.gives = Share::kRoot;
    tensor.mismatch = random.OneIn(60);
    if (tensor.op == Op::kCopy && random.OneIn(8)) {
      tensor.root_rank = static_cast<uint32_t>(random.Below(3));
    }
    profile.tensors.push_back(tensor);
  }
  profile.round_count = 1 + random.Below(pick(4, 12, 30));
  profile.in_steps = random.OneIn(2);
  profile.rounds_per_step = 1 + profile.round_count % 3;
  profile.straggler_one_in = random.OneIn(10) ? 40 : 0;
  profile.delay_max_ns = static_cast<int64_t>(pick(50, 1000, 5000, 50000)) * kMicrosecond;
  // The job of every fifth life fails when it loses a process. The others go on.
  profile.loss_policy =
      random.OneIn(5) ? membership::LossPolicy::kFailJob : membership::LossPolicy::kContinue;
  profile.min_members = static_cast<uint32_t>(
      profile.loss_policy == membership::LossPolicy::kFailJob ? nodes : pick(1, 1, nodes));
  if (random.OneIn(40)) profile.aggregator_memory_bytes = 8192 * (1 + random.Below(16));
  // In half of these lives a rule sets the limit, and half of those rules are a tenant's.
  if (profile.aggregator_memory_bytes % 16384 == 0 && profile.aggregator_memory_bytes < 1 << 20) {
    profile.place_bytes_max = std::exchange(profile.aggregator_memory_bytes, 1 << 30);
    profile.rule_is_of_tenant = profile.place_bytes_max % 32768 == 0;
  }
  profile.agent_memory_is_short = random.OneIn(60);
  if (random.OneIn(4)) profile.history_ns = kSecond;
  if (random.OneIn(6)) return profile;  // A quiet life.
  profile.fault_gap_ns =
      profile.delay_max_ns * static_cast<int64_t>(pick(1, 3, 10)) + 20 * kMicrosecond;
  // Some faults begin while the job forms, most when it has begun to train.
  if (!random.OneIn(3)) {
    profile.fault_start_ns =
        static_cast<int64_t>(random.Below(static_cast<uint64_t>(12 * profile.delay_max_ns)));
  }
  profile.fault_end_ns =
      profile.fault_start_ns + profile.fault_gap_ns * static_cast<int64_t>(1 + random.Below(12));
  profile.rpc_loss_percent = static_cast<uint32_t>(pick(0, 0, 5, 20));
  // A life with few kinds of faults goes deeper than one with all kinds at once.
  static constexpr uint32_t kUsual[] = {3, 2, 1, 6, 3, 2, 1, 2, 1, 3, 5, 1, 1, 4, 4, 1, 1};
  for (size_t i = 0; i < std::size(kUsual); ++i) {
    profile.fault_weights[i] = random.OneIn(2) ? kUsual[i] : 0;
  }
  return profile;
}

Profile DrawRecovery(Random& random) {
  Profile profile;
  const auto pick = [&random](auto... values) { return Pick(random, values...); };
  const uint64_t nodes = pick(3, 3, 4);
  for (uint64_t i = 0; i < nodes; ++i) {
    profile.rank_counts.push_back(static_cast<uint32_t>(pick(1, 2, 2)));
  }
  profile.min_members = 2;
  profile.members_first = true;
  profile.aggregator_count = static_cast<uint32_t>(pick(2, 3, 3, 3));
  profile.aggregators_die_together = true;
  profile.older_store_one_in = 2;
  profile.older_stores_revive = random.OneIn(2);
  // Aggregators do not resume a job that they have closed.
  if (profile.older_stores_revive) profile.unreachable_ns = 30 * kSecond;
  profile.slice_bytes_max = view::kStripeBytesMin;
  profile.credit_bytes = pick(4096, 16384, 1 << 20);
  const uint64_t tensor_count = 1 + random.Below(3);
  for (uint64_t i = 0; i < tensor_count; ++i) {
    TensorProfile tensor;
    // If each aggregator has a slice, members can hold different slices.
    tensor.bytes = random.OneIn(3) ? 8 * (1 + random.Below(5000))
                                   : view::kStripeBytesMin * profile.aggregator_count;
    tensor.op = Op{static_cast<uint8_t>(pick(1, 6))};
    if (tensor.op == Op::kCopy) tensor.gives = Share::kRoot;
    if (tensor.op == Op::kCopy) tensor.root_rank = static_cast<uint32_t>(random.Below(3));
    profile.tensors.push_back(tensor);
  }
  profile.round_count = 4 + random.Below(30);
  profile.in_steps = random.OneIn(3);
  profile.rounds_per_step = 1 + profile.round_count % 3;
  profile.straggler_one_in = pick(0, 6, 6);
  profile.delay_max_ns = static_cast<int64_t>(pick(1000, 5000, 50000)) * kMicrosecond;
  profile.fault_gap_ns = profile.delay_max_ns * static_cast<int64_t>(pick(1, 2, 4));
  profile.fault_start_ns =
      static_cast<int64_t>(random.Below(static_cast<uint64_t>(12 * profile.delay_max_ns)));
  profile.fault_end_ns =
      profile.fault_start_ns + profile.fault_gap_ns * static_cast<int64_t>(4 + random.Below(16));
  profile.rpc_loss_percent = static_cast<uint32_t>(pick(0, 5));
  static constexpr uint32_t kWeights[] = {4, 6, 6, 1, 4, 2, 1, 6, 0, 6, 0, 0, 0, 1, 4, 0, 0};
  for (size_t i = 0; i < std::size(kWeights); ++i) {
    profile.fault_weights[i] = random.OneIn(3) ? 0 : kWeights[i];
  }
  return profile;
}

Profile DrawSilent(Random& random) {
  Profile profile;
  const auto pick = [&random](auto... values) { return Pick(random, values...); };
  const uint64_t nodes = pick(2, 3, 3, 4);
  for (uint64_t i = 0; i < nodes; ++i) {
    profile.rank_counts.push_back(static_cast<uint32_t>(pick(1, 1, 2)));
  }
  profile.aggregator_count = static_cast<uint32_t>(pick(1, 2, 2, 3));
  profile.min_members = static_cast<uint32_t>(pick(1, 2));
  profile.loss_policy =
      random.OneIn(4) ? membership::LossPolicy::kFailJob : membership::LossPolicy::kContinue;
  profile.unreachable_ns = static_cast<int64_t>(pick(3, 10, 30)) * kSecond;
  profile.slice_bytes_max = pick(4096, 16384);
  profile.credit_bytes = pick(16384, 1 << 20);
  const uint64_t tensor_count = 1 + random.Below(3);
  for (uint64_t i = 0; i < tensor_count; ++i) {
    TensorProfile tensor;
    tensor.bytes = 8 * (1 + random.Below(pick(500, 5000)));
    tensor.op = Op{static_cast<uint8_t>(pick(1, 1, 6))};
    if (tensor.op == Op::kCopy) tensor.gives = Share::kRoot;
    profile.tensors.push_back(tensor);
  }
  profile.round_count = 20 + random.Below(60);
  profile.in_steps = random.OneIn(2);
  profile.rounds_per_step = 1 + profile.round_count % 3;
  profile.straggler_one_in = pick(0, 6, 20);
  profile.delay_max_ns = static_cast<int64_t>(pick(1000, 5000, 50000)) * kMicrosecond;
  profile.older_store_one_in = 1 << 30;
  profile.fault_gap_ns = profile.delay_max_ns * static_cast<int64_t>(pick(2, 4, 10));
  // Most faults begin when the job has begun.
  profile.fault_start_ns =
      static_cast<int64_t>(random.Below(static_cast<uint64_t>(60 * profile.delay_max_ns)));
  profile.fault_end_ns =
      profile.fault_start_ns + profile.fault_gap_ns * static_cast<int64_t>(4 + random.Below(16));
  profile.rpc_loss_percent = static_cast<uint32_t>(pick(0, 5));
  static constexpr uint32_t kWeights[] = {4, 2, 1, 3, 3, 2, 1, 3, 0, 3, 0, 1, 0, 3, 3, 0, 0};
  for (size_t i = 0; i < std::size(kWeights); ++i) {
    profile.fault_weights[i] = random.OneIn(3) ? 0 : kWeights[i];
  }
  profile.fault_weights[static_cast<int>(Fault::kLoseScheduler)] = 4;
  return profile;
}

// Returns some ranks: any of them, those of one node, or one of each node.
view::Group DrawGroup(const Profile& profile, Random& random) {
  const auto node_count = static_cast<uint32_t>(profile.rank_counts.size());
  const uint64_t shape = random.Below(4);
  const auto only_node = static_cast<uint32_t>(random.Below(node_count));
  view::Group group;
  for (uint32_t node = 0; node < node_count; ++node) {
    const auto only_rank = static_cast<uint32_t>(random.Below(profile.rank_counts[node]));
    for (uint32_t rank = 0; rank < profile.rank_counts[node]; ++rank) {
      const bool is_in = shape == 0   ? node == only_node
                         : shape == 1 ? rank == only_rank
                                      : random.OneIn(2);
      if (is_in) group.push_back({NodeRank{node}, LocalRank{rank}});
    }
  }
  if (group.empty()) group.push_back({NodeRank{only_node}, LocalRank{0}});
  return group;
}

Profile DrawGroups(Random& random) {
  const auto pick = [&random](auto... values) { return Pick(random, values...); };
  const uint64_t base = random.Below(8);
  Profile profile = base < 4   ? DrawUsual(random)
                    : base < 7 ? DrawRecovery(random)
                               : DrawSilent(random);
  profile.has_groups = true;
  profile.tensors.clear();
  const uint64_t tensor_count = 1 + random.Below(4);
  for (uint64_t i = 0; i < tensor_count; ++i) {
    const CollectiveRow& row = kCollectives[random.Below(kCollectives.size())];
    TensorProfile tensor;
    tensor.gives = row.gives;
    tensor.gets = row.gets;
    tensor.op = row.gives == Share::kWhole ? Op{static_cast<uint8_t>(pick(1, 1, 2))} : Op::kCopy;
    // There may be as many parts as there are pairs of ranks.
    const uint64_t most = row.gives == Share::kRow ? 300 : pick(5, 500, 2000);
    tensor.bytes = 8 * (1 + random.Below(most));
    if (row.gives != Share::kRow && random.OneIn(4)) {
      tensor.bytes = view::kStripeBytesMin * std::max<uint64_t>(profile.aggregator_count, 1);
    }
    if (!random.OneIn(3)) tensor.group = DrawGroup(profile, random);
    tensor.root_rank = static_cast<uint32_t>(random.Below(8));
    tensor.lengths_vary = !random.OneIn(3);
    tensor.is_signed = random.OneIn(2);
    tensor.odd_one_in = pick(0, 0, 3, 6);
    // A part that is longer moves the parts after it.
    tensor.mismatch = !tensor.collective().needs_every_rank() && random.OneIn(40);
    profile.tensors.push_back(tensor);
  }
  return profile;
}

// Some aggregators are on members' hosts and some are not. Most tensors are large enough for that
// to matter.
Profile DrawHosts(Random& random) {
  const auto pick = [&random](auto... values) { return Pick(random, values...); };
  Profile profile = DrawGroups(random);
  if (profile.rank_counts.size() == 1) profile.rank_counts.push_back(1);
  profile.aggregator_count = static_cast<uint32_t>(pick(2, 2, 3, 4));
  uint64_t rank_count = 0;
  for (size_t node = 0; node < profile.rank_counts.size(); ++node) {
    rank_count += profile.rank_counts[node];
    // A few nodes share a host.
    const uint64_t host = node > 0 && random.OneIn(8) ? node - 1 : node;
    profile.node_hosts.push_back(random.OneIn(16) ? "" : "host" + std::to_string(host));
  }
  for (uint32_t i = 0; i < profile.aggregator_count; ++i) {
    const uint64_t host = random.OneIn(4) ? 100 + i : random.Below(profile.rank_counts.size());
    profile.aggregator_hosts.push_back("host" + std::to_string(host));
  }
  for (TensorProfile& tensor : profile.tensors) {
    if (random.OneIn(4)) continue;
    const Collective collective = tensor.collective();
    const uint64_t ranks = tensor.group.empty() ? rank_count : tensor.group.size();
    const uint64_t bytes = view::kStripeBytesMin * profile.aggregator_count;
    tensor.bytes = bytes / collective.part_count(static_cast<uint32_t>(ranks)) / 8 * 8 +
                   8 * random.Below(pick(10, 1000));
  }
  return profile;
}

// Gives so much credit that an aggregator holds a part of it back for a while, and gives members
// more to send than that.
void Widen(Profile& profile, Random& random) {
  profile.credit_bytes = kMiB + 256 * kKiB;
  profile.slice_bytes_max = view::kStripeBytesMin;
  profile.round_count = std::min<uint64_t>(profile.round_count, 3);
  while (profile.tensors.size() < 3) profile.tensors.push_back(profile.tensors.front());
  for (TensorProfile& tensor : profile.tensors) tensor.bytes = 8 * (90'000 + random.Below(40'000));
}

// These settings of the job and its daemons are drawn from a copy of `random`. So the rest of a
// seed's life is the same with and without them.
uint64_t DrawResultsWindow(Random random) {
  random.Next();
  if (!random.OneIn(4)) return aggregation::ResultQueue::kNoWindow;
  return Pick(random, 1, 16384, 65536);
}

Dealing DrawDealing(Random random) {
  if (!random.OneIn(3)) return {};
  constexpr const char* kTexts[] = {"naive",         "djb2",       "sdbm",    "fingerprint",
                                    "fingerprint:3", "weighted:5", "weighted"};
  return ParseDealing(kTexts[random.Below(std::size(kTexts))]).value();
}

// In every fourth life some tensors travel encoded.
void DrawEncodings(Profile& profile, Random random) {
  random.Next();
  random.Next();
  if (!random.OneIn(4)) return;
  for (TensorProfile& tensor : profile.tensors) {
    tensor.encoding = static_cast<Encoding>(random.Below(kEncodings.size()));
    // Some are for sums only.
    if (!Problem(tensor.collective()).empty()) tensor.encoding = Encoding::kPlain;
  }
}

// Many nodes join, and no process is confused.
Profile DrawStandbys(Random& random) {
  const uint64_t base = random.Below(8);
  Profile profile = base < 4   ? DrawRecovery(random)
                    : base < 5 ? DrawUsual(random)
                    : base < 7 ? DrawGroups(random)
                               : DrawSilent(random);
  profile.standbys = true;
  // These tensors go on without members that are lost. Standbys then take their places.
  if (profile.has_groups && !random.OneIn(3)) {
    for (TensorProfile& tensor : profile.tensors) {
      tensor.gives = tensor.gets = Share::kWhole;
      tensor.op = Op::kSum;
      tensor.odd_one_in = 0;
    }
  }
  profile.loss_policy = membership::LossPolicy::kContinue;
  // With min_members = 1 the first member begins alone, and groups consist of its own ranks only.
  profile.min_members = profile.rank_counts.size() > 2 && !random.OneIn(4) ? 2 : 1;
  profile.members_first = profile.members_first || !random.OneIn(3);
  profile.round_count += 20;
  for (const Fault fault : {Fault::kConfuseAgent, Fault::kConfuseRank, Fault::kForge}) {
    profile.fault_weights[static_cast<int>(fault)] = 0;
  }
  // Where groups name places, joiners should find places that somebody else has lost.
  profile.fault_weights[static_cast<int>(Fault::kCrashAgent)] += profile.has_groups ? 12 : 4;
  if (profile.fault_gap_ns == 0) {
    profile.fault_gap_ns = 10 * profile.delay_max_ns;
    profile.fault_end_ns = 100 * profile.delay_max_ns;
  }
  return profile;
}

Profile DrawLate(Random& random) {
  const uint64_t base = random.Below(8);
  Profile profile = base < 2   ? DrawUsual(random)
                    : base < 5 ? DrawRecovery(random)
                    : base < 7 ? DrawGroups(random)
                               : DrawStandbys(random);
  profile.memory_is_late = true;
  profile.agent_memory_is_short |= random.OneIn(10);
  return profile;
}

Profile DrawPatience(Random& random) {
  const uint64_t base = random.Below(8);
  Profile profile = base < 2   ? DrawUsual(random)
                    : base < 6 ? DrawRecovery(random)
                    : base < 7 ? DrawGroups(random)
                               : DrawStandbys(random);
  for (TensorProfile& tensor : profile.tensors) {
    const bool may = (tensor.op == Op::kSum || tensor.op == Op::kAverage) &&
                     tensor.gives == Share::kWhole && tensor.gets == Share::kWhole;
    if (!may || random.OneIn(6)) continue;
    tensor.patience_ms = static_cast<uint16_t>(Pick(random, 1, 5, 50, 1000));
    // Every round has all elements, and nobody compares what comes late.
    tensor.lengths_vary = tensor.is_signed = false;
    tensor.odd_one_in = 0;
  }
  profile.straggler_one_in = Pick(random, 3, 8, 30);
  profile.memory_is_late = random.OneIn(8);
  return profile;
}

// Ranks do not wait for long. Most have their results where they contribute, if only connections
// break.
Profile DrawHasty(Random& random) {
  const uint64_t base = random.Below(8);
  Profile profile = base < 4   ? DrawUsual(random)
                    : base < 6 ? DrawRecovery(random)
                    : base < 7 ? DrawGroups(random)
                               : DrawStandbys(random);
  profile.time_limit_ns = profile.delay_max_ns * static_cast<int64_t>(Pick(random, 1, 4, 20));
  profile.straggler_one_in = Pick(random, 0, 8, 30);
  if (base > 1) return profile;
  profile.loss_policy = membership::LossPolicy::kFailJob;
  profile.min_members = static_cast<uint32_t>(profile.rank_counts.size());
  for (uint32_t& count : profile.rank_counts) count = random.OneIn(4) ? 2 : 1;
  if (profile.aggregator_count == 0) profile.aggregator_count = 1;
  for (int fault = 0; fault < kFaultCount; ++fault) {
    const bool breaks = fault == static_cast<int>(Fault::kBreakLink) ||
                        fault == static_cast<int>(Fault::kHalfBreakLink) ||
                        fault == static_cast<int>(Fault::kStallLink);
    profile.fault_weights[fault] = breaks ? 1 : 0;
  }
  return profile;
}

// Most nodes have several ranks, so that groups lose some of their ranks and not all.
Profile DrawGathers(Random& random) {
  Profile profile = random.OneIn(3) ? DrawHosts(random) : DrawGroups(random);
  profile.loss_policy = membership::LossPolicy::kContinue;
  profile.min_members = 1;
  profile.fault_weights[static_cast<int>(Fault::kCrashAgent)] += 6;
  profile.fault_weights[static_cast<int>(Fault::kKillRank)] += 3;
  profile.round_count += 10;
  const size_t count = profile.tensors.size();
  for (size_t i = 0; i < count; ++i) {
    if (i > 0 && random.OneIn(2)) continue;
    TensorProfile gather = profile.tensors[i];
    gather.op = Op::kCopy;
    gather.gives = Share::kOwn;
    gather.gets = Share::kWhole;
    gather.bytes = 8 * (1 + random.Below(500));
    if (gather.group.empty()) gather.group = DrawGroup(profile, random);
    gather.odd_one_in = 0;
    gather.mismatch = false;
    gather.patience_ms = 0;
    gather.goes_on_by = profile.tensors.size();
    TensorProfile reduction = gather;
    reduction.op = Op::kSum;
    reduction.gives = Share::kWhole;
    reduction.lengths_vary = reduction.is_signed = false;
    reduction.goes_on_by = 0;
    reduction.is_of_survivors = true;
    profile.tensors[i] = gather;
    profile.tensors.push_back(reduction);
  }
  return profile;
}

// One or two daemons with two or three lanes. Most of their faults strike all lanes at once, and
// some tensors have slices at each lane.
Profile DrawLanes(Random& random) {
  const uint64_t base = random.Below(8);
  Profile profile = base < 2   ? DrawUsual(random)
                    : base < 4 ? DrawRecovery(random)
                    : base < 5 ? DrawGroups(random)
                    : base < 6 ? DrawHosts(random)
                    : base < 7 ? DrawStandbys(random)
                               : DrawHasty(random);
  profile.lane_count = static_cast<uint32_t>(Pick(random, 2, 2, 3));
  profile.aggregator_count = profile.lane_count * static_cast<uint32_t>(Pick(random, 1, 2, 2));
  if (!profile.aggregator_hosts.empty()) {
    profile.aggregator_hosts.resize(profile.aggregator_count, profile.aggregator_hosts.front());
  }
  for (TensorProfile& tensor : profile.tensors) {
    if (tensor.bytes >= view::kStripeBytesMin) {
      tensor.bytes = view::kStripeBytesMin * profile.aggregator_count;
    }
  }
  profile.fault_weights[static_cast<int>(Fault::kCrashAggregator)] += 2;
  profile.fault_weights[static_cast<int>(Fault::kDrainAggregator)] += 1;
  return profile;
}

// Two nodes, one of which has its results where it contributes if the job has one view. One tensor
// travels inside frames, and one is written. The shapes differ in the policy and in who notices.
Profile ProfileOfSevered(uint64_t seed) {
  const uint64_t shape = seed % kSeveredShapes;
  Profile profile;
  profile.rank_counts = {1, 2};
  profile.min_members = 2;
  profile.loss_policy =
      shape % 2 == 0 ? membership::LossPolicy::kFailJob : membership::LossPolicy::kContinue;
  profile.slice_bytes_max = 16384;
  profile.tensors.push_back({.bytes = 9600});
  profile.tensors.push_back({.bytes = 800, .op = Op::kCopy, .gives = Share::kRoot});
  profile.round_count = 2;
  profile.in_steps = false;
  profile.severing = {.step = seed / kSeveredShapes,
                      .connector_is_late = (shape & 2) != 0,
                      .listener_is_late = (shape & 4) != 0};
  return profile;
}

Profile DrawKind(Kind kind, uint64_t seed, Random& random) {
  switch (kind) {
    case Kind::kUsual: break;
    case Kind::kRecovery: return DrawRecovery(random);
    case Kind::kSilent: return DrawSilent(random);
    case Kind::kGroups: return DrawGroups(random);
    case Kind::kHosts: return DrawHosts(random);
    case Kind::kStandbys: return DrawStandbys(random);
    case Kind::kLate: return DrawLate(random);
    case Kind::kPatience: return DrawPatience(random);
    case Kind::kHasty: return DrawHasty(random);
    case Kind::kGathers: return DrawGathers(random);
    case Kind::kLanes: return DrawLanes(random);
    case Kind::kSevered: return ProfileOfSevered(seed);
  }
  Profile profile = DrawUsual(random);
  if (random.OneIn(150)) Widen(profile, random);
  return profile;
}

// Draws with how many members a job begins, and how long it waits for them.
void DrawBeginning(Profile& profile, Random random) {
  const uint64_t spare = profile.rank_counts.size() - profile.min_members;
  if (spare == 0 || !random.OneIn(3)) return;
  profile.begin_members = profile.min_members + static_cast<uint32_t>(random.Below(spare + 1));
  // Some members come in that time, and some do not.
  profile.gather_ns =
      profile.delay_max_ns * static_cast<int64_t>(Pick(random, 2, 8, 30)) + kMillisecond;
}

}  // namespace

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kUsual: return "usual";
    case Kind::kRecovery: return "recovery";
    case Kind::kSilent: return "silent";
    case Kind::kGroups: return "groups";
    case Kind::kHosts: return "hosts";
    case Kind::kStandbys: return "standbys";
    case Kind::kLate: return "late";
    case Kind::kPatience: return "patience";
    case Kind::kHasty: return "hasty";
    case Kind::kGathers: return "gathers";
    case Kind::kLanes: return "lanes";
    case Kind::kSevered: return "severed";
  }
  return "unknown";
}

Profile DrawProfile(Kind kind, uint64_t seed, Random& random) {
  Profile profile = DrawKind(kind, seed, random);
  if (profile.severing) return profile;
  profile.dealing = DrawDealing(random);
  profile.results_window_bytes = DrawResultsWindow(random);
  DrawEncodings(profile, random);
  profile.members_prove = kind == Kind::kHosts || kind == Kind::kStandbys;
  DrawBeginning(profile, Random(~Random(random).Next()));
  return profile;
}

}  // namespace talweg::sim
