// SPDX-License-Identifier: Apache-2.0

// The C ABI of the descriptor that tells of rounds.

#include "clients/c/abi.h"
#include "clients/c/talweg.h"

using talweg::c::FromC;
using talweg::c::Invalid;
using talweg::c::LastError;
using talweg::c::ToC;

extern "C" {

talweg_status talweg_completion_fd(talweg_client* client, int* fd) {
  if (client == nullptr) return Invalid("talweg_completion_fd: `client` is NULL");
  if (fd == nullptr) return Invalid("talweg_completion_fd: `fd` is NULL");
  return ToC(FromC(client)->CompletionFd(fd, LastError()));
}

talweg_status talweg_watch(talweg_client* client, talweg_tensor tensor, talweg_round round,
                           uint64_t tag) {
  if (client == nullptr) return Invalid("talweg_watch: `client` is NULL");
  return ToC(FromC(client)->Watch(tensor, round, tag, LastError()));
}

talweg_status talweg_completed(talweg_client* client, uint64_t* tags, size_t capacity,
                               size_t* count) {
  if (count == nullptr) return Invalid("talweg_completed: `count` is NULL");
  *count = 0;
  if (client == nullptr) return Invalid("talweg_completed: `client` is NULL");
  if (tags == nullptr || capacity == 0) {
    return Invalid("talweg_completed: `tags` is NULL, or `capacity` is 0");
  }
  return ToC(FromC(client)->Completed(tags, capacity, count, LastError()));
}

}  // extern "C"
