// SPDX-License-Identifier: Apache-2.0
#include "services/agent/gpu_lanes.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "libs/base/check.h"
#include "libs/status/status.h"

namespace talweg::agent {

GpuLanes::GpuLanes(const GpuStageOptions& options, const HostTensors& host, GpuNode& node,
                   GpuCollectives& collectives, const GpuLosses& losses, const GpuPins& pins,
                   GpuTasks& tasks, GpuStageCounters& counters)
    : options_(options),
      host_(host),
      node_(node),
      collectives_(collectives),
      pins_(pins),
      tasks_(tasks),
      counters_(counters),
      streams_(node, losses),
      home_pieces_(collectives, streams_),
      pieces_(host, collectives, streams_, home_pieces_, counters),
      paths_(options, node, collectives),
      lanes_(options.lanes) {
  for (size_t index = 0; index < lanes_.size(); ++index) lanes_[index].index = index;
}

std::string GpuLanes::Describe(const Lane& lane) const {
  std::string text = absl::StrCat("tensor '", host_.Spec(lane.task->slice.tensor).name, "' round ",
                                  lane.task->slice.round.value());
  for (const GpuInput& input : lane.task->inputs) {
    if (!input.on_device) continue;
    absl::StrAppend(&text, ", local rank ", input.rank.value(), " on ", gpu::FormatUuid(input.gpu));
  }
  return text;
}

// ----- Beginning. -----

// A piece may not start while an older piece may still write to the same bytes. The older piece is
// of an abandoned round, or of an older epoch.
bool GpuLanes::MayStart(const GpuTask& task, const GpuRange& range) const {
  return std::none_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    return !lane.is_free() && lane.task.get() != &task &&
           lane.task->slice.tensor == task.slice.tensor &&
           range.offset < lane.range.offset + lane.range.length &&
           lane.range.offset < range.offset + range.length;
  });
}

std::shared_ptr<GpuTask> GpuLanes::NextTask() {
  for (size_t i = 0; i < tasks_.waiting().size();) {
    const std::shared_ptr<GpuTask> next = tasks_.waiting()[i];
    if (!tasks_.IsWanted(*next)) {
      tasks_.Drop(i);
    } else if (tasks_.IsReady(*next) && MayStart(*next, next->ranges.front())) {
      return next;
    } else {
      ++i;
    }
  }
  return nullptr;
}

absl::StatusOr<bool> GpuLanes::Start(Lane& lane, int64_t now_ns) {
  lane.task = NextTask();
  if (lane.task == nullptr) return false;
  const GpuTask& task = *lane.task;
  tasks_.FindMemory(*lane.task);
  lane.range = task.ranges.front();
  lane.gpus = task.gpus();
  for (const gpu::GpuUuid& uuid : lane.gpus) GrowStaging(uuid);
  lane.groups = paths_.GroupsOf(task, lane.gpus);
  lane.path = paths_.PathOf(lane, now_ns);
  lane.writes_ranks = false;
  lane.goes_up = false;
  const uint64_t room = paths_.BytesMax(lane);
  TALWEG_CHECK(room > 0);
  lane.range = tasks_.Cut(lane.task, room);
  lane.through_staging =
      task.is_final || lane.adds_groups() || task.home != nullptr || !pins_.IsPinned(task.slice);
  const bool by_collective = lane.path == LanePath::kCollective;
  lane.step = by_collective ? LaneStep::kAwaitCommunicator : LaneStep::kCopying;
  TALWEG_RETURN_IF_ERROR(pieces_.Post(lane));
  TALWEG_RETURN_IF_ERROR(streams_.Record(lane, now_ns));
  return true;
}

// ----- Going on. -----

GpuLanes::Progress GpuLanes::Step(Lane& lane, int64_t now_ns) {
  using Readiness = GpuCollectives::Readiness;
  if (lane.is_free()) return {};
  if (lane.step == LaneStep::kCopying || lane.step == LaneStep::kDraining) {
    const auto done = streams_.IsDone(lane);
    if (!done.ok()) return {1, Trouble::kPiece, done.status(), {}};
    if (!*done) return {};
    if (lane.step == LaneStep::kDraining) {
      lane.step = LaneStep::kFree;
      tasks_.GiveBack(std::exchange(lane.task, nullptr), lane.range);
      return {.work = 1};
    }
    const absl::Status status = OnCopied(lane, now_ns);
    if (!status.ok()) return {1, Trouble::kPiece, status, {}};
    return {.work = 1};
  }
  // Asked while collectives run, too, because that is how their errors are noticed.
  GpuSet group;
  const Readiness readiness = AskGroups(lane, now_ns, group);
  if (readiness == Readiness::kUnavailable) {
    Redo(lane, now_ns);
    return {.work = 1};
  }
  if (readiness == Readiness::kFailed) {
    return {1, Trouble::kCommunicator, collectives_.Error(group), std::move(group)};
  }
  const bool overdue = lane.step != LaneStep::kAwaitCommunicator && now_ns >= lane.deadline_ns;
  if (readiness == Readiness::kReady) {
    const auto went_on = GoOn(lane, now_ns);
    if (!went_on.ok()) return {1, Trouble::kPiece, went_on.status(), {}};
    if (*went_on) return {.work = 1};
  }
  if (!overdue) return {};
  return {
      1, Trouble::kOverdue,
      absl::UnavailableError(absl::StrCat("a collective has not ended within ",
                                          options_.collective_deadline_ns / 1'000'000'000, " s")),
      lane.groups.front()};
}

GpuCollectives::Readiness GpuLanes::AskGroups(const Lane& lane, int64_t now_ns, GpuSet& failed) {
  using Readiness = GpuCollectives::Readiness;
  Readiness all = Readiness::kReady;
  for (const GpuSet& group : lane.groups) {
    if (group.size() == 1) continue;
    const Readiness one = collectives_.Ask(group, now_ns);
    if (one == Readiness::kReady) continue;
    if (one == Readiness::kFailed) {
      failed = group;
      return one;
    }
    if (all != Readiness::kUnavailable) all = one;
  }
  return all;
}

absl::StatusOr<bool> GpuLanes::GoOn(Lane& lane, int64_t now_ns) {
  if (lane.step == LaneStep::kLaunching) {
    const absl::Status recorded = streams_.Record(lane, now_ns);
    lane.step = LaneStep::kCollective;
    if (!recorded.ok()) return recorded;
    return true;
  }
  const auto done = streams_.IsDone(lane);
  if (!done.ok() || !*done) return done;
  // The lane's earlier work is done before a collective is posted. So a lane part that is put aside
  // with a collective that hangs uses no rank's memory.
  const bool before = lane.step == LaneStep::kAwaitCommunicator;
  absl::Status status = before ? pieces_.PostCollective(lane) : pieces_.PostAfterCollective(lane);
  if (status.ok() && !before) status = streams_.Record(lane, now_ns);
  lane.step = before ? LaneStep::kLaunching : LaneStep::kCopying;
  lane.deadline_ns = now_ns + options_.collective_deadline_ns;
  if (!status.ok()) return status;
  return true;
}

absl::Status GpuLanes::OnCopied(Lane& lane, int64_t now_ns) {
  const GpuTask& task = *lane.task;
  const bool by_host = lane.path == LanePath::kHost;
  counters_.pieces_direct += task.home != nullptr && !by_host;
  if (task.mirrors) {
    pieces_.CopyMirrored(lane);
  } else if (task.delivers) {
    if (by_host && !lane.goes_up) {
      TALWEG_RETURN_IF_ERROR(home_pieces_.PostMirrorUp(lane));
      return streams_.Record(lane, now_ns);
    }
    ++counters_.pieces_delivered;
  } else if (task.home != nullptr && (!by_host || lane.goes_up)) {
    counters_.pieces_by_kernel += lane.path == LanePath::kKernel;
    counters_.pieces_by_collective += lane.path == LanePath::kCollective;
  } else if (by_host) {
    return OnInputsOnHost(lane, now_ns);
  } else {
    OnCollectiveCopied(lane);
  }
  OnPieceDone(lane);
  return absl::OkStatus();
}

absl::Status GpuLanes::OnInputsOnHost(Lane& lane, int64_t now_ns) {
  const GpuTask& task = *lane.task;
  ++counters_.pieces_by_host;
  // Does not write a sum that is not wanted any more: its target may belong to another round by
  // now.
  if (lane.through_staging && tasks_.IsWanted(task)) {
    pieces_.CombineOnHost(lane);
    if (task.home != nullptr) {
      TALWEG_RETURN_IF_ERROR(home_pieces_.PostSumUp(lane));
      return streams_.Record(lane, now_ns);
    }
  }
  if (task.is_final) tasks_.OnResultOnHost(task.slice.tensor, lane.range);
  OnPieceDone(lane);
  return absl::OkStatus();
}

void GpuLanes::OnCollectiveCopied(Lane& lane) {
  const GpuTask& task = *lane.task;
  const bool by_kernel = lane.path == LanePath::kKernel;
  ++(by_kernel ? counters_.pieces_by_kernel : counters_.pieces_by_collective);
  const bool is_wanted = tasks_.IsWanted(task);
  if (lane.adds_groups()) {
    ++counters_.pieces_by_groups;
    if (is_wanted) pieces_.AddGroups(lane);
    if (task.is_final) tasks_.OnResultOnHost(task.slice.tensor, lane.range);
  } else if (!task.is_final && lane.through_staging && is_wanted) {
    pieces_.CopyShards(lane);
  }
}

void GpuLanes::OnPieceDone(Lane& lane) {
  lane.step = LaneStep::kFree;
  tasks_.OnPieceDone(std::exchange(lane.task, nullptr));
}

void GpuLanes::Redo(Lane& lane, int64_t now_ns) {
  lane.step = LaneStep::kDraining;
  streams_.Record(lane, now_ns).IgnoreError();  // A failure here shows when the event is asked.
}

void GpuLanes::Abandon() {
  for (Lane& lane : lanes_) {
    if (lane.task != nullptr) lane.task->abandoned = true;
  }
}

// ----- For others. -----

void GpuLanes::GrowStaging(const gpu::GpuUuid& uuid) {
  if (!MayWaitFor(uuid)) return;
  for (const Lane& lane : lanes_) {
    if (lane.is_free()) node_.GrowStaging(node_.At(uuid), lane.index);
  }
}

bool GpuLanes::MayWaitFor(const gpu::GpuUuid& uuid) const {
  const bool in_lane = std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    return lane.is_in_collective() &&
           std::find(lane.gpus.begin(), lane.gpus.end(), uuid) != lane.gpus.end();
  });
  return !in_lane && !collectives_.IsEnding(uuid);
}

bool GpuLanes::AnyBusy() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return !lane.is_free(); });
}

void GpuLanes::AddGpus(std::set<gpu::GpuUuid>& uuids) const {
  for (const Lane& lane : lanes_) {
    if (!lane.is_free()) uuids.insert(lane.gpus.begin(), lane.gpus.end());
  }
}

std::optional<int64_t> GpuLanes::PrepareToSleep(int64_t now_ns) {
  std::optional<int64_t> at_ns;
  const auto within = [&](int64_t ns) {
    at_ns = std::min(at_ns.value_or(now_ns + ns), now_ns + ns);
  };
  for (Lane& lane : lanes_) {
    if (lane.is_free()) continue;
    // The work is so recent that it ends before this thread would be asleep.
    if (now_ns - lane.posted_ns < options_.watch_own_ns) return now_ns;
    // Communicators wake nobody, neither when they are ready nor when they fail.
    if (lane.step == LaneStep::kAwaitCommunicator || lane.step == LaneStep::kLaunching) {
      within(options_.ask_launch_every_ns);
    } else {
      if (lane.step == LaneStep::kCollective) within(options_.ask_errors_every_ns);
      if (!streams_.WakeWhenDone(lane)) within(options_.ask_launch_every_ns);
    }
  }
  return at_ns;
}

}  // namespace talweg::agent
