// SPDX-License-Identifier: Apache-2.0
//
// Sends any requests in any order, with values from a small range so that they often match. No
// peer's message may reach a CHECK, and nobody may hear of a view that is not stored.
#include "libs/membership/scheduler_core.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace talweg::membership {
namespace {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), end_(data + size) {}
  bool empty() const { return data_ == end_; }
  uint8_t Byte() { return empty() ? 0 : *data_++; }
  // Returns a number that is mostly small, and sometimes near the end of its range.
  uint64_t Number() {
    const uint8_t byte = Byte();
    return byte < 250 ? byte % 16 : ~uint64_t{0} - (byte - 250);
  }

 private:
  const uint8_t* data_;
  const uint8_t* const end_;
};

class World {
 public:
  World() { Restart(); }

  void Step(Input& input) {
    now_ns_ += int64_t{input.Byte()} * 5'000'000;
    switch (input.Byte() % 14) {
      case 0:
      case 1: core_->OnJoin(Join(input), now_ns_, out_); break;
      case 2: core_->OnRenew(From(input), Ranks(input), now_ns_, out_); break;
      case 3:
        core_->OnLeave(From(input), LeaveReason{static_cast<uint8_t>(input.Byte() % 3)}, "x",
                       now_ns_, out_);
        break;
      case 4: core_->OnReportLost(From(input), Lost_(input), "x", now_ns_, out_); break;
      case 5:
        core_->OnQuiesced({Job(input), Id(input)},
                          QuiesceId{(core_->start_count() << 32) + input.Number()}, input.Number(),
                          now_ns_, out_);
        break;
      case 6:
      case 7:
        core_->OnMemberAttached(StreamId{++stream_count_}, From(input), Ranks(input), now_ns_,
                                out_);
        break;
      case 8:
        core_->OnRegister({.incarnation = Incarnation{input.Number()},
                           .name = std::string(1, static_cast<char>('a' + input.Byte() % 3)),
                           .weight = static_cast<uint32_t>(input.Number()),
                           .data_address = "x"},
                          {}, now_ns_, out_);
        break;
      case 9: core_->OnRenewAggregator({Incarnation{input.Number()}}, now_ns_, out_); break;
      case 10:
        core_->OnDeregister({Incarnation{input.Number()}}, input.Byte() % 2 == 0, "x", now_ns_,
                            out_);
        break;
      case 11:
        core_->OnAggregatorAttached(StreamId{++stream_count_}, {Incarnation{input.Number()}},
                                    {{Job(input), Epoch{input.Number()}}}, now_ns_, out_);
        break;
      case 12: core_->OnStreamBroken(StreamId{input.Byte()}, now_ns_, out_); break;
      case 13:
        if (input.Byte() % 8 == 0) {
          Restart();
        } else {
          core_->OnTick(now_ns_, out_);
        }
        break;
    }
    Perform();
  }

 private:
  static JobId Job(Input& input) { return JobId{input.Number()}; }
  static view::MemberIdentity Id(Input& input) {
    const auto node = static_cast<uint32_t>(input.Number() % 4);
    return {NodeRank{node}, Incarnation{input.Number()}};
  }
  static Caller From(Input& input) {
    Caller caller;
    caller.job = Job(input);
    caller.id = Id(input);
    caller.held = Epoch{input.Number()};
    return caller;
  }
  // One byte gives all three values: each is one digit of base 3.
  static RanksWord Ranks(Input& input) {
    uint8_t words = input.Byte();
    const auto next = [&words] {
      const int word = std::exchange(words, words / 3) % 3;
      return word == 2 ? std::nullopt : std::optional(word == 1);
    };
    RanksWord ranks;
    ranks.attached = next();
    ranks.ready = next();
    ranks.have_state = next();
    return ranks;
  }
  static Lost Lost_(Input& input) {
    switch (input.Byte() % 3) {
      case 0: return LostRank{Rank{input.Byte()}};
      case 1: return LostMember{Id(input)};
      default: return LostAggregator{Incarnation{input.Number()}};
    }
  }
  static JoinRequest Join(Input& input) {
    JoinRequest request{.job_name = std::string(1, static_cast<char>('a' + input.Byte() % 2))};
    request.spec.min_members = 1 + input.Byte() % 3;
    request.spec.max_members = request.spec.min_members + input.Byte() % 2;
    const uint8_t policy = input.Byte();
    request.spec.loss_policy = LossPolicy{static_cast<uint8_t>(1 + policy % 2)};
    request.spec.begin_members = policy / 2 % 5;
    request.spec.gather_ns = int64_t{policy / 16} * 100'000'000;
    request.member = {.id = Id(input), .rank_count = 1 + input.Byte() % 2u};
    return request;
  }

  void Restart() {
    core_ = std::make_unique<SchedulerCore>(
        Config{.lease_ns = 1'000'000'000, .history_jobs_max = 2}, stored_, now_ns_, out_);
    Perform();
  }

  void Perform() {
    bool first = true;
    for (const Effect& effect : out_) {
      if (const auto* persist = std::get_if<Persist>(&effect)) {
        if (!first) std::abort();
        Apply(persist->write, stored_);
      } else if (const auto* tell = std::get_if<TellMember>(&effect)) {
        if (const auto* view = std::get_if<SharedView>(&tell->message)) CheckStored(**view);
      } else if (const auto* tell = std::get_if<TellAggregator>(&effect)) {
        if (const auto* view = std::get_if<JobView>(&tell->message)) CheckStored(*view->view);
      }
      first = false;
    }
    out_.clear();
  }

  void CheckStored(const view::View& view) {
    const bool stored = std::any_of(stored_.jobs.begin(), stored_.jobs.end(),
                                    [&](const JobRecord& job) { return job.view == view; });
    Epoch& highest = epochs_[view.job];
    if (!stored || !view.Problem().empty() || view.epoch < highest) std::abort();
    highest = view.epoch;
  }

  Snapshot stored_;
  std::unique_ptr<SchedulerCore> core_;
  int64_t now_ns_ = 0;
  uint64_t stream_count_ = 0;
  std::vector<Effect> out_;
  std::map<JobId, Epoch> epochs_;
};

}  // namespace
}  // namespace talweg::membership

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  talweg::membership::Input input(data, size);
  talweg::membership::World world;
  while (!input.empty()) world.Step(input);
  return 0;
}
