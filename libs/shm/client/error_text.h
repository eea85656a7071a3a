// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_ERROR_TEXT_H_
#define TALWEG_LIBS_SHM_CLIENT_ERROR_TEXT_H_

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "libs/shm/layout/rank_status.h"

namespace talweg::shm {

// Where a call leaves the reason for its failure. Fixed size, no allocation; one thread.
class ErrorText {
 public:
  static constexpr size_t kBytesMax = 3072;  // Room for a text of the agent, and ours around it.

  const char* text() const { return text_; }

  // Sets the text and returns `status`: `return error.Fail(RankStatus::kBusy, "tensor '%s' ...",
  // name);`
  [[gnu::format(printf, 3, 4)]] RankStatus Fail(RankStatus status, const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text_, sizeof(text_), format, arguments);
    va_end(arguments);
    return status;
  }

 private:
  char text_[kBytesMax] = "";
};

// What follows a noun after its count: "%u rank%s".
constexpr const char* PluralEnd(uint64_t count) { return count == 1 ? "" : "s"; }

// The two arguments of "%.*s".
#define TALWEG_SHM_PRINTED(text) static_cast<int>((text).size()), (text).data()

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_ERROR_TEXT_H_
