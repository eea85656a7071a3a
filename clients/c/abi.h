// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_C_ABI_H_
#define TALWEG_CLIENTS_C_ABI_H_

#include <cstdint>
#include <cstring>

#include "clients/c/talweg.h"
#include "libs/shm/client/client.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/layout/rank_status.h"

// Shared by the functions of the C ABI.
namespace talweg::c {

// The calling thread's last error.
shm::ErrorText& LastError();

static_assert(TALWEG_EVENTS_LOST + 1 == shm::kRankStatusCount);
static_assert(TALWEG_TIMEOUT == static_cast<int>(shm::RankStatus::kTimeout));
static_assert(TALWEG_MISMATCH == static_cast<int>(shm::RankStatus::kMismatch));
static_assert(TALWEG_BUSY == static_cast<int>(shm::RankStatus::kBusy));
static_assert(TALWEG_JOB_FAILED == static_cast<int>(shm::RankStatus::kJobFailed));
static_assert(TALWEG_AGENT_LOST == static_cast<int>(shm::RankStatus::kAgentLost));
static_assert(TALWEG_FORKED == static_cast<int>(shm::RankStatus::kForked));
static_assert(TALWEG_VERSION_MISMATCH == static_cast<int>(shm::RankStatus::kVersionMismatch));
static_assert(TALWEG_OUT_OF_MEMORY == static_cast<int>(shm::RankStatus::kOutOfMemory));
static_assert(TALWEG_ABORTED == static_cast<int>(shm::RankStatus::kAborted));
static_assert(TALWEG_NO_AGENT == static_cast<int>(shm::RankStatus::kNoAgent));
static_assert(TALWEG_RANK_TAKEN == static_cast<int>(shm::RankStatus::kRankTaken));
static_assert(TALWEG_CLOSED == static_cast<int>(shm::RankStatus::kClosed));
static_assert(TALWEG_PENDING == static_cast<int>(shm::RankStatus::kPending));
static_assert(TALWEG_INTERNAL == static_cast<int>(shm::RankStatus::kInternal));
static_assert(TALWEG_EVENTS_LOST == static_cast<int>(shm::RankStatus::kEventsLost));

// They are the same numbers.
inline talweg_status ToC(shm::RankStatus status) { return static_cast<talweg_status>(status); }

inline talweg_status Invalid(const char* what) {
  return ToC(LastError().Fail(shm::RankStatus::kInvalidArgument, "%s", what));
}

inline shm::Client* FromC(talweg_client* client) { return reinterpret_cast<shm::Client*>(client); }
inline const shm::Client* FromC(const talweg_client* client) {
  return reinterpret_cast<const shm::Client*>(client);
}

// Returns the number in an enumeration, which a C program may have set to any value.
template <typename Enumeration>
uint32_t NumberIn(const Enumeration& enumeration) {
  uint32_t number = 0;
  static_assert(sizeof number == sizeof enumeration);
  std::memcpy(&number, &enumeration, sizeof number);
  return number;
}

}  // namespace talweg::c

#endif  // TALWEG_CLIENTS_C_ABI_H_
