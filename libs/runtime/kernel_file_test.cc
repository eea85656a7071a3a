// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/kernel_file.h"

#include <unistd.h>

#include <string>

#include <catch2/catch.hpp>

namespace talweg::runtime {
namespace {

TEST_CASE("ReadKernelFile: the whole text, of several lines, too") {
  CHECK(ReadKernelFile("/proc/self/stat").rfind(std::to_string(getpid()) + " (", 0) == 0);
  const std::string status = ReadKernelFile("/proc/self/status");
  CHECK(status.find("\nPid:\t" + std::to_string(getpid()) + "\n") != std::string::npos);
}

TEST_CASE("ReadKernelFile: nothing of a file that is not there, or cannot be read") {
  CHECK(ReadKernelFile("/proc/self/no such file").empty());
  // It can be opened, but reading it fails, as for a process that has ended meanwhile.
  CHECK(ReadKernelFile("/proc/self/mem").empty());
  CHECK(ReadKernelFile("/proc").empty());
}

}  // namespace
}  // namespace talweg::runtime
