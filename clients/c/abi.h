// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_C_ABI_H_
#define TALWEG_CLIENTS_C_ABI_H_

#include "clients/c/talweg.h"
#include "libs/shm/client/client.h"
#include "libs/shm/client/error_text.h"
#include "libs/shm/layout/rank_status.h"

// Shared by the functions of the C ABI.
namespace talweg::c {

// The calling thread's last error.
shm::ErrorText& LastError();

inline talweg_status ToC(shm::RankStatus status) { return static_cast<talweg_status>(status); }

inline talweg_status Invalid(const char* what) {
  return ToC(LastError().Fail(shm::RankStatus::kInvalidArgument, "%s", what));
}

inline shm::Client* FromC(talweg_client* client) { return reinterpret_cast<shm::Client*>(client); }
inline const shm::Client* FromC(const talweg_client* client) {
  return reinterpret_cast<const shm::Client*>(client);
}

}  // namespace talweg::c

#endif  // TALWEG_CLIENTS_C_ABI_H_
