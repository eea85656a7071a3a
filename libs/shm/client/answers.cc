// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/answers.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace talweg::shm {

RankStatus PendingAnswer::Status(ErrorText& error) const {
  if (status == RankStatus::kOk) return status;
  const bool known = static_cast<uint32_t>(status) < kRankStatusCount;
  return error.Fail(known ? status : RankStatus::kInternal, "%s", text);
}

void Answers::Await(PendingAnswer& pending) {
  const MutexLock lock(state_mutex_);
  pending.request = next_request_++;
  pending.next = pending_;
  pending_ = &pending;
}

void Answers::Withdraw(PendingAnswer& pending) {
  const MutexLock lock(state_mutex_);
  PendingAnswer** link = &pending_;
  while (*link != &pending) link = &(*link)->next;
  *link = pending.next;
}

PendingAnswer* Answers::Find(uint32_t request) const {
  PendingAnswer* pending = pending_;
  while (pending != nullptr && pending->request != request) pending = pending->next;
  return pending;
}

void Answers::TakeDeviceAnswer(const Message& message) {
  const MutexLock lock(state_mutex_);
  PendingAnswer* const pending = Find(message.request);
  if (pending == nullptr) return;
  std::string_view text;
  if (const auto* exported = std::get_if<Exported>(&message.body)) {
    pending->status = exported->status;
    pending->exported = *exported;
    text = exported->text;
  } else if (const auto* placed = std::get_if<Placed>(&message.body)) {
    pending->status = placed->status;
    pending->placed = *placed;
    text = placed->text;
  } else if (const auto* unexported = std::get_if<Unexported>(&message.body)) {
    pending->status = unexported->status;
    text = unexported->text;
  }
  if (!text.empty()) std::memcpy(pending->text, text.data(), text.size());
  pending->text[text.size()] = '\0';
  pending->done.store(true);
}

void Answers::TakeTold(const Message& message, const Told& told) {
  const MutexLock lock(state_mutex_);
  PendingAnswer* const pending = Find(message.request);
  if (pending == nullptr) return;
  pending->status = told.status;
  if (!told.text.empty()) std::memcpy(pending->text, told.text.data(), told.text.size());
  pending->text[told.text.size()] = '\0';
  pending->done.store(true);
}

void Answers::TakeMembership(const Message& message, const RankMembership& membership) {
  const MutexLock lock(state_mutex_);
  PendingAnswer* const pending = Find(message.request);
  if (pending == nullptr) return;
  pending->status = membership.status;
  pending->membership = membership;
  const uint32_t count = std::min(membership.members.size(), pending->members_max);
  for (uint32_t i = 0; i < count; ++i) pending->members[i] = membership.members[i];
  pending->membership.members = MemberList(pending->members, count);
  if (!membership.text.empty()) {
    std::memcpy(pending->text, membership.text.data(), membership.text.size());
  }
  pending->text[membership.text.size()] = '\0';
  pending->membership.text = {};
  pending->done.store(true);
}

}  // namespace talweg::shm
