// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_CORE_PARTS_FIXTURE_H_
#define TALWEG_LIBS_PIPELINE_CORE_PARTS_FIXTURE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "libs/pipeline/agent_core_config.h"
#include "libs/pipeline/agent_core_fixture.h"
#include "libs/pipeline/failures.h"
#include "libs/pipeline/local_ranks.h"
#include "libs/pipeline/owner_links.h"
#include "libs/pipeline/reductions.h"
#include "libs/pipeline/rounds.h"
#include "libs/pipeline/step_quiesce.h"
#include "libs/pipeline/tensor_placement.h"
#include "libs/pipeline/tensor_table.h"
#include "libs/pipeline/tick_timer.h"
#include "libs/pipeline/view_state.h"
#include "libs/schedule/slice_queue.h"

// The parts of the core, for tests of one part without the others.
namespace talweg::pipeline::testing {

// Node 0, which has `rank_count` ranks.
struct CoreParts {
  explicit CoreParts(const view::View& view, uint32_t rank_count = 1)
      : config{.self = view.members[0].id, .job_name = "job", .rank_count = rank_count},
        views(view.members[0].id, rank_count),
        ranks(rank_count, &views),
        tensors(rank_count) {
    for (uint32_t i = 0; i < rank_count; ++i) ranks.Join(LocalRank{i}, 1);
    EnterAndFreeze(view);
  }

  // All aggregators of `view` have answered.
  void EnterAndFreeze(const view::View& view) {
    views.Enter(view);
    views.Freeze();
  }
  // Every aggregator of the view has welcomed this node, and slices may leave to it.
  void MakeOwnersReady(uint64_t credit_bytes = 8 * kMiB) {
    links.OnView(0, out);
    for (uint32_t i = 0; i < views.newest()->aggregators.size(); ++i) {
      const Owner& owner = links.At(AggregatorIndex{i});
      links.OnConnected(owner.connection, out);
      wire::Frame welcome;
      welcome.header.epoch = views.newest()->epoch;
      welcome.entries = std::vector<wire::Welcome>{
          {.aggregator = owner.incarnation, .credit_bytes = credit_bytes}};
      REQUIRE(links.OnWelcome(owner.connection, welcome, 0, out) == OwnerLinks::Answer::kReady);
      queue.Open(owner.index, owner.credit_bytes, links.ReachOf(owner.index));
    }
    out.clear();
  }
  ConnectionId ConnectionTo(uint32_t owner) const {
    return links.At(AggregatorIndex{owner}).connection;
  }
  // The effects of type E so far.
  template <typename E>
  std::vector<E> Of() const {
    return Fixture::Of<E>(out);
  }

  // The ranks here know the tensor, and its owners agree to it.
  AgentTensor& Open(const TensorSpec& spec) {
    AgentTensor& tensor = tensors.Add({spec}, LocalRank{0});
    REQUIRE(PlaceTensor(views, tensor).empty());
    tensor.told.assign(tensor.told.size(), true);
    for (auto& [index, agreement] : tensor.owners) agreement.agreed = true;
    tensor.state = TensorState::kOpen;
    return tensor;
  }
  // All ranks here give all elements to the open round.
  void PushAll(AgentTensor& tensor) {
    tensor.given.lengths.assign(tensor.spec.part_count(), tensor.spec.collective.part_bytes());
    for (uint32_t i = 0; i < tensor.pushed.size(); ++i) {
      if (tensor.in_group[i]) tensors.AddPush(tensor, LocalRank{i});
    }
  }

  AgentCoreConfig config;
  AgentCoreCounters counters;
  TickTimer timer;
  ViewState views;
  LocalRanks ranks;
  TensorTable tensors;
  StepQuiesce quiesce{&views, &ranks, &tensors};
  OwnerLinks links{&config, &views, &timer};
  schedule::SliceQueue queue;
  Reductions reductions;
  Failures failures{{.views = &views,
                     .tensors = &tensors,
                     .links = &links,
                     .quiesce = &quiesce,
                     .queue = &queue,
                     .reductions = &reductions,
                     .timer = &timer}};
  Rounds rounds{&views, &tensors, &links, &queue, &reductions, &quiesce, &failures, &counters};
  Effects out;
};

}  // namespace talweg::pipeline::testing

#endif  // TALWEG_LIBS_PIPELINE_CORE_PARTS_FIXTURE_H_
