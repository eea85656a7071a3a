// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_AGENT_CORE_FIXTURE_H_
#define TALWEG_LIBS_PIPELINE_AGENT_CORE_FIXTURE_H_

#include <string>
#include <utility>
#include <vector>

#include "libs/base/fingerprint.h"
#include "libs/pipeline/agent_core.h"

// One AgentCore among aggregators that answer correctly when a test asks them to.
namespace talweg::pipeline::testing {

inline view::View MakeView(uint64_t epoch, std::vector<uint32_t> rank_counts,
                           uint32_t aggregators) {
  view::View view;
  view.job = JobId{7};
  view.epoch = Epoch{epoch};
  view.slice_bytes_max = 64 * kKiB;
  for (uint32_t i = 0; i < rank_counts.size(); ++i) {
    view.members.push_back({.id = {NodeRank{i}, Incarnation{100 + i}},
                            .rank_count = rank_counts[i],
                            .name = "node-" + std::to_string(i)});
  }
  for (uint32_t i = 0; i < aggregators; ++i) {
    view.aggregators.push_back({.incarnation = Incarnation{200 + i},
                                .name = "aggregator-" + std::to_string(i),
                                .data_address = "address-" + std::to_string(i)});
  }
  return view;
}

inline TensorSpec Spec(const std::string& name, uint64_t count, DType dtype = DType::kF32,
                       Op op = Op::kSum, uint32_t root = 0) {
  return {.name = name, .collective = Collective::Of(dtype, op, count), .root_rank = root};
}

inline TensorKey Key(const std::string& name) { return TensorKey{Fingerprint64(name)}; }

struct Fixture {
  explicit Fixture(uint32_t node = 0, uint32_t rank_count = 1, const std::string& host_id = "",
                   bool one_view = false)
      : member({.self = {NodeRank{node}, Incarnation{100 + node}},
                .job_name = "job",
                .node_name = "node",
                .host_id = host_id,
                .rank_count = rank_count,
                .one_view = one_view}) {}
  explicit Fixture(const AgentCoreConfig& config) : member(config) {}

  // Performs an event, checks the core, and keeps its effects.
  template <typename Event>
  Effects Do(Event event) {
    Effects out;
    event(out);
    member.CheckInvariants();
    all.insert(all.end(), out.begin(), out.end());
    return out;
  }

  template <typename E>
  static std::vector<E> Of(const Effects& effects) {
    std::vector<E> found;
    for (const Effect& effect : effects) {
      if (const E* e = std::get_if<E>(&effect)) found.push_back(*e);
    }
    return found;
  }

  template <typename Entry>
  static std::vector<Entry> Entries(const Effects& effects) {
    std::vector<Entry> found;
    for (const Send& send : Of<Send>(effects)) {
      if (const auto* entries = std::get_if<std::vector<Entry>>(&send.entries)) {
        found.insert(found.end(), entries->begin(), entries->end());
      }
    }
    return found;
  }

  static int CountFrames(const Effects& effects, wire::FrameType type) {
    int count = 0;
    for (const Send& send : Of<Send>(effects)) count += send.type == type;
    return count;
  }

  Effects OnView(const view::View& view) {
    return Do([&](Effects& out) { member.OnView(view, now_ns, out); });
  }
  Effects Join(uint32_t rank) {
    return Do(
        [&](Effects& out) { member.OnRankJoined(LocalRank{rank}, 4000 + rank, now_ns, out); });
  }
  Effects Leave(uint32_t rank, bool clean, const std::string& text = "killed") {
    return Do([&](Effects& out) { member.OnRankLeft(LocalRank{rank}, clean, text, now_ns, out); });
  }
  Effects Declare(uint32_t rank, const TensorSpec& spec, const MemoryWishes& wishes = {}) {
    return Do([&](Effects& out) {
      member.OnRankDeclare(LocalRank{rank}, next_request++, {spec, wishes}, now_ns, out);
    });
  }
  // Includes the flush afterwards, which declares the tensor.
  Effects Allocated(uint32_t tensor, const std::string& text = "") {
    return Do([&](Effects& out) {
      member.OnTensorAllocated(TensorIndex{tensor}, text, out);
      member.Flush(now_ns, out);
    });
  }
  Effects Push(uint32_t rank, uint32_t tensor, uint64_t round, int32_t priority = 0) {
    return Do([&](Effects& out) {
      member.OnPush({.rank = LocalRank{rank},
                     .tensor = TensorIndex{tensor},
                     .round = Round{round},
                     .priority = priority},
                    now_ns, out);
    });
  }
  Effects Flush() {
    return Do([&](Effects& out) { member.Flush(now_ns, out); });
  }
  Effects Tick() {
    return Do([&](Effects& out) { member.OnTick(now_ns, out); });
  }
  Effects Reduced(uint64_t ticket) {
    return Do([&](Effects& out) { member.OnReduced(ticket, std::nullopt, now_ns, out); });
  }

  const Owner& OwnerAt(uint32_t index) const { return member.owners().at(AggregatorIndex{index}); }

  // One frame from an aggregator of the newest view.
  template <typename Entry>
  Effects From(uint32_t owner, wire::FrameType type, std::vector<Entry> entries, uint64_t epoch = 0,
               uint64_t credit_bytes = 0) {
    wire::Frame frame = Bare(type, epoch);
    frame.header.credit_bytes = credit_bytes;
    frame.entries = std::move(entries);
    return Deliver(OwnerAt(owner).connection, frame);
  }
  Effects From(uint32_t owner, wire::FrameType type, uint64_t epoch = 0,
               uint64_t credit_bytes = 0) {
    wire::Frame frame = Bare(type, epoch);
    frame.header.credit_bytes = credit_bytes;
    return Deliver(OwnerAt(owner).connection, frame);
  }
  wire::Frame Bare(wire::FrameType type, uint64_t epoch) const {
    wire::Frame frame;
    frame.header.type = type;
    frame.header.job = JobId{7};
    frame.header.epoch = epoch == 0 ? member.views().newest()->epoch : Epoch{epoch};
    return frame;
  }
  Effects Deliver(ConnectionId connection, const wire::Frame& frame) {
    return Do([&](Effects& out) { member.OnFrame(connection, frame, now_ns, out); });
  }

  Effects Connected(uint32_t owner) {
    return Do([&](Effects& out) { member.OnConnected(OwnerAt(owner).connection, now_ns, out); });
  }
  Effects Broken(uint32_t owner) {
    return Do([&](Effects& out) {
      member.OnDisconnected(OwnerAt(owner).connection, "reset by peer", now_ns, out);
    });
  }
  Effects Welcome(uint32_t owner, uint64_t credit_bytes = 8 * kMiB) {
    return From<wire::Welcome>(
        owner, wire::FrameType::kWelcome,
        {{.aggregator = OwnerAt(owner).incarnation, .credit_bytes = credit_bytes}});
  }
  // All that leads to an answer of every aggregator of the newest view.
  Effects AnswerAll(uint64_t credit_bytes = 8 * kMiB) {
    Effects effects;
    const auto append = [&effects](Effects more) {
      effects.insert(effects.end(), more.begin(), more.end());
    };
    for (uint32_t i = 0; i < member.views().newest()->aggregators.size(); ++i) {
      if (OwnerAt(i).state == OwnerState::kBackoff) {
        now_ns = std::max(now_ns, OwnerAt(i).retry_at_ns);
        append(Tick());
      }
      if (OwnerAt(i).state == OwnerState::kConnecting) append(Connected(i));
      if (OwnerAt(i).state == OwnerState::kGreeting) append(Welcome(i, credit_bytes));
      if (OwnerAt(i).state == OwnerState::kFencing) {
        append(From(i, wire::FrameType::kFenceAck));
      }
    }
    return effects;
  }
  // Owners agree to every declaration in `effects`. A slot's key is its owner's index + 1.
  Effects AgreeTo(const Effects& effects) {
    Effects all_out;
    for (const Send& send : Of<Send>(effects)) {
      const auto* entries = std::get_if<std::vector<wire::Declare>>(&send.entries);
      if (entries == nullptr) continue;
      for (const auto& [index, owner] : member.owners()) {
        if (owner.connection != send.connection) continue;
        std::vector<wire::Declared> answers;
        for (const wire::Declare& declare : *entries) {
          answers.push_back({.key = declare.key, .slot = {index.value() + 1, 1 << 20}});
        }
        const Effects out =
            From<wire::Declared>(index.value(), wire::FrameType::kDeclared, answers);
        all_out.insert(all_out.end(), out.begin(), out.end());
        break;
      }
    }
    return all_out;
  }
  // Opens a tensor that every rank may push.
  Effects Open(const TensorSpec& spec) {
    Effects out;
    for (uint32_t rank = 0; rank < member.config().rank_count; ++rank) {
      for (Effect& effect : Declare(rank, spec)) out.push_back(std::move(effect));
    }
    for (Effect& effect : Allocated(static_cast<uint32_t>(member.tensors().size()) - 1)) {
      out.push_back(std::move(effect));
    }
    return AgreeTo(out);
  }
  // Brings the member up in `view`.
  void Start(const view::View& view, uint64_t credit_bytes = 8 * kMiB) {
    for (uint32_t rank = 0; rank < member.config().rank_count; ++rank) Join(rank);
    OnView(view);
    AnswerAll(credit_bytes);
  }
  // Results for all contributions in `effects`, as the owners would send them.
  Effects Results(const Effects& effects, uint32_t ranks = 4, uint64_t sum_epoch = 0) {
    Effects all_out;
    for (const wire::Contribute& entry : Entries<wire::Contribute>(effects)) {
      const Effects out = ResultOf(entry, ranks, sum_epoch);
      all_out.insert(all_out.end(), out.begin(), out.end());
    }
    return all_out;
  }
  Effects ResultOf(const wire::Contribute& entry, uint32_t ranks = 4, uint64_t sum_epoch = 0) {
    const AgentTensor& tensor = *member.FindTensor(entry.key);
    const view::Slice& slice = tensor.slices[entry.slice.value()];
    wire::Result result{.key = entry.key,
                        .round = entry.round,
                        .slice = entry.slice,
                        .rank_count = ranks,
                        .length_bytes = slice.length_bytes,
                        .form = wire::Form::kWritten,
                        .sum_epoch = member.views().present()->epoch};
    if (sum_epoch != 0) result.sum_epoch = Epoch{sum_epoch};
    result.travel_bytes = result.length_bytes;
    if (!entry.wants_result) result.form = wire::Form::kEmpty;
    if (entry.wants_result && slice.length_bytes <= wire::kInlineBytesMax) {
      payload.assign(slice.length_bytes, std::byte{1});
      result.form = wire::Form::kInline;
      result.bytes = payload;
    }
    return From<wire::Result>(slice.owner.value(), wire::FrameType::kResult, {result},
                              member.views().present()->epoch.value());
  }
  Effects Decide(const std::string& name, wire::Verdict verdict, uint64_t round,
                 uint64_t sum_epoch = 0, std::vector<uint16_t> sources = {}) {
    const AgentTensor& tensor = *member.FindTensor(Key(name));
    return From<wire::Decision>(tensor.primary.value(), wire::FrameType::kDecision,
                                {{.key = tensor.key,
                                  .round = Round{round},
                                  .verdict = verdict,
                                  .sum_epoch = Epoch{sum_epoch},
                                  .sources = std::move(sources),
                                  .text = verdict == wire::Verdict::kAbort ? "root gone" : ""}});
  }

  AgentCore member;
  int64_t now_ns = 1'000'000'000;
  uint32_t next_request = 1;
  Effects all;
  std::vector<std::byte> payload;
};

}  // namespace talweg::pipeline::testing

#endif  // TALWEG_LIBS_PIPELINE_AGENT_CORE_FIXTURE_H_
