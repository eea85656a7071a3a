// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/scale_members.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "libs/base/fingerprint.h"
#include "libs/pipeline/agent_core.h"
#include "libs/view/placement.h"

namespace talweg::sim {
namespace {

using wire::FrameType;

// The end of this step is where members let a node join.
constexpr uint64_t kStep = 2;

using PostFrame = std::function<void(std::shared_ptr<FrameInFlight>)>;

template <typename Entry>
void PostEntries(FrameType type, JobId job, Epoch epoch, const std::vector<Entry>& entries,
                 const PostFrame& post) {
  wire::FrameWriter writer(type, job, epoch);
  for (const Entry& entry : entries) {
    if (writer.Add(entry)) continue;
    post(std::make_shared<FrameInFlight>(writer.Take()));
    writer.Add(entry);
  }
  post(std::make_shared<FrameInFlight>(writer.Take()));
}

void PostBare(FrameType type, JobId job, Epoch epoch, const PostFrame& post) {
  post(std::make_shared<FrameInFlight>(wire::FrameWriter(type, job, epoch).Take()));
}

TensorKey KeyOf(const std::string& name) { return TensorKey{Fingerprint64(name)}; }
std::string NameOf(uint32_t tensor) { return "layer." + std::to_string(tensor) + ".weight"; }

// The core of a member, driven as its agent drives it.
class CoreMember final : public Participant {
 public:
  CoreMember(uint32_t index, const view::ViewMember& self, const ScaleOptions& options,
             const Collective& collective, const runtime::Clock* clock, Peers* peers)
      : index_(index),
        clock_(clock),
        peers_(peers),
        core_({.self = self.id, .job_name = kScaleJobName, .node_name = self.name}) {
    Do([&](pipeline::Effects& out) {
      core_.OnRankJoined(LocalRank{0}, 1, clock_->NowNs(), out);
      for (uint32_t i = 0; i < options.tensors; ++i) {
        core_.OnRankDeclare(LocalRank{0}, i + 1,
                            {.spec = {.name = NameOf(i), .collective = collective}},
                            clock_->NowNs(), out);
      }
    });
  }

  void OnView(std::shared_ptr<const view::View> view) override {
    ended_ = kStep - 1;
    Do([&](pipeline::Effects& out) { core_.OnView(*view, clock_->NowNs(), out); });
  }
  void OnQuiesce(uint64_t id, uint64_t step) override {
    Do([&](pipeline::Effects& out) { core_.OnQuiesce(id, step, clock_->NowNs(), out); });
  }
  void OnFrame(uint32_t aggregator, const wire::Frame& frame) override {
    const auto connection = connections_.find(aggregator);
    if (connection == connections_.end()) return;
    Do([&](pipeline::Effects& out) {
      core_.OnFrame(connection->second, frame, clock_->NowNs(), out);
    });
  }
  void Push() override {
    Do([&](pipeline::Effects& out) {
      for (const auto& tensor : core_.tensors()) {
        core_.OnPush(
            {.rank = LocalRank{0}, .tensor = tensor->index, .round = tensor->held.round.Next()},
            clock_->NowNs(), out);
      }
    });
  }
  std::optional<uint64_t> held() const override {
    if (core_.views().phase() != pipeline::Phase::kActive) return std::nullopt;
    std::optional<uint64_t> least;
    for (const auto& tensor : core_.tensors()) {
      if (!announced_.contains(tensor->index)) return std::nullopt;
      const uint64_t held = tensor->held.round.value();
      least = least ? std::min(*least, held) : held;
    }
    return least;
  }
  Epoch epoch() const override {
    return core_.views().present() == nullptr ? Epoch{0} : core_.views().present()->epoch;
  }

 private:
  template <typename Event>
  void Do(const Event& event) {
    pipeline::Effects effects;
    event(effects);
    Perform(effects);
    pipeline::Effects flushed;
    core_.Flush(clock_->NowNs(), flushed);
    Perform(flushed);
  }

  // Performs all effects first. Then it tells the core the events that follow from them at once.
  void Perform(const pipeline::Effects& effects) {
    pipeline::Effects more;
    std::vector<std::function<void()>> events;
    for (const pipeline::Effect& effect : effects) {
      if (const auto* connect = std::get_if<pipeline::Connect>(&effect)) {
        const view::View& view = *core_.views().newest();
        const uint32_t aggregator = view.IndexOfAggregator(connect->aggregator)->value();
        connections_[aggregator] = connect->connection;
        events.emplace_back([this, &more, connection = connect->connection] {
          core_.OnConnected(connection, clock_->NowNs(), more);
        });
      } else if (const auto* send = std::get_if<pipeline::Send>(&effect)) {
        Send(*send);
      } else if (const auto* allocate = std::get_if<pipeline::AllocateTensor>(&effect)) {
        events.emplace_back([this, &more, tensor = allocate->tensor] {
          core_.OnTensorAllocated(tensor, "", more);
        });
      } else if (const auto* reply = std::get_if<pipeline::DeclareReply>(&effect)) {
        announced_.insert(reply->tensor);
      } else if (const auto* stop = std::get_if<pipeline::StopRanks>(&effect)) {
        if (stop->steps != 0) continue;
        events.emplace_back([this, &more] {
          core_.OnRanksStop({ended_}, more);
          // The rank ends the step that it is in.
          core_.OnRankAtBoundary(LocalRank{0}, ++ended_, clock_->NowNs(), more);
        });
      } else if (const auto* quiesced = std::get_if<pipeline::Quiesced>(&effect)) {
        peers_->Quiesced(index_, quiesced->id, quiesced->step);
      }
    }
    if (events.empty()) return;
    for (const auto& event : events) event();
    Perform(more);
  }

  void Send(const pipeline::Send& send) {
    uint32_t aggregator = 0;
    for (const auto& [index, connection] : connections_) {
      if (connection == send.connection) aggregator = index;
    }
    const PostFrame post = [&](std::shared_ptr<FrameInFlight> frame) {
      peers_->ToAggregator(index_, aggregator, std::move(frame));
    };
    std::visit(
        [&](const auto& entries) {
          if constexpr (std::is_same_v<std::decay_t<decltype(entries)>, std::monostate>) {
            PostBare(send.type, send.job, send.epoch, post);
          } else {
            PostEntries(send.type, send.job, send.epoch, entries, post);
          }
        },
        send.entries);
  }

  const uint32_t index_;
  const runtime::Clock* const clock_;
  Peers* const peers_;
  pipeline::AgentCore core_;
  uint64_t ended_ = kStep - 1;
  std::map<uint32_t, ConnectionId> connections_;
  std::set<pipeline::TensorIndex> announced_;
};

// Sends what a core in its place sends, as long as nothing else goes wrong.
class StandIn final : public Participant {
 public:
  StandIn(uint32_t index, view::ViewMember self, const ScaleOptions& options,
          const Collective& collective, Peers* peers)
      : index_(index), self_(std::move(self)), collective_(collective), peers_(peers) {
    tensors_.resize(options.tensors);
    for (uint32_t i = 0; i < options.tensors; ++i) {
      tensors_[i].name = NameOf(i);
      tensors_[i].key = KeyOf(tensors_[i].name);
    }
  }

  void OnView(std::shared_ptr<const view::View> view) override {
    const bool is_first = view_ == nullptr;
    view_ = std::move(view);
    answered_ = 0;
    for (uint32_t i = 0; i < view_->aggregators.size(); ++i) {
      if (is_first) {
        Post(i, FrameType::kHello,
             std::vector{wire::Hello{.member = self_.id,
                                     .rank_count = 1,
                                     .view_digest = view::PlacementDigest(*view_),
                                     .job_name = kScaleJobName,
                                     .node_name = self_.name}});
      } else {
        PostBare(FrameType::kFence, view_->job, view_->epoch, To(i));
      }
    }
    for (Tensor& tensor : tensors_) {
      tensor.slices = view::Placement(*view_, tensor.key, collective_, {}).slices();
      tensor.primary = view::PrimaryOwner(*view_, tensor.key).value();
      tensor.owners = {tensor.primary};
      for (const view::Slice& slice : tensor.slices) tensor.owners.insert(slice.owner.value());
      tensor.owners_left = tensor.owners.size();
      tensor.awaits_decision = tensor.announced;
      tensor.sent = false;
      tensor.slices_left = tensor.slices.size();
    }
  }

  void OnQuiesce(uint64_t id, uint64_t step) override {
    peers_->Quiesced(index_, id, step == 0 ? kStep : step);
  }

  void OnFrame(uint32_t, const wire::Frame& frame) override {
    if (frame.header.epoch != view_->epoch) return;
    if (frame.header.type == FrameType::kWelcome || frame.header.type == FrameType::kFenceAck) {
      if (++answered_ == view_->aggregators.size()) Freeze();
    } else if (const auto* declared = std::get_if<std::vector<wire::Declared>>(&frame.entries)) {
      for (const wire::Declared& entry : *declared) {
        Tensor& tensor = Find(entry.key);
        --tensor.owners_left;
        if (tensor.announced) continue;
        // Owners have decided a round, so they know how many rounds of this tensor are held.
        tensor.held = std::max(tensor.held, entry.held.value());
        tensor.pushed = tensor.held;
        tensor.announced = tensor.owners_left == 0;
      }
    } else if (const auto* decided = std::get_if<std::vector<wire::Decision>>(&frame.entries)) {
      for (const wire::Decision& entry : *decided) Find(entry.key).awaits_decision = false;
    } else if (const auto* results = std::get_if<std::vector<wire::Result>>(&frame.entries)) {
      for (const wire::Result& entry : *results) {
        Tensor& tensor = Find(entry.key);
        tensor.held_epoch = entry.sum_epoch;
        if (--tensor.slices_left == 0) ++tensor.held;
      }
    }
    Flush();
  }

  void Push() override {
    for (Tensor& tensor : tensors_) {
      ++tensor.pushed;
      tensor.sent = false;
      tensor.slices_left = tensor.slices.size();
    }
    Flush();
  }

  std::optional<uint64_t> held() const override {
    uint64_t least = ~uint64_t{0};
    for (const Tensor& tensor : tensors_) {
      if (!tensor.announced || tensor.owners_left > 0 || tensor.awaits_decision)
        return std::nullopt;
      least = std::min(least, tensor.held);
    }
    return least;
  }
  Epoch epoch() const override { return view_ == nullptr ? Epoch{0} : view_->epoch; }

 private:
  struct Tensor {
    std::string name;
    TensorKey key;
    std::vector<view::Slice> slices;
    uint32_t primary = 0;
    std::set<uint32_t> owners;
    size_t owners_left = 0;  // How many have not agreed to it in this view.
    size_t slices_left = 0;  // How many of the open round's results are missing.
    uint64_t held = 0;
    Epoch held_epoch;
    uint64_t pushed = 0;
    bool announced = false;
    bool awaits_decision = false;
    bool sent = false;
  };

  PostFrame To(uint32_t aggregator) {
    return [this, aggregator](std::shared_ptr<FrameInFlight> frame) {
      peers_->ToAggregator(index_, aggregator, std::move(frame));
    };
  }
  template <typename Entry>
  void Post(uint32_t aggregator, FrameType type, const std::vector<Entry>& entries) {
    PostEntries(type, view_->job, view_->epoch, entries, To(aggregator));
  }
  Tensor& Find(TensorKey key) {
    return *std::find_if(tensors_.begin(), tensors_.end(),
                         [key](const Tensor& tensor) { return tensor.key == key; });
  }

  // What it holds can change no more. So it declares all tensors and reports.
  void Freeze() {
    const uint32_t rank = view_->RankBase(*view_->IndexOf(self_.id)).value();
    for (uint32_t i = 0; i < view_->aggregators.size(); ++i) {
      std::vector<wire::Declare> declares;
      std::vector<wire::Report> reports;
      for (const Tensor& tensor : tensors_) {
        if (tensor.owners.contains(i)) {
          declares.push_back(
              {.key = tensor.key, .name = tensor.name, .collective = collective_, .by_rank = rank});
        }
        if (!tensor.awaits_decision || tensor.primary != i) continue;
        reports.push_back({.key = tensor.key,
                           .held = Round{tensor.held},
                           .held_epoch = tensor.held_epoch,
                           .contributed = Round{tensor.pushed}});
      }
      if (!declares.empty()) Post(i, FrameType::kDeclare, declares);
      if (reports.empty()) {
        PostBare(FrameType::kReport, view_->job, view_->epoch, To(i));
      } else {
        Post(i, FrameType::kReport, reports);
      }
    }
  }

  void Flush() {
    std::map<uint32_t, std::vector<wire::Contribute>> contributions;
    for (Tensor& tensor : tensors_) {
      if (tensor.sent || tensor.pushed == tensor.held || !tensor.announced ||
          tensor.awaits_decision || tensor.owners_left > 0) {
        continue;
      }
      tensor.sent = true;
      for (uint32_t i = 0; i < tensor.slices.size(); ++i) {
        contributions[tensor.slices[i].owner.value()].push_back(
            {.key = tensor.key,
             .round = Round{tensor.pushed},
             .slice = SliceIndex{i},
             .rank_count = 1,
             .length_bytes = tensor.slices[i].length_bytes,
             .travel_bytes = tensor.slices[i].length_bytes});
      }
    }
    for (const auto& [owner, entries] : contributions) {
      Post(owner, FrameType::kContribute, entries);
    }
  }

  const uint32_t index_;
  const view::ViewMember self_;
  const Collective collective_;
  Peers* const peers_;
  std::shared_ptr<const view::View> view_;
  size_t answered_ = 0;
  std::vector<Tensor> tensors_;
};

}  // namespace

std::unique_ptr<Participant> MakeCoreMember(uint32_t index, const view::ViewMember& self,
                                            const ScaleOptions& options,
                                            const Collective& collective,
                                            const runtime::Clock* clock, Peers* peers) {
  return std::make_unique<CoreMember>(index, self, options, collective, clock, peers);
}

std::unique_ptr<Participant> MakeStandIn(uint32_t index, const view::ViewMember& self,
                                         const ScaleOptions& options, const Collective& collective,
                                         Peers* peers) {
  return std::make_unique<StandIn>(index, self, options, collective, peers);
}

}  // namespace talweg::sim
