// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "clients/c/abi.h"

// The C ABI of steps and membership: docs/elastic.md.

using talweg::c::FromC;
using talweg::c::Invalid;
using talweg::c::LastError;
using talweg::c::ToC;
using talweg::shm::MembershipMember;

static_assert(sizeof(talweg_member) == sizeof(MembershipMember));
static_assert(offsetof(talweg_member, incarnation) == offsetof(MembershipMember, incarnation));
static_assert(offsetof(talweg_member, flags) == offsetof(MembershipMember, flags));
static_assert(TALWEG_MEMBER_STANDBY == talweg::shm::kMemberStandby);
static_assert(offsetof(talweg_member, rank_count) == offsetof(MembershipMember, rank_count));

extern "C" {

talweg_status talweg_end_step(talweg_client* client, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_end_step: `client` is NULL");
  return ToC(FromC(client)->EndStep(timeout_ns, LastError()));
}

talweg_status talweg_ready(talweg_client* client, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_ready: `client` is NULL");
  return ToC(FromC(client)->Ready(timeout_ns, LastError()));
}

uint64_t talweg_steps_ended(const talweg_client* client) {
  return client == nullptr ? 0 : FromC(client)->StepsEnded();
}

uint64_t talweg_newest_epoch(const talweg_client* client) {
  return client == nullptr ? 0 : FromC(client)->NewestEpoch();
}

talweg_status talweg_get_membership(talweg_client* client, uint64_t epoch,
                                    talweg_membership* membership, talweg_member* members,
                                    uint32_t members_max, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_get_membership: `client` is NULL");
  if (membership == nullptr || membership->struct_bytes < sizeof(size_t)) {
    return Invalid("talweg_get_membership: `membership` is NULL or its struct_bytes is not set");
  }
  if (members == nullptr && members_max > 0) {
    return Invalid("talweg_get_membership: `members` is NULL");
  }
  talweg::shm::RankMembership view;
  const talweg_status status =
      ToC(FromC(client)->LookAtView(epoch, &view, reinterpret_cast<MembershipMember*>(members),
                                    members_max, timeout_ns, LastError()));
  if (status != TALWEG_OK) return status;
  talweg_membership all{};
  all.struct_bytes = membership->struct_bytes;
  all.epoch = view.epoch;
  all.steps_entered = view.steps;
  all.steps_base = view.steps_base;
  all.rank = view.rank;
  all.size = view.size;
  all.member_count = view.member_count;
  all.changes = (view.flags & talweg::shm::kMembershipChanges) != 0 ? 1 : 0;
  all.standby = (view.flags & talweg::shm::kMembershipStandby) != 0 ? 1 : 0;
  all.number = view.number;
  std::memcpy(membership, &all, std::min(membership->struct_bytes, sizeof(all)));
  return TALWEG_OK;
}

talweg_status talweg_follow(talweg_client* client, uint64_t epoch, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_follow: `client` is NULL");
  return ToC(FromC(client)->FollowView(epoch, timeout_ns, LastError()));
}

}  // extern "C"
