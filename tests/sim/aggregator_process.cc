// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/aggregator_process.h"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>
#include <variant>

#include "tests/sim/agent_process.h"
#include "tests/sim/aggregator_link.h"

namespace talweg::sim {
namespace {

constexpr uint64_t kRefusalsMax = 12;
constexpr int64_t kTickNs = 250 * kMillisecond;
// How long a pass takes that finds something, and how long one that sums.
constexpr uint64_t kPassNs = 20 * kMicrosecond;
constexpr uint64_t kSumNs = 100 * kMicrosecond;
// How long the kernel takes to give memory, at most, where it is late.
constexpr uint64_t kMemoryNs = 2 * kSecond;

aggregator::DataPlaneOptions OptionsOf(const AggregatorProcess::Config& config,
                                       const std::string& name) {
  return {.name = name,
          .incarnation = config.incarnation,
          .credit_bytes = config.profile->credit_bytes,
          .memory_bytes_max = config.profile->aggregator_memory_bytes,
          .results_window_bytes = config.profile->results_window_bytes,
          .unix_ahead_ns = kStartUnixNs,
          .refusals_max = kRefusalsMax,
          .events_per_poll = 4,
          .sum_bytes_per_poll = 1,  // One slice.
          .slots = {.chunk_bytes_min = 4 * kKiB, .chunk_bytes_max = 64 * kKiB}};
}

// Returns the name as services/aggregator/lanes.h makes it.
std::string NameOf(const AggregatorProcess::Config& config) {
  const uint32_t lane = config.place % config.profile->lane_count;
  return "aggregator" + std::to_string(config.place / config.profile->lane_count) +
         (lane == 0 ? "" : "/" + std::to_string(lane));
}

std::string TensorName(const aggregation::AggregatorCore* job, TensorKey key) {
  if (job == nullptr || !job->tensors().contains(key)) return "no tensor of ours";
  const aggregation::AggregatorTensor& tensor = job->tensors().at(key);
  return tensor.agreed ? tensor.agreed->name : "no tensor of ours";
}

// Returns an entry as text, for the trace.
template <typename Entry>
std::string Details(const aggregation::AggregatorCore* job, const Entry& entry) {
  std::string text;
  if constexpr (requires { entry.key; }) text += ": " + TensorName(job, entry.key);
  if constexpr (requires { entry.round; }) {
    text += " round " + std::to_string(entry.round.value());
  }
  if constexpr (std::is_same_v<Entry, wire::Result>) {
    text += " slice " + std::to_string(entry.slice.value());
  }
  if constexpr (std::is_same_v<Entry, wire::Decision>) {
    static constexpr const char* kVerdicts[] = {"?", "redo", "finish", "abort"};
    const auto verdict = static_cast<size_t>(entry.verdict);
    text += std::string(" ") + kVerdicts[verdict < std::size(kVerdicts) ? verdict : 0];
  }
  if constexpr (std::is_same_v<Entry, wire::Declared>) {
    text += " held " + std::to_string(entry.held.value());
  }
  if constexpr (std::is_same_v<Entry, wire::Waiting>) {
    text += " for " + std::to_string(entry.missing_nodes.size()) + " nodes";
  }
  if constexpr (requires { entry.text; }) {
    if (!entry.text.empty()) text += ": " + std::string(entry.text);
  }
  return text;
}

}  // namespace

AggregatorProcess::AggregatorProcess(Timeline* timeline, Trace* trace, Network* network,
                                     SchedulerProcess* scheduler, const Config& config)
    : timeline_(timeline),
      trace_(trace),
      network_(network),
      scheduler_(scheduler),
      config_(config),
      name_(NameOf(config)),
      clock_(timeline),
      transport_(network, config.host, (config.incarnation.value() << 16) + 1, this),
      data_plane_(OptionsOf(config, name_), &transport_, &clock_,
                  {.summer = &summer_, .codec = &codec_, .memory = this}),
      life_(
          {.self = {.incarnation = config.incarnation,
                    .name = name_,
                    .data_address = *transport_.Listen({}),
                    .host_id = config.host_id},
           .scheduler = "the scheduler",
           .drain_timeout_ns = 40 * network->Delay()},
          &data_plane_, &clock_,
          [this](Incarnation, aggregator::SchedulerLink::OnEvent on_event) {
            return std::make_unique<AggregatorLink>(
                timeline_, trace_, network_, scheduler_, config_.host,
                [this, on_event = std::move(on_event)](const rpc::AggregatorEvent& event) {
                  Run([&] { on_event(event); });
                });
          },
          [this] { timeline_->After(0, [this] { config_.on_ended(this); }); }) {}

void AggregatorProcess::Later(int64_t delay_ns, std::function<void()> event) {
  timeline_->After(delay_ns,
                   [this, life = network_->host(config_.host).life(), event = std::move(event)] {
                     network_->host(config_.host).Deliver(life, event);
                   });
}

void AggregatorProcess::Map(size_t bytes, std::weak_ptr<const void> wanted, Then then) {
  if (!config_.profile->memory_is_late) return memory_.Map(bytes, std::move(wanted), then);
  constexpr uint64_t kMostNs[] = {kPassNs, kMemoryNs / 10, kMemoryNs};
  const uint64_t most_ns = kMostNs[timeline_->random().Below(std::size(kMostNs))];
  Later(static_cast<int64_t>(timeline_->random().Below(most_ns)),
        [this, bytes, wanted = std::move(wanted), then = std::move(then)] {
          if (wanted.expired()) {
            return trace_->Reached("an aggregator's memory comes when nobody wants it any more");
          }
          Run([&] { memory_.Map(bytes, wanted, then); });
        });
}

void AggregatorProcess::Start() {
  life_.Start();
  Tick();
}

void AggregatorProcess::Drain() {
  Run([this] { life_.Shutdown("told to stop"); });
}

void AggregatorProcess::Tick() {
  Run([this] {
    const std::vector<const aggregation::AggregatorCore*> before = jobs();
    life_.Tick();
    if (jobs().size() < before.size()) trace_->Reached("a job that is over is collected");
    CheckCreditIsTold();
    CheckTokensAreSpent();
    CheckDepartedStayOut();
  });
  Later(kTickNs, [this] { Tick(); });
}

void AggregatorProcess::OnWake() { PollLater(kPassNs); }

void AggregatorProcess::PollLater(uint64_t most_ns) {
  if (std::exchange(poll_due_, true)) return;
  Later(static_cast<int64_t>(timeline_->random().Below(most_ns)), [this] { Poll(); });
}

void AggregatorProcess::Poll() {
  poll_due_ = false;
  trace_->SetSpeaker(&name_);
  data_plane_.Poll();
  NotePresent();
  CheckAfterwards();
  if (!data_plane_.PrepareToSleep()) PollLater(kSumNs);
}

void AggregatorProcess::Run(const std::function<void()>& act) {
  trace_->SetSpeaker(&name_);
  NotePresent();
  act();
  NotePresent();
  CheckAfterwards();
  if (!data_plane_.PrepareToSleep()) PollLater(kPassNs);
}

void AggregatorProcess::Strike(std::function<void()>& strike) {
  if (strike != nullptr) Later(network_->Delay() / 2, std::exchange(strike, nullptr));
}

template <typename Entry>
void AggregatorProcess::NoteSent(ConnectionId connection, const wire::Frame& frame,
                                 const Entry& entry) {
  const aggregation::AggregatorCore* const job = data_plane_.JobOf(connection);
  if constexpr (std::is_same_v<Entry, wire::Result>) Strike(at_danger_);
  if constexpr (std::is_same_v<Entry, wire::Decision>) {
    if (entry.verdict != wire::Verdict::kRedo) Strike(at_decision_);
  }
  if constexpr (std::is_same_v<Entry, wire::Welcome>) CheckOnlyOne(connection, entry);
  if constexpr (std::is_same_v<Entry, wire::Waiting>) CheckAbsence(*job, entry);
  if constexpr (std::is_same_v<Entry, wire::Declared>) CheckWriter(*job, connection, entry);
  if constexpr (std::is_same_v<Entry, wire::Failed>) {
    // Decide() poisons a tensor when reports are false, and when a round is lost. A member does
    // when its round needs somebody who has left.
    if (entry.code == wire::FailedCode::kAborted && !trace_->HasReached(kFalseReport) &&
        entry.text.find(kLostRound) == std::string::npos &&
        entry.text.find(kHasLeft) == std::string::npos) {
      throw Violation{name_ + ": " + std::string(entry.text)};
    }
    // The fault may come before all members are told.
    if (entry.code == wire::FailedCode::kAborted) Strike(at_decision_);
    if (entry.code == wire::FailedCode::kOverBudget) {
      const bool by_rule = entry.text.find("quotas_file") != std::string::npos;
      trace_->Reached(by_rule ? "a rule leaves no room for a tensor at an aggregator"
                              : "no memory for a tensor at an aggregator");
    }
  }
  if (!trace_->on()) return;
  trace_->Add(timeline_->now_ns(), name_,
              std::string("sends ") + wire::FrameTypeName(frame.header.type) + " in epoch " +
                  std::to_string(frame.header.epoch.value()) + Details(job, entry));
}

void AggregatorProcess::OnFramePosted(ConnectionId connection, std::span<const std::byte> bytes) {
  const auto parsed = wire::ParseFrame(bytes);
  const auto* frame = std::get_if<wire::Frame>(&parsed);
  if (frame == nullptr) {
    throw Violation{
        name_ + ": sends bytes that are not a frame: " + std::get<wire::ParseError>(parsed).text};
  }
  CheckCredit(connection, frame->header);
  if (trace_->on() && std::holds_alternative<std::monostate>(frame->entries)) {
    trace_->Add(timeline_->now_ns(), name_,
                std::string("sends ") + wire::FrameTypeName(frame->header.type) + " in epoch " +
                    std::to_string(frame->header.epoch.value()));
  }
  std::visit(
      [&](const auto& entries) {
        using Entries = std::decay_t<decltype(entries)>;
        if constexpr (!std::is_same_v<Entries, std::monostate>) {
          for (const auto& entry : entries) NoteSent(connection, *frame, entry);
        }
      },
      frame->entries);
}

void AggregatorProcess::OnEvent(ConnectionId connection, std::span<const std::byte> bytes,
                                bool is_end, const std::function<void()>& deliver) {
  NotePresent();
  const aggregation::AggregatorCore* const job = data_plane_.JobOf(connection);
  const auto parsed = wire::ParseFrame(bytes);
  const auto* frame = bytes.empty() ? nullptr : std::get_if<wire::Frame>(&parsed);
  if (!bytes.empty() && frame == nullptr && job != nullptr) {
    trace_->Reached("a frame does not parse");
  }
  if (is_end && job != nullptr && !job->reports_complete()) {
    for (uint32_t i = 0; i < job->members().size(); ++i) {
      if (job->HasReported(MemberIndex{i}) && job->members()[i].connection == connection) {
        trace_->Reached("a connection breaks after its member's report");
      }
    }
  }
  const auto deliver_noted = [&] {
    if (frame != nullptr) NoteReceived(connection, *frame);
    deliver();
  };
  const auto* contributions =
      frame == nullptr ? nullptr : std::get_if<std::vector<wire::Contribute>>(&frame->entries);
  if (job != nullptr && contributions != nullptr &&
      contributions->front().round == kConfusedRound) {
    DeliverConfused(*job, *frame, deliver_noted);
  } else {
    deliver_noted();
  }
  NotePresent();
  CheckAfterwards();
  if (is_end && job != nullptr) CheckForgotten(*job, connection);
}

// A slice is written inside the slots of one member; others may lie after them in the region.
void AggregatorProcess::OnLanding(wire::RemoteRef target, uint64_t bytes) {
  for (const aggregation::AggregatorCore* const job : jobs()) {
    for (const auto& [key, tensor] : job->tensors()) {
      for (const auto& [member, slots] : tensor.slots) {
        if (!slots.ref || slots.ref->key != target.key || target.address < slots.ref->address ||
            target.address >= slots.ref->address + slots.bytes) {
          continue;
        }
        const uint64_t cells = CellCount(slots.bytes) * kCellBytes;
        if (target.address + bytes <= slots.ref->address + cells) return;
        throw Violation{name_ + ": a contribution is written past its slots"};
      }
    }
  }
}

}  // namespace talweg::sim
