// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_C_ABI_H_
#define TALWEG_CLIENTS_C_ABI_H_

#include "clients/c/talweg.h"
#include "libs/shm/client/client.h"

// What the files of the C ABI share.
namespace talweg::abi {

// The one piece of state outside of a client: a thread's last error, as errno is.
extern thread_local shm::ErrorText last_error;

inline talweg_status ToC(shm::RankStatus status) { return static_cast<talweg_status>(status); }

inline talweg_status Invalid(const char* what) {
  return ToC(last_error.Fail(shm::RankStatus::kInvalidArgument, "%s", what));
}

inline shm::Client* FromC(talweg_client* client) { return reinterpret_cast<shm::Client*>(client); }
inline const shm::Client* FromC(const talweg_client* client) {
  return reinterpret_cast<const shm::Client*>(client);
}

}  // namespace talweg::abi

#endif  // TALWEG_CLIENTS_C_ABI_H_
