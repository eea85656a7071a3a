// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/owner_links.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/view/placement.h"

namespace talweg::pipeline {

void OwnerLinks::OnView(int64_t now_ns, Effects& out) {
  const view::View& view = *views_->newest();
  std::map<Incarnation, Owner> old;
  for (auto& [index, owner] : owners_) old.emplace(owner.incarnation, std::move(owner));
  owners_.clear();
  for (uint32_t i = 0; i < view.aggregators.size(); ++i) {
    Owner owner;
    owner.incarnation = view.aggregators[i].incarnation;
    const auto it = old.find(owner.incarnation);
    const bool survives = it != old.end() && (it->second.state == OwnerState::kReady ||
                                              it->second.state == OwnerState::kFencing);
    if (survives) {
      owner = std::move(it->second);
      owner.state = OwnerState::kFencing;
      old.erase(it);
      SendBare(owner, wire::FrameType::kFence, out);
    }
    owner.index = AggregatorIndex{i};
    // Each view begins the time afresh, because the scheduler has spoken.
    owner.unready_since_ns = now_ns;
    owner.trouble.clear();
    owners_.emplace(owner.index, std::move(owner));
  }
  for (const auto& [incarnation, owner] : old) {
    if (owner.connection.value() != 0) out.push_back(Close{owner.connection, "a newer view"});
  }
  for (auto& [index, owner] : owners_) {
    if (owner.state == OwnerState::kBackoff) Connect(owner, out);
  }
  if (config_->unreachable_ns > 0) timer_->Ask(now_ns + config_->unreachable_ns);
}

void OwnerLinks::Connect(Owner& owner, Effects& out) {
  const view::ViewAggregator& aggregator = views_->newest()->aggregators[owner.index.value()];
  owner.connection = ConnectionId{next_connection_++};
  owner.state = OwnerState::kConnecting;
  out.push_back(pipeline::Connect{.connection = owner.connection,
                                  .aggregator = owner.incarnation,
                                  .name = aggregator.name,
                                  .data_address = aggregator.data_address,
                                  .host_id = aggregator.host_id});
}

void OwnerLinks::OnConnected(ConnectionId connection, Effects& out) {
  Owner* const owner = FindOwner(connection);
  if (owner == nullptr || owner->state != OwnerState::kConnecting) return;
  owner->state = OwnerState::kGreeting;
  const view::View& view = *views_->newest();
  out.push_back(
      Send{.connection = connection,
           .type = wire::FrameType::kHello,
           .job = view.job,
           .epoch = view.epoch,
           .entries = std::vector<wire::Hello>{{.member = config_->self,
                                                .rank_count = config_->rank_count,
                                                .view_digest = view::PlacementDigest(view),
                                                .job_name = config_->job_name,
                                                .node_name = config_->node_name}}});
}

OwnerLinks::Answer OwnerLinks::OnWelcome(ConnectionId connection, const wire::Frame& frame,
                                         int64_t now_ns, Effects& out) {
  Owner* const found = FindOwner(connection);
  const auto* entries = std::get_if<std::vector<wire::Welcome>>(&frame.entries);
  if (found == nullptr || found->state != OwnerState::kGreeting || entries == nullptr ||
      entries->size() != 1) {
    return Answer::kIgnored;
  }
  Owner& owner = *found;
  const wire::Welcome& welcome = entries->front();
  const std::string who = "aggregator '" + NameOf(owner.index) + "'";
  switch (welcome.status) {
    case wire::WelcomeStatus::kOk:
      if (welcome.aggregator == owner.incarnation &&
          frame.header.epoch == views_->newest()->epoch) {
        owner.credit_bytes = std::min(welcome.credit_bytes, config_->credit_bytes_max);
        Answered(owner);
        return Answer::kReady;
      }
      out.push_back(Log{true, who + " answered as another incarnation, or in epoch " +
                                  std::to_string(frame.header.epoch.value())});
      break;
    case wire::WelcomeStatus::kUnknownJob:
    case wire::WelcomeStatus::kNotInView:
      // The aggregator may not have heard of the view yet.
      owner.trouble = "it refused this agent: " + welcome.text;
      out.push_back(Log{true, who + " refused this agent for now: " + welcome.text});
      break;
    case wire::WelcomeStatus::kViewDiffers:
    case wire::WelcomeStatus::kVersion: return Answer::kNever;
  }
  out.push_back(Close{owner.connection, "refused"});
  BackOff(owner, now_ns);
  return Answer::kLater;
}

OwnerLinks::Answer OwnerLinks::OnFenceAck(ConnectionId connection, Epoch epoch) {
  Owner* const owner = FindOwner(connection);
  if (owner == nullptr || owner->state != OwnerState::kFencing ||
      epoch != views_->newest()->epoch) {
    return Answer::kIgnored;
  }
  Answered(*owner);
  return Answer::kReady;
}

void OwnerLinks::Answered(Owner& owner) {
  owner.state = OwnerState::kReady;
  owner.backoff_ns = 0;
  owner.trouble.clear();
}

std::optional<AggregatorIndex> OwnerLinks::OnDisconnected(ConnectionId connection,
                                                          const std::string& reason, int64_t now_ns,
                                                          Effects& out) {
  Owner* const owner = FindOwner(connection);
  if (owner == nullptr) return std::nullopt;
  out.push_back(Log{true, "connection to aggregator '" + NameOf(owner->index) + "' of job '" +
                              config_->job_name + "' broke: " + reason});
  owner->trouble = reason;
  const bool was_ready = owner->state == OwnerState::kReady;
  if (was_ready) owner->unready_since_ns = now_ns;
  BackOff(*owner, now_ns);
  return was_ready ? std::optional(owner->index) : std::nullopt;
}

void OwnerLinks::BackOff(Owner& owner, int64_t now_ns) {
  owner.connection = ConnectionId{0};
  owner.state = OwnerState::kBackoff;
  owner.backoff_ns =
      std::clamp(owner.backoff_ns * 2, config_->reconnect_first_ns, config_->reconnect_max_ns);
  owner.retry_at_ns = now_ns + owner.backoff_ns;
  timer_->Ask(owner.retry_at_ns);
}

void OwnerLinks::Reconnect(int64_t now_ns, Effects& out) {
  for (auto& [index, owner] : owners_) {
    if (owner.state != OwnerState::kBackoff) continue;
    if (owner.retry_at_ns <= now_ns) {
      Connect(owner, out);
    } else {
      timer_->Ask(owner.retry_at_ns);
    }
  }
}

void OwnerLinks::CloseAll(const std::string& text, Effects& out) {
  for (const auto& [index, owner] : owners_) {
    if (owner.connection.value() != 0) out.push_back(Close{owner.connection, text});
  }
  owners_.clear();
}

void OwnerLinks::SayGoodbye(Effects& out) {
  for (const auto& [index, owner] : owners_) {
    if (owner.state == OwnerState::kReady) SendBare(owner, wire::FrameType::kGoodbye, out);
  }
  owners_.clear();
}

void OwnerLinks::SendBare(const Owner& owner, wire::FrameType type, Effects& out) const {
  out.push_back(Send{.connection = owner.connection,
                     .type = type,
                     .job = views_->newest()->job,
                     .epoch = views_->newest()->epoch});
}

void OwnerLinks::AddUndeclared(AggregatorIndex owner, TensorIndex tensor) {
  const auto it = owners_.find(owner);
  if (it == owners_.end() || it->second.state != OwnerState::kReady) return;
  it->second.undeclared.insert(tensor);
}

std::set<TensorIndex> OwnerLinks::TakeUndeclared(AggregatorIndex owner) {
  const auto it = owners_.find(owner);
  if (it == owners_.end() || it->second.state != OwnerState::kReady) return {};
  return std::exchange(it->second.undeclared, {});
}

const Owner* OwnerLinks::Find(ConnectionId connection) const {
  if (connection.value() == 0) return nullptr;
  for (const auto& [index, owner] : owners_) {
    if (owner.connection == connection) return &owner;
  }
  return nullptr;
}

Owner* OwnerLinks::FindOwner(ConnectionId connection) {
  const Owner* const found = Find(connection);
  return found == nullptr ? nullptr : &owners_.at(found->index);
}

bool OwnerLinks::AreReady() const {
  for (const auto& [index, owner] : owners_) {
    if (owner.state != OwnerState::kReady) return false;
  }
  return true;
}

const Owner* OwnerLinks::FindUnreachable(int64_t now_ns) const {
  if (config_->unreachable_ns == 0) return nullptr;
  for (const auto& [index, owner] : owners_) {
    if (owner.state == OwnerState::kReady) continue;
    const int64_t limit_ns = owner.unready_since_ns + config_->unreachable_ns;
    if (now_ns >= limit_ns) return &owner;
    timer_->Ask(limit_ns);
  }
  return nullptr;
}

const std::string& OwnerLinks::NameOf(AggregatorIndex owner) const {
  return views_->newest()->aggregators[owner.value()].name;
}

schedule::Reach OwnerLinks::ReachOf(AggregatorIndex owner) const {
  const std::string& host_id = views_->newest()->aggregators[owner.value()].host_id;
  return !host_id.empty() && host_id == config_->host_id ? schedule::Reach::kMemory
                                                         : schedule::Reach::kLink;
}

void OwnerLinks::CheckInvariants() const {
  for (const auto& [index, owner] : owners_) {
    TALWEG_CHECK(owner.index == index);
    TALWEG_CHECK((owner.connection == ConnectionId{0}) == (owner.state == OwnerState::kBackoff));
  }
}

}  // namespace talweg::pipeline
