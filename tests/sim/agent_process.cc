// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/agent_process.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "libs/base/dtype.h"
#include "libs/base/random.h"

namespace talweg::sim {
namespace {

// Inline payloads carry cells as bytes: a cell at every 64th, cut short at the end.
std::vector<std::byte> BytesOf(const Cells& cells, size_t first, uint32_t length_bytes) {
  std::vector<std::byte> bytes(length_bytes);
  for (size_t i = 0; i * 64 < length_bytes; ++i) {
    std::memcpy(bytes.data() + i * 64, &cells[first + i],
                std::min<size_t>(sizeof(uint64_t), length_bytes - i * 64));
  }
  return bytes;
}

}  // namespace

void StoreInlineCells(std::span<const std::byte> bytes, uint64_t* cells) {
  for (size_t i = 0; i * 64 < bytes.size(); ++i) {
    uint64_t cell = 0;
    std::memcpy(&cell, bytes.data() + i * 64, std::min<size_t>(sizeof cell, bytes.size() - i * 64));
    cells[i] = cell;
  }
}

AgentProcess::AgentProcess(Timeline* timeline, Trace* trace, Network* network,
                           SchedulerProcess* scheduler, std::map<JobId, Ledger>* ledgers,
                           HostIndex host, const Config& config)
    : timeline_(timeline),
      trace_(trace),
      network_(network),
      scheduler_(scheduler),
      ledgers_(ledgers),
      host_(host),
      config_(config),
      name_(config.job_name + "/agent" + std::to_string(config.node) + "." +
            std::to_string(config.incarnation.value() % 1000)),
      core_({.self = {NodeRank{config.node}, config.incarnation},
             .job_name = config.job_name,
             .node_name = name_,
             .rank_count = config.rank_count,
             .reduce_bytes_max = 16384,
             .unreachable_ns = config.profile->unreachable_ns}),
      ranks_(config.rank_count) {
  for (RankProcess& rank : ranks_) rank.tensors.resize(config.profile->tensors.size());
}

void AgentProcess::Start() {
  for (uint32_t rank = 0; rank < config_.rank_count; ++rank) {
    Run([&](pipeline::Effects& out) {
      core_.OnRankJoined(LocalRank{rank}, 100 + rank, timeline_->now_ns(), out);
    });
  }
  // Ranks of a node may need a while longer to start than their agent.
  Random random(config_.incarnation.value());
  if (random.OneIn(2)) {
    ranks_attached_ = true;
  } else {
    timeline_->After(random.Below(400) * kMillisecond, [this, life = network_->host(host_).life()] {
      network_->host(host_).Deliver(life, [this] { AttachRanks(); });
    });
  }
  Join();
  Tick();
}

void AgentProcess::Tick() {
  CheckTold();
  Run([this](pipeline::Effects& out) { core_.OnTick(timeline_->now_ns(), out); });
  const int64_t next = std::max(core_.NextTickNs(), timeline_->now_ns() + 10 * kMillisecond);
  timeline_->At(std::min(next, timeline_->now_ns() + kSecond),
                [this, life = network_->host(host_).life()] {
                  network_->host(host_).Deliver(life, [this] { Tick(); });
                });
}

void AgentProcess::Run(const std::function<void(pipeline::Effects&)>& event) {
  queued_.push_back(event);
  if (running_) return;
  running_ = true;
  while (!queued_.empty()) {
    const std::vector<std::function<void(pipeline::Effects&)>> events = std::move(queued_);
    queued_.clear();
    for (const auto& each : events) {
      pipeline::Effects effects;
      each(effects);
      Perform(effects);
    }
  }
  running_ = false;
  core_.CheckInvariants();
  NoteConnected();
  for (const auto& tensor : core_.tensors()) {
    if (!tensor->contributed || ledger_ == nullptr) continue;
    ledger_->OnContributed(tensor->key, tensor->open_round());
  }
  if (const View* const view = core_.newest_view(); view != nullptr) {
    if (view->epoch < epoch_) throw Violation{name_ + ": its epoch went back"};
    epoch_ = view->epoch;
  }
  if (std::exchange(flush_due_, true)) return;
  // A batch of events, then one flush, as the agent's duty cycle has it.
  timeline_->After(static_cast<int64_t>(timeline_->random().Below(20 * kMicrosecond)),
                   [this, life = network_->host(host_).life()] {
                     network_->host(host_).Deliver(life, [this] {
                       flush_due_ = false;
                       pipeline::Effects effects;
                       core_.Flush(timeline_->now_ns(), effects);
                       Perform(effects);
                     });
                   });
}

void AgentProcess::NoteConnected() {
  const bool is_connected =
      !core_.owners().empty() &&
      std::all_of(core_.owners().begin(), core_.owners().end(), [](const auto& owner) {
        return owner.second.state == pipeline::OwnerState::kReady;
      });
  if (!is_connected) {
    connected_since_ns_.reset();
  } else if (!connected_since_ns_) {
    connected_since_ns_ = timeline_->now_ns();
  }
}

bool AgentProcess::ConnectedAtBothEnds() const {
  return connected_since_ns_ &&
         std::all_of(core_.owners().begin(), core_.owners().end(), [this](const auto& owner) {
           return network_->BothEndsOpen(host_, owner.second.connection);
         });
}

void AgentProcess::Perform(pipeline::Effects& effects) {
  for (pipeline::Effect& effect : effects) {
    std::visit(
        [this](auto& each) {
          using Each = std::decay_t<decltype(each)>;
          if constexpr (std::is_same_v<Each, pipeline::Connect>) {
            const auto to = static_cast<HostIndex>(std::stoul(each.data_address));
            network_->Connect(host_, each.connection, to);
          } else if constexpr (std::is_same_v<Each, pipeline::Close>) {
            trace_->Add(timeline_->now_ns(), name_, "closes: " + each.reason);
            network_->Close(host_, each.connection);
          } else if constexpr (std::is_same_v<Each, pipeline::DeclareReply>) {
            OnDeclareReply(each);
          } else if constexpr (std::is_same_v<Each, pipeline::CompleteRound>) {
            OnCompleted(each);
          } else if constexpr (std::is_same_v<Each, pipeline::FailTensor>) {
            OnTensorFailed(each);
          } else if constexpr (std::is_same_v<Each, pipeline::FailRank>) {
            if (!ranks_[each.local_rank.value()].confused) {
              throw Violation{name_ + ": a rank that keeps the rules is refused: " + each.text};
            }
            trace_->Reached("a rank that pushes what it may not is disconnected");
            FailRankWith(each.local_rank, each.text);
          } else if constexpr (std::is_same_v<Each, pipeline::FailJob>) {
            OnFailed(each.text);
          } else if constexpr (std::is_same_v<Each, pipeline::ReportLost>) {
            Report(each);
          } else if constexpr (std::is_same_v<Each, pipeline::Quiesced>) {
            ConfirmQuiesced(membership::QuiesceId{each.id}, each.step);
          } else if constexpr (std::is_same_v<Each, pipeline::RanksDone>) {
            pipeline::Effects leave;
            const bool failed = core_.phase() == pipeline::Phase::kFailed;
            core_.Leave(leave);
            Perform(leave);
            LeaveJob(failed ? membership::LeaveReason::kStopped
                            : membership::LeaveReason::kFinished);
          } else if constexpr (std::is_same_v<Each, pipeline::LogWaiting>) {
            trace_->Add(timeline_->now_ns(), name_, "waits");
          } else if constexpr (std::is_same_v<Each, pipeline::Log>) {
            trace_->Add(timeline_->now_ns(), name_, each.text);
          } else {
            Perform(each);
          }
        },
        effect);
  }
}

void AgentProcess::OnTensorFailed(const pipeline::FailTensor& failed) {
  const auto says = [&](const char* words) { return failed.text.find(words) != std::string::npos; };
  if (failed.text.empty()) throw Violation{name_ + ": a tensor failed without a reason"};
  if (ledger_ != nullptr) ledger_->OnTensorFailed();
  const bool is_mismatch = failed.status == pipeline::Status::kMismatch;
  // What nobody may declare, and what is reported falsely, has one side.
  const bool has_one_side = says(" of rank ") || trace_->HasReached(kFalseReport);
  if (is_mismatch && !has_one_side && !(says(" declared ") && says(" declares "))) {
    throw Violation{name_ + ": a disagreement that does not name both sides: " + failed.text};
  }
  if (failed.status == pipeline::Status::kAborted) {
    trace_->Reached("a tensor fails, as its root is gone or reports were false");
  }
  if (says("there is no rank")) trace_->Reached("a broadcast from a rank that is not there");
  const TensorKey key = memory_.at(failed.tensor).key;
  if (says(kLostRound))
    trace_->Reached("a round is lost, as some members hold what others were to get");
  if (failed.status == pipeline::Status::kAborted && !trace_->HasReached(kFalseReport)) {
    for (size_t place = 0; place < plans_.size(); ++place) {
      if (plans_[place]->name() != memory_.at(failed.tensor).spec.name) continue;
      ledger_->OnDead(key, {.last = core_.FindTensor(key)->open_round(),
                            .member = core_.config().self,
                            .epoch = core_.view()->epoch,
                            .needed = NeededBy(place)});
    }
  }
  const bool goes_on = config_.profile->has_groups && failed.status == pipeline::Status::kAborted &&
                       timeline_->random().OneIn(2);
  if (goes_on) {
    trace_->Reached("a trainer goes on without a tensor that is dead");
    GoOnWithout(failed.tensor);
  }
  for (uint32_t rank = 0; rank < ranks_.size() && !goes_on; ++rank) {
    FailRankWith(LocalRank{rank}, "tensor " + std::to_string(key.value()) + failed.text,
                 is_mismatch);
  }
  // One that had not heard of it yet has pushed the next round.
  timeline_->After(network_->Delay(), [this, key, life = network_->host(host_).life()] {
    network_->host(host_).Deliver(life, [this, key] {
      const pipeline::Tensor& tensor = *core_.FindTensor(key);
      if (core_.phase() == pipeline::Phase::kFailed || !tensor.announced) return;
      trace_->Reached("a push of a tensor that has failed");
      Run([&](pipeline::Effects& out) {
        core_.OnPush({.rank = LocalRank{0}, .tensor = tensor.index, .round = tensor.open_round()},
                     timeline_->now_ns(), out);
      });
    });
  });
}

void AgentProcess::OnFailed(const std::string& text) {
  if (text.empty()) throw Violation{name_ + ": the job failed here without a reason"};
  trace_->Add(timeline_->now_ns(), name_, "job failed: " + text);
  // Words that one daemon has for another that breaks the protocol.
  static constexpr std::pair<const char*, const char*> kBlames[] = {
      {" decided to ", "the job fails: a decision contradicts what is known here"},
      {"refused a contribution", "the job fails: a contribution was refused that a round hangs on"},
      {"ranks into slice", "the job fails: two slices of sums of different ranks"},
      {"cannot be used", "the job fails: a view that cannot be used"},
      {"has another view", "the job fails: a Welcome speaks of another view"}};
  for (const auto& [words, point] : kBlames) {
    if (text.find(words) == std::string::npos) continue;
    if (!trace_->HasReached(kForged)) throw Violation{name_ + ": " + text};
    trace_->Reached(point);
  }
  CheckGivenUp(text);
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) FailRankWith(LocalRank{rank}, text);
}

std::shared_ptr<Cells> AgentProcess::MemoryOf(const pipeline::SliceBytes& bytes) {
  const TensorMemory& memory = memory_.at(bytes.tensor);
  switch (bytes.memory) {
    case pipeline::Memory::kContribution: return memory.contributions[0];
    case pipeline::Memory::kSendBuffer: return memory.send;
    case pipeline::Memory::kResult: return memory.results[bytes.round.value() & 1];
  }
  throw Violation{name_ + ": memory of no kind"};
}

// What a frame says, for the trace.
std::string AgentProcess::Details(const pipeline::Send& send) const {
  std::string text;
  const auto add = [&](TensorKey key, const std::string& what) {
    text += (text.empty() ? ": " : ", ") + core_.FindTensor(key)->spec.name + what;
  };
  if (const auto* contributions = std::get_if<std::vector<wire::Contribute>>(&send.entries)) {
    for (const wire::Contribute& entry : *contributions) {
      add(entry.key, " round " + std::to_string(entry.round.value()) + " slice " +
                         std::to_string(entry.slice.value()) +
                         (entry.form == wire::Form::kEmpty ? " (empty)" : ""));
    }
  } else if (const auto* declares = std::get_if<std::vector<wire::Declare>>(&send.entries)) {
    for (const wire::Declare& entry : *declares) add(entry.key, "");
  } else if (const auto* reports = std::get_if<std::vector<wire::Report>>(&send.entries)) {
    for (const wire::Report& entry : *reports) {
      add(entry.key, " holds " + std::to_string(entry.held.value()) + ", contributed to " +
                         std::to_string(entry.contributed.value()));
    }
  } else if (const auto* failed = std::get_if<std::vector<wire::Failed>>(&send.entries)) {
    for (const wire::Failed& entry : *failed) add(entry.key, ": " + entry.text);
  }
  return text;
}

void AgentProcess::Perform(pipeline::Send& send) {
  if (trace_->on()) {
    trace_->Add(timeline_->now_ns(), name_,
                std::string("sends ") + wire::FrameTypeName(send.type) + " in epoch " +
                    std::to_string(send.epoch.value()) + Details(send));
  }
  CheckCredit(send);
  CheckFenced(send);
  std::vector<std::vector<std::byte>> payloads(send.sources.size());
  if (auto* declares = std::get_if<std::vector<wire::Declare>>(&send.entries)) {
    for (size_t i = 0; i < declares->size(); ++i) {
      const TensorMemory& memory = memory_.at(send.tensors.at(i));
      for (int parity = 0; parity < 2; ++parity) {
        (*declares)[i].result[parity] = {memory.region_keys[parity], 0};
      }
    }
  } else if (auto* reports = std::get_if<std::vector<wire::Report>>(&send.entries)) {
    if (std::exchange(lies_, false)) {
      trace_->Reached(kFalseReport);
      reports->front().contributed = Round{reports->front().held.value() + 7};
    }
  } else if (auto* entries = std::get_if<std::vector<wire::Contribute>>(&send.entries)) {
    for (size_t i = 0; i < entries->size(); ++i) {
      CheckTravels((*entries)[i]);
      if ((*entries)[i].form == wire::Form::kDisagreement) {
        (*entries)[i].bytes = std::as_bytes(std::span(send.texts.at(i)));
      }
      if ((*entries)[i].form != wire::Form::kInline) continue;
      const pipeline::SliceBytes& source = send.sources.at(i);
      payloads[i] = BytesOf(*MemoryOf(source), source.offset_bytes / 64, source.length_bytes);
      (*entries)[i].bytes = payloads[i];
    }
  }
  std::vector<std::vector<std::byte>> frames;
  wire::FrameWriter writer(send.type, send.job, send.epoch);
  std::visit(
      [&](auto& entries) {
        using Each = std::decay_t<decltype(entries)>;
        if constexpr (!std::is_same_v<Each, std::monostate>) {
          for (size_t i = 0; i < entries.size();) {
            wire::FrameWriter part(send.type, send.job, send.epoch,
                                   send.type == wire::FrameType::kReport ? wire::kFlagMore : 0);
            const size_t first = i;
            while (i < entries.size() && part.Add(entries[i])) ++i;
            if (i == entries.size() && send.type == wire::FrameType::kReport) {
              // The last frame of a report says so.
              for (size_t j = first; j < i; ++j) writer.Add(entries[j]);
              frames.push_back(writer.Take());
            } else {
              frames.push_back(part.Take());
            }
          }
        }
      },
      send.entries);
  if (frames.empty()) frames.push_back(writer.Take());
  for (std::vector<std::byte>& frame : frames) {
    if (send.type == wire::FrameType::kReport) reports_sent_[send.connection] = frame;
    if (send.type == wire::FrameType::kContribute &&
        config_.profile->fault_weights[static_cast<int>(Fault::kConfuseAgent)] > 0) {
      contributions_sent_.emplace_back(send.connection, frame);
      if (contributions_sent_.size() > 8) contributions_sent_.pop_front();
    }
    network_->SendFrame(host_, send.connection, std::move(frame));
  }
}

// Rule 9: no more is under way than was granted, but for one contribution.
void AgentProcess::CheckCredit(const pipeline::Send& send) {
  const auto* entries = std::get_if<std::vector<wire::Contribute>>(&send.entries);
  std::optional<uint64_t>& in_flight = in_flight_[send.connection];
  if (entries == nullptr || !in_flight) return;
  for (size_t i = 0; i < entries->size(); ++i) {
    const uint64_t cost = wire::CreditCost((*entries)[i].form, send.sources.at(i).length_bytes);
    if (*in_flight > 0 && cost > 0 && *in_flight + cost > config_.profile->credit_bytes) {
      throw Violation{name_ + ": " + std::to_string(*in_flight + cost) + " bytes are under way, " +
                      std::to_string(config_.profile->credit_bytes) + " were granted"};
    }
    *in_flight += cost;
  }
}

// Rule 1: whoever reports for an epoch has stopped every writer of older ones.
void AgentProcess::CheckFenced(const pipeline::Send& send) {
  if (send.type != wire::FrameType::kReport || send.epoch <= epoch_reported_) return;
  epoch_reported_ = send.epoch;
  if (!network_->WritesUnderWayTo(host_, [](ConnectionId) { return true; })) return;
  throw Violation{name_ + ": reports for epoch " + std::to_string(send.epoch.value()) +
                  " while results of an older one are landing"};
}

// Which row of the table of decisions this is.
void AgentProcess::CheckDecision(const wire::Decision& decision) {
  const pipeline::Tensor* const tensor = core_.FindTensor(decision.key);
  if (tensor == nullptr) return;
  if (!tensor->awaits_decision) return trace_->Reached("a decision arrives twice");
  const bool is_held = tensor->held.round == decision.round;
  if (decision.verdict == wire::Verdict::kAbort) {
    trace_->Reached(is_held ? "decision: abort, as it had been aborted before"
                    : tensor->spec.collective.needs_every_rank()
                        ? "decision: abort, as one of the ranks is gone"
                        : "decision: abort, as the root is gone");
  } else if (decision.verdict == wire::Verdict::kFinish) {
    if (is_held) trace_->Reached("decision: finish, as somebody holds the round");
    const bool is_spread = std::any_of(decision.sources.begin(), decision.sources.end(),
                                       [&](uint16_t s) { return s != decision.sources.front(); });
    if (is_spread) trace_->Reached("decision: finish, as several members' slices cover it");
  } else if (tensor->partial.have_count > 0) {
    trace_->Reached("decision: redo, slices that somebody has are discarded");
  }
}

void AgentProcess::Perform(const pipeline::WriteSlice& write) {
  const std::shared_ptr<Cells> memory = MemoryOf(write.source);
  const size_t first = write.source.offset_bytes / 64;
  const size_t count = CellCount(write.source.length_bytes);
  network_->Write(
      host_, write.connection,
      [memory, first, count] {
        return Cells(memory->begin() + first, memory->begin() + first + count);
      },
      write.target, 0);
}

void AgentProcess::Perform(const pipeline::ReduceSlice& reduce) {
  if (reduce.is_final && core_.view()->members.size() > 1) {
    trace_->Reached("a slice that only one node has to do with");
  }
  timeline_->After(static_cast<int64_t>(timeline_->random().Below(50 * kMicrosecond)),
                   [this, reduce, life = network_->host(host_).life()] {
                     network_->host(host_).Deliver(life, [this, reduce] {
                       if (!core_.ReduceWanted(reduce.ticket)) return;
                       const TensorMemory& memory = memory_.at(reduce.target.tensor);
                       Cells& target = *MemoryOf(reduce.target);
                       const size_t first = reduce.target.offset_bytes / 64;
                       for (size_t i = first; i < first + CellCount(reduce.target.length_bytes);
                            ++i) {
                         uint64_t sum = 0;
                         for (const LocalRank rank : reduce.inputs) {
                           sum = Combine(sum, (*memory.contributions[rank.value()])[i]);
                         }
                         target[i] = sum;
                       }
                       Run([&](pipeline::Effects& out) {
                         core_.OnReduced(reduce.ticket, timeline_->now_ns(), out);
                       });
                     });
                   });
}

void AgentProcess::Perform(const pipeline::CopyInline& copy) {
  const auto& results = std::get<std::vector<wire::Result>>(frame_->entries);
  StoreInlineCells(results.at(copy.entry).bytes,
                   MemoryOf(copy.target)->data() + copy.target.offset_bytes / 64);
}

void AgentProcess::Perform(const pipeline::CopyOwn& copy) {
  trace_->Reached("what a node gives is copied there");
  const Cells& source = *MemoryOf(copy.source);
  pipeline::SliceBytes target = copy.source;
  target.memory = pipeline::Memory::kResult;
  const auto first = static_cast<ptrdiff_t>(target.offset_bytes / 64);
  std::copy_n(source.begin() + first, CellCount(target.length_bytes),
              MemoryOf(target)->begin() + first);
}

void AgentProcess::Perform(const pipeline::SliceArrived& arrived) {
  const pipeline::SliceBytes& slice = arrived.result;
  TensorMemory& memory = memory_.at(slice.tensor);
  const uint32_t part = memory.spec.collective.part_at(slice.offset_bytes);
  for (size_t place = 0; place < plans_.size(); ++place) {
    const bool is_it = memory.spec.name == plans_[place]->name();
    if (is_it && !Gets(place, part)) {
      throw Violation{name_ + ": gets part " + std::to_string(part) + " of " + memory.spec.name +
                      ", which no rank here gets"};
    }
  }
  if (memory.arriving.round != slice.round) {
    memory.arriving = {slice.round, 0, std::make_shared<Cells>(CellCount(memory.spec.bytes()))};
  }
  // At once: what changes later is found out.
  const auto first = static_cast<ptrdiff_t>(slice.offset_bytes / 64);
  const auto count = static_cast<ptrdiff_t>(CellCount(slice.length_bytes));
  const Cells& result = *MemoryOf(slice);
  std::copy(result.begin() + first, result.begin() + first + count,
            memory.arriving.cells->begin() + first);
  memory.arriving.bytes += slice.length_bytes;
}

void AgentProcess::Perform(const pipeline::AllocateTensor& allocate) {
  TensorMemory& memory = memory_[allocate.tensor];
  memory.key = TensorKey{Fingerprint64(allocate.spec.name)};
  memory.spec = allocate.spec;
  const uint64_t cells = CellCount(allocate.spec.bytes());
  for (uint32_t rank = 0; rank < config_.rank_count; ++rank) {
    memory.contributions.push_back(std::make_shared<Cells>(cells));
  }
  memory.send = std::make_shared<Cells>(cells);
  for (int parity = 0; parity < 2; ++parity) {
    memory.results[parity] = std::make_shared<Cells>(cells);
    memory.region_keys[parity] = (config_.incarnation.value() << 16) + next_region_++;
    regions_[memory.region_keys[parity]] = {allocate.tensor, parity};
  }
  const bool is_short = config_.profile->agent_memory_is_short && timeline_->random().OneIn(4);
  if (is_short) trace_->Reached("no memory for a tensor at an agent");
  Run([this, is_short, index = allocate.tensor](pipeline::Effects& out) {
    core_.OnTensorAllocated(index, is_short ? "not enough memory" : "", timeline_->now_ns(), out);
  });
}

CellTarget AgentProcess::Target(ConnectionId, wire::RemoteRef ref, uint64_t cells) {
  const auto region = regions_.find(ref.key);
  if (region == regions_.end()) return {};
  Cells& memory = *memory_.at(region->second.first).results[region->second.second];
  if (ref.address % 64 != 0 || ref.address / 64 + cells > memory.size()) {
    throw Violation{name_ + ": a result is written past its region"};
  }
  return {.first = memory.data() + ref.address / 64};
}

void AgentProcess::OnFrameBytes(ConnectionId connection, std::span<const std::byte> bytes) {
  const auto parsed = wire::ParseFrame(bytes);
  const auto* frame = std::get_if<wire::Frame>(&parsed);
  if (frame == nullptr) throw Violation{name_ + ": " + std::get<wire::ParseError>(parsed).text};
  if (std::optional<uint64_t>& in_flight = in_flight_[connection]; in_flight) {
    *in_flight -= std::min(*in_flight, frame->header.credit_bytes);
  }
  if (frame->header.type == wire::FrameType::kWelcome ||
      frame->header.type == wire::FrameType::kFenceAck) {
    in_flight_[connection] = 0;
  }
  if (const auto* decisions = std::get_if<std::vector<wire::Decision>>(&frame->entries)) {
    if (std::exchange(forges_decision_, false)) ForgeDecision(connection, *frame, *decisions);
    for (const wire::Decision& decision : *decisions) CheckDecision(decision);
  }
  if (const auto* welcomes = std::get_if<std::vector<wire::Welcome>>(&frame->entries)) {
    const wire::WelcomeStatus status = welcomes->front().status;
    if (status == wire::WelcomeStatus::kUnknownJob)
      trace_->Reached("refused: the job is not known");
    if (status == wire::WelcomeStatus::kNotInView)
      trace_->Reached("refused: not in the view there");
  }
  if (const auto* failed = std::get_if<std::vector<wire::Failed>>(&frame->entries)) {
    for (const wire::Failed& entry : *failed) {
      ledger_->OnTensorFailed();
      if (entry.code != wire::FailedCode::kMismatch) continue;
      ledger_->OnDisagreement(entry.key, frame->header.epoch, timeline_->now_ns());
    }
  }
  frame_ = frame;
  Run([&](pipeline::Effects& out) { core_.OnFrame(connection, *frame, timeline_->now_ns(), out); });
  frame_ = nullptr;
}

void AgentProcess::OnLinkOpen(ConnectionId connection) {
  Run([&](pipeline::Effects& out) { core_.OnConnected(connection, timeline_->now_ns(), out); });
}

void AgentProcess::OnLinkLost(ConnectionId connection, const std::string& reason) {
  trace_->Add(timeline_->now_ns(), name_, "lost a connection: " + reason);
  trace_->Reached("an agent's connection breaks");
  Run([&](pipeline::Effects& out) {
    core_.OnDisconnected(connection, reason, timeline_->now_ns(), out);
  });
}

}  // namespace talweg::sim
