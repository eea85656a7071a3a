// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/aggregator_process.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tests/sim/agent_process.h"

namespace talweg::sim {
namespace {

constexpr uint64_t kRefusalsMax = 12;

template <typename Entry>
constexpr wire::FrameType TypeOf() {
  if constexpr (std::is_same_v<Entry, wire::Welcome>) return wire::FrameType::kWelcome;
  if constexpr (std::is_same_v<Entry, wire::Declared>) return wire::FrameType::kDeclared;
  if constexpr (std::is_same_v<Entry, wire::Decision>) return wire::FrameType::kDecision;
  if constexpr (std::is_same_v<Entry, wire::Refused>) return wire::FrameType::kRefused;
  if constexpr (std::is_same_v<Entry, wire::Failed>) return wire::FrameType::kFailed;
  if constexpr (std::is_same_v<Entry, wire::Waiting>) return wire::FrameType::kWaiting;
  return wire::FrameType::kFenceAck;
}

}  // namespace

AggregatorProcess::AggregatorProcess(Timeline* timeline, Trace* trace, Network* network,
                                     SchedulerProcess* scheduler, HostIndex host, uint32_t place,
                                     Incarnation incarnation, const Profile* profile)
    : timeline_(timeline),
      trace_(trace),
      network_(network),
      scheduler_(scheduler),
      host_(host),
      incarnation_(incarnation),
      name_("aggregator" + std::to_string(place)),
      profile_(profile),
      budget_(profile->aggregator_memory_bytes) {}

void AggregatorProcess::Later(int64_t delay_ns, std::function<void()> event) {
  timeline_->After(delay_ns, [this, life = network_->host(host_).life(), event = std::move(event)] {
    network_->host(host_).Deliver(life, event);
  });
}

void AggregatorProcess::Start() {
  Register();
  Tick();
}

void AggregatorProcess::Tick() {
  for (const auto& [job, core] : jobs_) {
    Run(job, [this](aggregation::Job& each, aggregation::Job::Effects& out) {
      each.OnTick(timeline_->now_ns(), out);
    });
  }
  std::erase_if(jobs_, [this](const auto& job) {
    if (!job.second->finished()) return false;
    trace_->Reached("a job that is over is collected");
    past_counters_.push_back(job.second->counters());
    return true;
  });
  Later(250 * kMillisecond, [this] { Tick(); });
}

void AggregatorProcess::Run(
    JobId job, const std::function<void(aggregation::Job&, aggregation::Job::Effects&)>& on) {
  const auto found = jobs_.find(job);
  if (found == jobs_.end()) return;
  aggregation::Job::Effects effects;
  const bool reports_were_complete = found->second->reports_complete();
  NotePresent(job);
  on(*found->second, effects);
  NotePresent(job);
  Perform(job, effects);
  if (!reports_were_complete && found->second->reports_complete()) CheckFenced(job);
  if (std::exchange(memory_changed_, false)) CheckMemory(job);
}

void AggregatorProcess::Perform(JobId job, aggregation::Job::Effects& effects) {
  for (aggregation::Effect& effect : effects) {
    std::visit(
        [&](auto& each) {
          using Each = std::decay_t<decltype(each)>;
          if constexpr (std::is_same_v<Each, aggregation::Send>) {
            SendEntry(job, each);
          } else if constexpr (std::is_same_v<Each, aggregation::ReturnCredit>) {
            wire::FrameWriter writer(wire::FrameType::kCredit, job, jobs_.at(job)->view().epoch);
            network_->SendFrame(host_, each.connection, writer.Take(each.bytes));
          } else if constexpr (std::is_same_v<Each, aggregation::ReleaseMemory>) {
            memory_.erase({job, each.id});
            memory_changed_ = true;
          } else if constexpr (std::is_same_v<Each, aggregation::StoreInline>) {
            const auto& entries = std::get<std::vector<wire::Contribute>>(frame_->entries);
            Cells& slots = *memory_.at({job, each.slots});
            StoreInlineCells(entries.at(each.entry_index).bytes,
                             slots.data() + each.offset_bytes / 64);
          } else if constexpr (std::is_same_v<Each, aggregation::Sum>) {
            const std::shared_ptr<Cells> result = memory_.at({job, each.result});
            std::vector<std::shared_ptr<Cells>> inputs;
            uint32_t ranks = 0;
            for (const aggregation::SumInput& input : each.inputs) {
              inputs.push_back(memory_.at({job, input.slots}));
              ranks += input.rank_count;
            }
            if (ranks != each.rank_count_total) throw Violation{name_ + ": a false divisor"};
            SumLater(job, each.id, [result, inputs, each] {
              const size_t first = each.offset_bytes / 64;
              for (size_t i = first; i < first + CellCount(each.length_bytes); ++i) {
                uint64_t sum = 0;
                for (const auto& input : inputs) sum = Combine(sum, (*input)[i]);
                (*result)[i] = sum;
              }
            });
          } else if constexpr (std::is_same_v<Each, aggregation::CopyResult>) {
            const std::shared_ptr<Cells> result = memory_.at({job, each.result});
            const std::shared_ptr<Cells> source = memory_.at({job, each.source});
            SumLater(job, each.id, [result, source, each] {
              const size_t first = each.offset_bytes / 64;
              std::copy_n(source->begin() + first, CellCount(each.length_bytes),
                          result->begin() + first);
            });
          } else if constexpr (std::is_same_v<Each, aggregation::CloseConnection>) {
            trace_->Add(timeline_->now_ns(), name_, "closes: " + each.reason);
            if (each.reason.find("contributions were refused") != std::string::npos) {
              trace_->Reached("a connection closed, as too much of it was refused");
            }
            network_->Close(host_, each.connection);
          } else {
            Perform(job, each);
          }
        },
        effect);
  }
}

std::string AggregatorProcess::TensorName(JobId job, TensorKey key) const {
  const auto& tensors = jobs_.at(job)->tensors();
  const auto tensor = tensors.find(key);
  return tensor != tensors.end() && tensor->second.agreed ? tensor->second.agreed->name
                                                          : "no tensor of ours";
}

template <typename Entry>
std::string AggregatorProcess::Details(JobId job, const Entry& entry) const {
  std::string text;
  if constexpr (requires { entry.key; }) text += ": " + TensorName(job, entry.key);
  if constexpr (requires { entry.round; }) {
    text += " round " + std::to_string(entry.round.value());
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
    if (!entry.text.empty()) text += ": " + entry.text;
  }
  return text;
}

void AggregatorProcess::SendEntry(JobId job, const aggregation::Send& send) {
  std::visit(
      [&](const auto& entry) {
        using Entry = std::decay_t<decltype(entry)>;
        wire::FrameWriter writer(TypeOf<Entry>(), job, send.epoch);
        if constexpr (!std::is_same_v<Entry, wire::FenceAck>) writer.Add(entry);
        if constexpr (std::is_same_v<Entry, wire::Decision>) {
          if (entry.verdict != wire::Verdict::kRedo) Strike(at_decision_);
        }
        if constexpr (std::is_same_v<Entry, wire::Welcome>) CheckOnlyOne(send.connection, entry);
        if constexpr (std::is_same_v<Entry, wire::Waiting>) CheckAbsence(job, entry);
        if constexpr (std::is_same_v<Entry, wire::Declared>) {
          CheckWriter(job, send.connection, entry);
        }
        if constexpr (std::is_same_v<Entry, wire::Failed>) {
          // Decide() poisons a tensor when reports are false, and when a round is lost.
          if (entry.code == wire::FailedCode::kAborted && !trace_->HasReached(kFalseReport) &&
              entry.text.find(kLostRound) == std::string::npos) {
            throw Violation{name_ + ": " + entry.text};
          }
          // Perhaps before it has told everybody.
          if (entry.code == wire::FailedCode::kAborted) Strike(at_decision_);
          if (entry.code == wire::FailedCode::kOverBudget) {
            trace_->Reached("no memory for a tensor at an aggregator");
          }
        }
        if (trace_->on()) {
          trace_->Add(timeline_->now_ns(), name_,
                      std::string("sends ") + wire::FrameTypeName(writer.type()) + " in epoch " +
                          std::to_string(send.epoch.value()) + Details(job, entry));
        }
        network_->SendFrame(host_, send.connection, writer.Take());
      },
      send.entry);
}

void AggregatorProcess::SumLater(JobId job, const aggregation::SumId& id,
                                 std::function<void()> work) {
  // One at a time, in the order in which they were asked for; the time of one is by chance.
  int64_t& free_ns = result_free_ns_[{job, aggregation::AllocationId{0}}];
  free_ns = std::max(free_ns, timeline_->now_ns()) +
            static_cast<int64_t>(timeline_->random().Below(100 * kMicrosecond));
  Later(free_ns - timeline_->now_ns(), [this, job, id, work = std::move(work)] {
    work();
    Run(job,
        [&](aggregation::Job& core, aggregation::Job::Effects& out) { core.OnSummed(id, out); });
  });
}

void AggregatorProcess::Strike(std::function<void()>& strike) {
  if (strike != nullptr) Later(network_->Delay() / 2, std::exchange(strike, nullptr));
}

void AggregatorProcess::Perform(JobId job, const aggregation::SendResult& send) {
  Strike(at_danger_);
  const size_t first = send.offset_bytes / 64;
  const size_t count = CellCount(send.length_bytes);
  wire::Result entry = send.entry;
  std::vector<std::byte> bytes;
  if (entry.form == wire::Form::kDisagreement) {
    entry.bytes = std::as_bytes(std::span(send.text));
  } else if (entry.form != wire::Form::kEmpty) {
    const std::shared_ptr<Cells> result = memory_.at({job, send.result});
    if (entry.form == wire::Form::kWritten) {
      const uint64_t context = next_write_++;
      writes_[context] = {job, send.write};
      network_->Write(
          host_, send.connection,
          [result, first, count] {
            return Cells(result->begin() + first, result->begin() + first + count);
          },
          send.target, context);
    } else {
      bytes.resize(send.length_bytes);
      for (size_t i = 0; i < count; ++i) {
        std::memcpy(bytes.data() + i * 64, &(*result)[first + i],
                    std::min<size_t>(sizeof(uint64_t), send.length_bytes - i * 64));
      }
      entry.bytes = bytes;
    }
  }
  if (trace_->on()) {
    trace_->Add(timeline_->now_ns(), name_,
                "sends Result in epoch " + std::to_string(send.epoch.value()) + ": " +
                    TensorName(job, entry.key) + " round " + std::to_string(entry.round.value()) +
                    " slice " + std::to_string(entry.slice.value()));
  }
  wire::FrameWriter writer(wire::FrameType::kResult, job, send.epoch);
  writer.Add(entry);
  network_->SendFrame(host_, send.connection, writer.Take());
}

void AggregatorProcess::Perform(JobId job, const aggregation::AllocateMemory& allocate) {
  const MemoryName name{job, allocate.id};
  memory_[name] = std::make_shared<Cells>(CellCount(allocate.bytes));
  memory_changed_ = true;
  const uint64_t key = (incarnation_.value() << 16) + next_region_++;
  regions_[key] = name;
  if (allocate.member) writers_[key] = *allocate.member;
  Later(static_cast<int64_t>(timeline_->random().Below(50 * kMicrosecond)), [this, name, key] {
    Run(name.first, [&](aggregation::Job& core, aggregation::Job::Effects& out) {
      core.OnAllocated(name.second, {key, 0}, out);
    });
  });
}

uint64_t AggregatorProcess::memory_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, cells] : memory_) bytes += cells->size() * 64;
  return bytes;
}

uint64_t* AggregatorProcess::Target(ConnectionId, wire::RemoteRef ref, uint64_t cells) {
  const auto region = regions_.find(ref.key);
  if (region == regions_.end()) return nullptr;
  const auto memory = memory_.find(region->second);
  if (memory == memory_.end()) return nullptr;
  if (ref.address % 64 != 0 || ref.address / 64 + cells > memory->second->size()) {
    throw Violation{name_ + ": a contribution is written past its slots"};
  }
  return memory->second->data() + ref.address / 64;
}

void AggregatorProcess::OnFrameBytes(ConnectionId connection, std::span<const std::byte> bytes) {
  const auto parsed = wire::ParseFrame(bytes);
  const auto* frame = std::get_if<wire::Frame>(&parsed);
  const auto known = connection_jobs_.find(connection);
  if (frame == nullptr) {
    if (known == connection_jobs_.end()) return network_->Close(host_, connection);
    trace_->Reached("a frame does not parse");
    return Run(known->second, [&](aggregation::Job& core, aggregation::Job::Effects& out) {
      core.OnUnreadable(connection, std::get<wire::ParseError>(parsed).text, out);
    });
  }
  const JobId job = known != connection_jobs_.end() ? known->second : frame->header.job;
  if (!jobs_.contains(job)) {
    if (frame->header.type != wire::FrameType::kHello) return;
    wire::FrameWriter writer(wire::FrameType::kWelcome, job, frame->header.epoch);
    writer.Add(wire::Welcome{.status = wire::WelcomeStatus::kUnknownJob,
                             .aggregator = incarnation_,
                             .text = "this job is not known here"});
    network_->SendFrame(host_, connection, writer.Take());
    return;
  }
  connection_jobs_[connection] = job;
  frame_ = frame;
  const auto deliver = [&] {
    Run(job, [&](aggregation::Job& core, aggregation::Job::Effects& out) {
      core.OnFrame(connection, *frame, timeline_->now_ns(), out);
    });
  };
  const auto* contributions = std::get_if<std::vector<wire::Contribute>>(&frame->entries);
  if (contributions != nullptr && contributions->front().round == kConfusedRound) {
    DeliverConfused(job, *frame, deliver);
  } else {
    deliver();
  }
  frame_ = nullptr;
}

void AggregatorProcess::OnLinkLost(ConnectionId connection, const std::string& reason) {
  trace_->Add(timeline_->now_ns(), name_, "lost a connection: " + reason);
  const auto job = connection_jobs_.find(connection);
  if (job == connection_jobs_.end()) return;
  CountLoss(job->second, connection);
  Run(job->second, [&](aggregation::Job& core, aggregation::Job::Effects& out) {
    core.OnDisconnect(connection, out);
  });
  CheckForgotten(job->second);
}

void AggregatorProcess::OnWriteLanded(ConnectionId, uint64_t context) {
  const auto found = writes_.find(context);
  if (found == writes_.end()) return;
  const auto [job, write] = found->second;
  writes_.erase(found);
  Run(job, [write = write](aggregation::Job& core, aggregation::Job::Effects& out) {
    core.OnWriteDone(write, out);
  });
}

void AggregatorProcess::OnAggregatorMessage(const membership::AggregatorMessage& message) {
  if (const auto* view = std::get_if<membership::JobView>(&message)) {
    const JobId id = view->view.job;
    if (!jobs_.contains(id)) {
      jobs_[id] = std::make_unique<aggregation::Job>(
          aggregation::JobConfig{.job = id,
                                 .name = view->job_name,
                                 .self = incarnation_,
                                 .self_name = name_,
                                 .credit_bytes = profile_->credit_bytes,
                                 .refusals_max = kRefusalsMax},
          &budget_);
    }
    trace_->Add(timeline_->now_ns(), name_,
                "view of epoch " + std::to_string(view->view.epoch.value()));
    Run(id, [&](aggregation::Job& core, aggregation::Job::Effects& out) {
      core.OnView(view->view, timeline_->now_ns(), out);
    });
  } else if (const auto* closed = std::get_if<membership::JobClosed>(&message)) {
    Run(closed->job, [&](aggregation::Job& core, aggregation::Job::Effects& out) {
      core.OnClosed(closed->text, timeline_->now_ns(), out);
    });
  }
}

}  // namespace talweg::sim
