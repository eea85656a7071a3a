// SPDX-License-Identifier: Apache-2.0

// The C ABI of the descriptor for completed rounds.

#include "clients/c/abi.h"
#include "clients/c/talweg.h"

using talweg::c::FromC;
using talweg::c::Invalid;
using talweg::c::LastError;
using talweg::c::ToC;

namespace {

constexpr int kFirst = -1;  // The client's first descriptor.

talweg_status CompletedBy(const char* function, talweg_client* client, int fd, uint64_t* tags,
                          size_t capacity, size_t* count) {
  const auto invalid = [function](const char* what) {
    return ToC(
        LastError().Fail(talweg::shm::RankStatus::kInvalidArgument, "%s: %s", function, what));
  };
  if (count == nullptr) return invalid("`count` is NULL");
  *count = 0;
  if (client == nullptr) return invalid("`client` is NULL");
  if (tags == nullptr || capacity == 0) return invalid("`tags` is NULL, or `capacity` is 0");
  return ToC(FromC(client)->Completed(fd, tags, capacity, count, LastError()));
}

}  // namespace

extern "C" {

talweg_status talweg_completion_fd(talweg_client* client, int* fd) {
  if (client == nullptr) return Invalid("talweg_completion_fd: `client` is NULL");
  if (fd == nullptr) return Invalid("talweg_completion_fd: `fd` is NULL");
  return ToC(FromC(client)->CompletionFd(fd, LastError()));
}

talweg_status talweg_another_completion_fd(talweg_client* client, int* fd) {
  if (client == nullptr) return Invalid("talweg_another_completion_fd: `client` is NULL");
  if (fd == nullptr) return Invalid("talweg_another_completion_fd: `fd` is NULL");
  return ToC(FromC(client)->AnotherCompletionFd(fd, LastError()));
}

talweg_status talweg_watch(talweg_client* client, talweg_tensor tensor, talweg_round round,
                           uint64_t tag) {
  if (client == nullptr) return Invalid("talweg_watch: `client` is NULL");
  return ToC(FromC(client)->Watch(kFirst, tensor, round, tag, LastError()));
}

talweg_status talweg_watch_by(talweg_client* client, int fd, talweg_tensor tensor,
                              talweg_round round, uint64_t tag) {
  if (client == nullptr) return Invalid("talweg_watch_by: `client` is NULL");
  if (fd < 0) return Invalid("talweg_watch_by: `fd` is negative");
  return ToC(FromC(client)->Watch(fd, tensor, round, tag, LastError()));
}

talweg_status talweg_completed(talweg_client* client, uint64_t* tags, size_t capacity,
                               size_t* count) {
  return CompletedBy("talweg_completed", client, kFirst, tags, capacity, count);
}

talweg_status talweg_completed_by(talweg_client* client, int fd, uint64_t* tags, size_t capacity,
                                  size_t* count) {
  if (fd < 0) {
    if (count != nullptr) *count = 0;
    return Invalid("talweg_completed_by: `fd` is negative");
  }
  return CompletedBy("talweg_completed_by", client, fd, tags, capacity, count);
}

}  // extern "C"
