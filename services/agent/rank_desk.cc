// SPDX-License-Identifier: Apache-2.0
#include "services/agent/rank_desk.h"

#include <algorithm>
#include <numeric>

#include "libs/status/status.h"

namespace talweg::agent {
namespace {

// The numbers of a local rank in a view. For a standby's rank: the numbers it would have if its
// node were a full member.
struct Numbers {
  talweg::Rank rank;
  uint32_t size = 0;
  uint32_t node_count = 0;
  bool is_standby = false;
  shm::RankNumbers declared;
};

Numbers NumbersIn(const view::View& view, const view::MemberIdentity& self, LocalRank local_rank) {
  const MemberIndex index = *view.IndexOf(self);
  const view::ViewMember& own = view.members[index.value()];
  Numbers numbers{.rank = talweg::Rank{local_rank.value()}, .is_standby = own.standby};
  numbers.declared = {.own = view.RankBase(index).value() + local_rank.value(),
                      .count = view.NumberCount()};
  for (uint32_t i = 0; i < view.members.size(); ++i) {
    const view::ViewMember& member = view.members[i];
    if (member.standby && i != index.value()) continue;
    ++numbers.node_count;
    numbers.size += member.rank_count;
    if (i < index.value()) numbers.rank = talweg::Rank{numbers.rank.value() + member.rank_count};
  }
  return numbers;
}

// Maps a GPU's error to the status that the rank gets.
shm::RankStatus FromStatus(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted: return shm::RankStatus::kOutOfMemory;
    case absl::StatusCode::kPermissionDenied: return shm::RankStatus::kPermissionDenied;
    case absl::StatusCode::kInvalidArgument: return shm::RankStatus::kInvalidArgument;
    case absl::StatusCode::kFailedPrecondition: return shm::RankStatus::kBusy;
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnimplemented: return shm::RankStatus::kUnsupported;
    default: return shm::RankStatus::kInternal;
  }
}

}  // namespace

RankDesk::RankDesk(uint32_t rank_count, const std::string& job_name, shm::RankServer* server,
                   TensorMemory* memory, MemoryOrders* orders, RankEvents* events)
    : job_name_(job_name),
      server_(server),
      memory_(memory),
      events_(events),
      replies_(server, memory, orders,
               [events](const std::string& text) { events->OnRankFailure(text); }),
      ranks_(rank_count) {}

RankDesk::Rank* RankDesk::Find(shm::RankConnectionId connection, LocalRank* local_rank) {
  for (uint32_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].attached || ranks_[i].connection != connection) continue;
    *local_rank = LocalRank{i};
    return &ranks_[i];
  }
  return nullptr;
}

bool RankDesk::AnyAttached() const {
  for (const Rank& rank : ranks_) {
    if (rank.attached) return true;
  }
  return false;
}

bool RankDesk::AllAttached() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.attached; });
}

bool RankDesk::AllReady() const {
  const bool one_does_not_ask = std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
    return rank.attached && !rank.knows_standbys;
  });
  return one_does_not_ask ||
         std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ready; });
}

void RankDesk::SetView(const view::View& view, const view::MemberIdentity& self) {
  if (view_) return;
  view_ = view;
  self_ = self;
  for (uint32_t i = 0; i < ranks_.size(); ++i) Greet(LocalRank{i});
}

void RankDesk::LookForState() {
  if (have_state_ || !view_ || !AllAttached()) return;
  // steps_base: how many steps the others had ended before these ranks entered.
  const bool began_with_job = events_->Core().views().steps_base() == 0;
  have_state_ =
      began_with_job || std::all_of(ranks_.begin(), ranks_.end(), [this](const Rank& rank) {
        return server_->StepsEnded(rank.connection) > 0;
      });
  if (have_state_) events_->OnRanksHaveState();
}

void RankDesk::OnRankHello(shm::RankConnectionId connection, const shm::RankHello& hello) {
  if (hello.local_rank.value() >= ranks_.size()) {
    server_->Refuse(connection, shm::RankStatus::kInvalidArgument,
                    "local rank " + std::to_string(hello.local_rank.value()) +
                        " is not one of this node's " + std::to_string(ranks_.size()));
    return;
  }
  Rank& rank = ranks_[hello.local_rank.value()];
  rank = {.attached = true,
          .connection = connection,
          .pid = static_cast<uint64_t>(hello.pid),
          .uid = hello.uid,
          .client_name = hello.client_name,
          .knows_standbys = hello.knows_standbys};
  events_->OnRanksReady(AllReady());
  events_->OnRanksAttached(AllAttached());
  Greet(hello.local_rank);
}

void RankDesk::Greet(LocalRank local_rank) {
  Rank& rank = ranks_[local_rank.value()];
  if (!rank.attached || rank.welcomed || !view_) return;
  // The core may refuse the rank. Do(FailRank) has then disconnected it.
  events_->OnRankJoined(local_rank, static_cast<uint32_t>(rank.pid));
  const std::optional<MemberIndex> member = view_->IndexOf(self_);
  if (!rank.attached || !member) return;
  rank.welcomed = true;
  const Numbers numbers = NumbersIn(*view_, self_, local_rank);
  server_->Welcome(rank.connection, {.rank = numbers.rank,
                                     .size = numbers.size,
                                     .local_size = static_cast<uint32_t>(ranks_.size()),
                                     .node_rank = self_.node,
                                     .node_count = numbers.node_count,
                                     .job_name = job_name_,
                                     .standby = numbers.is_standby,
                                     .numbers = numbers.declared});
  // The other ranks were told before this one came.
  if (stop_) server_->PublishStop(rank.connection, *stop_ + 1);
}

void RankDesk::OnRankDeclare(shm::RankConnectionId connection, shm::RequestId request,
                             const shm::RankDeclaration& declaration) {
  LocalRank local_rank;
  if (Find(connection, &local_rank) == nullptr) return;
  if (declaration.on_device) device_declares_.emplace(local_rank, request.value());
  pipeline::TensorSpec spec = {.name = declaration.name,
                               .collective = encoding_rule_.Apply(declaration.collective),
                               .root_rank = declaration.root_rank};
  for (const uint32_t rank : declaration.ranks) spec.ranks.emplace_back(rank);
  const pipeline::MemoryWishes wishes = {
      .on_device = declaration.on_device,
      .in_place = declaration.in_place,
      .one_place = declaration.in_place && declaration.one_place};
  events_->OnRankDeclare(local_rank, request.value(), {std::move(spec), wishes});
}

std::optional<shm::RankConnectionId> RankDesk::OnlyRank() const {
  if (ranks_.size() != 1 || !ranks_[0].attached) return std::nullopt;
  return ranks_[0].connection;
}

void RankDesk::OnRankPush(shm::RankConnectionId /*connection*/, const shm::PushedRound& push) {
  if (push.local_rank.value() >= ranks_.size()) return;
  const pipeline::TensorIndex index{push.tensor.value()};
  if (index.value() < memory_->tensor_count()) {
    const uint64_t bytes = push.lengths.empty() ? memory_->spec(index).collective.part_bytes()
                                                : std::accumulate(push.lengths.begin(),
                                                                  push.lengths.end(), uint64_t{0});
    ranks_[push.local_rank.value()].bytes_pushed += bytes;
    bytes_pushed_ += bytes;
  }
  events_->OnRankPush({.rank = push.local_rank,
                       .tensor = index,
                       .round = push.round,
                       .priority = push.priority,
                       .signature = push.signature,
                       .lengths = {push.lengths.begin(), push.lengths.end()}});
}

void RankDesk::OnRankPushOnDevice(shm::RankConnectionId connection, LocalRank local_rank,
                                  shm::TensorIndex tensor, Round round, int32_t priority,
                                  const shm::DevicePlace& place) {
  if (local_rank.value() >= ranks_.size()) return;
  const pipeline::TensorIndex index{tensor.value()};
  if (index.value() >= memory_->tensor_count()) return;
  const absl::Status pushed = devices_->Push(local_rank, index, round, priority, place);
  if (!pushed.ok()) {
    server_->Garbage(connection, std::string(pushed.message()), *this);
    return;
  }
  if (place.again) return;
  ranks_[local_rank.value()].bytes_pushed += memory_->spec(index).bytes();
  bytes_pushed_ += memory_->spec(index).bytes();
}

void RankDesk::OnRankExport(shm::RankConnectionId connection, shm::RequestId request,
                            const shm::RankExport& exported) {
  LocalRank local_rank;
  if (Find(connection, &local_rank) == nullptr) return;
  const absl::StatusOr<shm::Exported> answer = devices_->Export(local_rank, exported);
  const std::string text = status::StatusText(answer.status());
  server_->ReplyExported(
      connection, request,
      answer.ok() ? *answer : shm::Exported{.status = FromStatus(answer.status()), .text = text});
}

void RankDesk::OnRankUnexport(shm::RankConnectionId connection, shm::RequestId request,
                              uint32_t buffer) {
  LocalRank local_rank;
  if (Find(connection, &local_rank) == nullptr) return;
  const absl::Status status = devices_->Unexport(local_rank, request.value(), buffer);
  if (status.ok()) return;  // ReplyUnexported follows.
  const std::string text = status::StatusText(status);
  server_->ReplyUnexported(connection, request, {.status = FromStatus(status), .text = text});
}

void RankDesk::ReplyUnexported(LocalRank rank, uint32_t request) {
  const Rank& to = ranks_[rank.value()];
  if (to.attached) server_->ReplyUnexported(to.connection, shm::RequestId{request}, {});
}

void RankDesk::TellEventsLost(LocalRank rank) {
  const Rank& to = ranks_[rank.value()];
  if (to.attached) server_->PublishEventsLost(to.connection);
}

RoundSignature RankDesk::SignatureOnDevice(LocalRank rank, pipeline::TensorIndex tensor) const {
  const auto& signatures = ranks_[rank.value()].signatures;
  const auto found = signatures.find(tensor.value());
  return found == signatures.end() ? 0 : found->second;
}

void RankDesk::OnRankPlace(shm::RankConnectionId connection, shm::RequestId request,
                           shm::TensorIndex tensor, uint32_t buffer, RoundSignature signature) {
  LocalRank local_rank;
  Rank* const rank = Find(connection, &local_rank);
  if (rank == nullptr) return;
  rank->signatures[tensor.value()] = signature;
  const pipeline::TensorIndex index{tensor.value()};
  absl::StatusOr<shm::Placed> answer = absl::UnimplementedError(
      "tensor '" + memory_->spec(index).name + "' was declared in host memory; push it from there");
  if (memory_->TakesDevices(index)) answer = devices_->Place(local_rank, index, buffer);
  const std::string text = status::StatusText(answer.status());
  server_->ReplyPlaced(
      connection, request,
      answer.ok() ? *answer : shm::Placed{.status = FromStatus(answer.status()), .text = text});
}

void RankDesk::OnRankGone(shm::RankConnectionId connection, const shm::RankGone& gone) {
  LocalRank local_rank;
  Rank* rank = Find(connection, &local_rank);
  gone_.push_back(connection);
  if (rank == nullptr) return;
  replies_.OnRankGone(local_rank);
  rank->attached = false;
  rank->ended = gone.clean ? "left" : gone.text;
  events_->OnRanksAttached(false);
  if (!rank->welcomed) {
    // The process never became a rank, so another one may take its place.
    *rank = {};
    server_->Release(connection);
    return;
  }
  events_->OnRankLeft(local_rank, gone.clean, gone.text);
}

void RankDesk::OnRankBoundary(shm::RankConnectionId connection, shm::RequestId request,
                              const shm::Boundary& question) {
  LocalRank rank;
  if (Find(connection, &rank) == nullptr) return;
  switch (question.question) {
    case shm::BoundaryQuestion::kLook:
      return AnswerView(rank, request, Epoch{question.epoch}, question.first_member);
    case shm::BoundaryQuestion::kFollow:
      return events_->OnRankFollows(rank, request.value(), Epoch{question.epoch});
    case shm::BoundaryQuestion::kReady:
      ranks_[rank.value()].ready = true;
      events_->OnRanksReady(AllReady());
      return AnswerView(rank, request, Epoch{0}, 0);
    case shm::BoundaryQuestion::kWait: break;
  }
  if (!stop_ || question.steps_ended < *stop_) return AnswerView(rank, request, Epoch{0}, 0);
  at_boundary_.push_back({rank, request, question.steps_ended});
  events_->OnRankAtBoundary(rank, question.steps_ended);
}

void RankDesk::OnRankAsk(shm::RankConnectionId connection, shm::RequestId request,
                         shm::TensorIndex tensor, Round round) {
  const std::string text = events_->WhomItWaitsFor(pipeline::TensorIndex{tensor.value()}, round);
  server_->ReplyTold(connection, request, {.text = text});
}

void RankDesk::Do(const pipeline::StopRanks& effect) {
  stop_ = effect.steps;
  std::vector<uint64_t> ended;
  for (const Rank& rank : ranks_) {
    const bool is_there = rank.attached && rank.welcomed;
    ended.push_back(is_there ? server_->PublishStop(rank.connection, stop_ ? *stop_ + 1 : 0) : 0);
  }
  const std::vector<AtBoundary> waiting = std::exchange(at_boundary_, {});
  for (const AtBoundary& each : waiting) {
    if (stop_ && each.steps >= *stop_) {
      at_boundary_.push_back(each);
    } else {
      AnswerView(each.rank, each.request, Epoch{0}, 0);
    }
  }
  if (stop_ == 0) events_->OnRanksStop(std::move(ended));
}

void RankDesk::AnswerView(LocalRank local_rank, shm::RequestId request, Epoch epoch,
                          uint32_t first_member) {
  const Rank& rank = ranks_[local_rank.value()];
  if (!rank.attached) return;
  const view::View* const newest = events_->Core().views().newest();
  const view::View* const view = epoch == Epoch{0} || (newest != nullptr && newest->epoch == epoch)
                                     ? newest
                                     : events_->Core().views().Find(epoch);
  if (view == nullptr || !view->IndexOf(self_)) {
    const std::string text = "the view of epoch " + std::to_string(epoch.value()) +
                             " is not one of the last that the agent has had";
    return server_->ReplyMembership(rank.connection, request,
                                    {.status = shm::RankStatus::kInvalidArgument, .text = text});
  }
  std::vector<shm::MembershipMember> members;
  uint32_t member_count = 0;
  for (const view::ViewMember& member : view->members) {
    // A client that does not know standbys would count their ranks.
    if (member.standby && !rank.knows_standbys) continue;
    if (member_count++ < first_member || members.size() == shm::kMembershipMembersMax) continue;
    members.push_back({.node = member.id.node.value(),
                       .rank_count = static_cast<uint16_t>(member.rank_count),
                       .flags = member.standby ? shm::kMemberStandby : uint16_t{0},
                       .incarnation = member.id.incarnation.value()});
  }
  const Numbers numbers = NumbersIn(*view, self_, local_rank);
  const uint32_t standby = numbers.is_standby ? shm::kMembershipStandby : 0;
  server_->ReplyMembership(rank.connection, request,
                           {.flags = (membership_changes_ ? shm::kMembershipChanges : 0) | standby,
                            .epoch = view->epoch.value(),
                            .steps = view->steps,
                            .steps_base = events_->Core().views().steps_base(),
                            .rank = numbers.rank.value(),
                            .size = numbers.size,
                            .member_count = member_count,
                            .first_member = first_member,
                            .members = {members.data(), static_cast<uint32_t>(members.size())},
                            .number = *numbers.declared.own});
}

void RankDesk::AnswerFollow(LocalRank local_rank, uint32_t request, Epoch epoch, bool ok) {
  const Rank& rank = ranks_[local_rank.value()];
  if (!rank.attached) return;
  const view::View* const view = events_->Core().views().Find(epoch);
  if (ok && view != nullptr) {
    const Numbers numbers = NumbersIn(*view, self_, local_rank);
    server_->Renumber(rank.connection, numbers.rank, numbers.size, numbers.declared);
  }
  AnswerView(local_rank, shm::RequestId{request}, epoch, 0);
}

void RankDesk::Do(const pipeline::DeclareReply& effect) {
  if (effect.local_rank.value() >= ranks_.size()) return;
  const Rank& rank = ranks_[effect.local_rank.value()];
  const bool on_device = device_declares_.erase({effect.local_rank, effect.request}) > 0;
  if (!rank.attached) return;
  const shm::RequestId request{effect.request};
  if (effect.status != pipeline::Status::kOk) {
    server_->RefuseDeclaration(rank.connection, request, ToRankStatus(effect.status), effect.text);
    return;
  }
  if (on_device && !memory_->TakesDevices(effect.tensor)) {
    server_->RefuseDeclaration(rank.connection, request, shm::RankStatus::kUnsupported,
                               "tensor '" + memory_->spec(effect.tensor).name +
                                   "' was declared in host memory before; declare it there");
    return;
  }
  if (on_device) {
    server_->ReplyDeclared(rank.connection, request,
                           {.tensor = ToShm(effect.tensor),
                            .tensor_bytes = memory_->spec(effect.tensor).bytes(),
                            .completed_round = effect.held,
                            .result = memory_->ResultLocations(effect.tensor),
                            .arrivals = memory_->ArrivalsLocation(effect.tensor)});
    return;
  }
  replies_.Reply(rank.connection, effect);
}

void RankDesk::Do(const pipeline::CompleteRound& effect) {
  if (effect.status == pipeline::Status::kOk) {
    memory_->WriteLengths(effect.tensor, effect.round, effect.lengths);
  }
  replies_.Publish(effect);
}

void RankDesk::Do(const pipeline::SliceArrived& effect) {
  const uint64_t bytes = memory_->AddArrival(effect.result);
  if (bytes > 0) server_->PublishArrival(ToShm(effect.result.tensor), bytes);
}

void RankDesk::Do(const pipeline::FailRank& effect) {
  if (effect.local_rank.value() >= ranks_.size()) return;
  Rank& rank = ranks_[effect.local_rank.value()];
  if (!rank.attached) return;
  replies_.OnRankGone(effect.local_rank);
  rank.attached = false;
  rank.ended = effect.text;
  if (!rank.welcomed) {
    // Not kInvalidArgument: the process asks for nothing that is wrong in itself. The job is over
    // for it.
    server_->Refuse(rank.connection, shm::RankStatus::kJobFailed, effect.text);
    return;
  }
  server_->Disconnect(rank.connection, shm::RankStatus::kInvalidArgument, effect.text);
  gone_.push_back(rank.connection);
  events_->OnRankLeft(effect.local_rank, false, effect.text);
}

void RankDesk::Do(const pipeline::FailJob& effect) {
  replies_.Forget();
  server_->FailAll(ToRankStatus(effect.status), effect.text);
  for (Rank& rank : ranks_) {
    if (!rank.attached || rank.welcomed) continue;
    rank.attached = false;
    rank.ended = effect.text;
    server_->Refuse(rank.connection, ToRankStatus(effect.status), effect.text);
  }
}

void RankDesk::Restart() {
  for (const shm::RankConnectionId connection : gone_) server_->Release(connection);
  gone_.clear();
  ranks_.assign(ranks_.size(), Rank{});
  device_declares_.clear();
  stop_.reset();
  at_boundary_.clear();
  replies_.Forget();
  have_state_ = false;
}

}  // namespace talweg::agent
