// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include <catch2/catch.hpp>

namespace {

using Open = FILE* (*)(const char* path, const char* mode);

bool Opens(const char* path) {
  // The one that libfabric calls.
  const auto open = reinterpret_cast<Open>(dlsym(RTLD_DEFAULT, "fopen"));
  REQUIRE(open != nullptr);
  FILE* const file = open(path, "r");
  if (file == nullptr) return false;
  fclose(file);
  return true;
}

TEST_CASE("Kernel symbols: libfabric can read them only where there are RDMA devices",
          "[transport]") {
  CHECK(Opens("/proc/self/comm"));
  CHECK_FALSE(Opens("/proc/self/no_such_file"));
#if !defined(__SANITIZE_ADDRESS__) && !defined(_GLIBCXX_TSAN)
  errno = 0;
  if (access("/sys/class/infiniband", F_OK) != 0) {
    CHECK_FALSE(Opens("/proc/kallsyms"));
    CHECK(errno == ENOENT);
  } else {
    CHECK(Opens("/proc/kallsyms"));
  }
#endif
}

}  // namespace
