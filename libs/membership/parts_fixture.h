// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_PARTS_FIXTURE_H_
#define TALWEG_LIBS_MEMBERSHIP_PARTS_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/membership/aggregator_pool.h"
#include "libs/membership/leases.h"
#include "libs/membership/live_job.h"
#include "libs/membership/streams.h"
#include "libs/membership/turn.h"

namespace talweg::membership {

// The parts of a scheduler that other parts depend on, and one job, for tests of a single part.
struct PartsFixture {
  static constexpr int64_t kSecond = 1'000'000'000;

  Config config;
  Leases leases{config, 0};
  Streams streams;
  AggregatorPool pool{config, {}, 0, &leases, &streams};
  LiveJob job{.id = JobId{1},
              .name = "j",
              .spec = {.min_members = 1, .max_members = 8, .loss_policy = LossPolicy::kContinue}};

  // Its stream is open, with the id 100 + node.
  LiveMember& AddMember(uint32_t node, uint64_t incarnation) {
    LiveMember& member = job.members[NodeRank{node}];
    member.record.member = {.id = {NodeRank{node}, Incarnation{incarnation}}, .rank_count = 1};
    streams.Open(StreamId{100 + node},
                 Streams::MemberOfJob{job.id, {NodeRank{node}, Incarnation{incarnation}}},
                 member.stream);
    return member;
  }
  // Its stream is open, with the id 200 + incarnation.
  LiveAggregator& AddAggregator(uint64_t incarnation, const std::string& name) {
    Turn turn(0);
    const view::ViewAggregator aggregator{
        .incarnation = Incarnation{incarnation}, .name = name, .data_address = "here"};
    REQUIRE(pool.Register(aggregator, {}, turn).ok());
    LiveAggregator* added = nullptr;
    REQUIRE(pool.FindFor({Incarnation{incarnation}}, added).ok());
    pool.Attach(*added, StreamId{200 + incarnation}, true, turn);
    return *added;
  }
  // The job runs with these members, and the pool as it is.
  void Run(const std::vector<uint32_t>& nodes) {
    view::View view{.job = job.id, .epoch = Epoch{1}};
    for (const uint32_t node : nodes) {
      view.members.push_back(job.members.at(NodeRank{node}).record.member);
    }
    for (const auto& [id, aggregator] : pool.all()) {
      view.aggregators.push_back(aggregator.record.aggregator);
    }
    job.view = std::make_shared<const view::View>(std::move(view));
    job.state = JobState::kRunning;
    job.epoch_floor = Epoch{1};
  }
};

// The messages of that type that members are told, with their streams, in order.
template <typename Message>
std::vector<std::pair<StreamId, Message>> ToldMembers(const Turn& turn) {
  std::vector<std::pair<StreamId, Message>> told;
  for (const Effect& effect : turn.effects) {
    const auto* tell = std::get_if<TellMember>(&effect);
    const auto* message = tell == nullptr ? nullptr : std::get_if<Message>(&tell->message);
    if (message != nullptr) told.emplace_back(tell->stream, *message);
  }
  return told;
}

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_PARTS_FIXTURE_H_
