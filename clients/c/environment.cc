// SPDX-License-Identifier: Apache-2.0
#include "clients/c/environment.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "clients/c/talweg.h"

namespace talweg::c {

using shm::ErrorText;
using shm::RankStatus;

namespace {

// Returns whether the text does not begin with a digit. strtoul takes space and signs, too, and
// makes a large number of a negative one.
bool IsNoNumber(const char* text) { return *text < '0' || *text > '9'; }

// Returns false if the variable is not set.
bool LocalRankFrom(const char* name, uint32_t* local_rank, RankStatus* status, ErrorText& error) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return false;
  char* end = nullptr;
  errno = 0;
  const unsigned long value = std::strtoul(text, &end, 10);
  if (errno != 0 || *end != '\0' || IsNoNumber(text) ||
      value >= TALWEG_LOCAL_RANK_FROM_ENVIRONMENT) {
    *status = error.Fail(RankStatus::kInvalidArgument,
                         "$%s is '%s', which is not a local rank; set it to 0, 1, ... or unset it",
                         name, text);
    return true;
  }
  *local_rank = static_cast<uint32_t>(value);
  return true;
}

}  // namespace

RankStatus LocalRankFromEnvironment(uint32_t* local_rank, ErrorText& error) {
  *local_rank = TALWEG_ANY_LOCAL_RANK;
  RankStatus status = RankStatus::kOk;
  if (!LocalRankFrom("TALWEG_LOCAL_RANK", local_rank, &status, error)) {
    LocalRankFrom("LOCAL_RANK", local_rank, &status, error);
  }
  return status;
}

RankStatus CacheBytesFromEnvironment(uint64_t* bytes, ErrorText& error) {
  *bytes = 0;
  const char* text = std::getenv("TALWEG_CACHE_BYTES");
  if (text == nullptr || *text == '\0') return RankStatus::kOk;
  char* end = nullptr;
  errno = 0;
  *bytes = std::strtoull(text, &end, 10);
  if (errno == 0 && *end == '\0' && !IsNoNumber(text) && *bytes > 0) return RankStatus::kOk;
  return error.Fail(RankStatus::kInvalidArgument,
                    "$TALWEG_CACHE_BYTES is '%s', which is not a number of bytes; set it to "
                    "what of the last cache gradients may take, or unset it",
                    text);
}

void SayThatAgentIsNeeded() {
  const char* path = std::getenv("TALWEG_RUN_NEEDS");
  if (path == nullptr || *path == '\0') return;
  const int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  if (fd >= 0) close(fd);
}

void SayThatAgentIsFound() {
  const char* path = std::getenv("TALWEG_RUN_NEEDS");
  if (path != nullptr && *path != '\0') unlink(path);
}

size_t CommandLine(char* out, size_t bytes_max) {
  const int fd = ::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t count = ::read(fd, out, bytes_max);
  ::close(fd);
  if (count <= 0) return 0;
  size_t bytes = static_cast<size_t>(count);
  while (bytes > 0 && out[bytes - 1] == '\0') --bytes;
  for (size_t i = 0; i < bytes; ++i) {
    if (out[i] == '\0') out[i] = ' ';
    // Names travel as UTF-8, and a cut sequence is not valid, so only ASCII stays.
    if (static_cast<unsigned char>(out[i]) >= 0x80) out[i] = '?';
  }
  return bytes;
}

}  // namespace talweg::c
