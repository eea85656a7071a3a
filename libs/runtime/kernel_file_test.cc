// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/kernel_file.h"

#include <unistd.h>

#include <string>

#include <catch2/catch.hpp>

namespace talweg::runtime {
namespace {

TEST_CASE("ReadKernelFile: it reads the whole text, even of several lines") {
  CHECK(ReadKernelFile("/proc/self/stat").rfind(std::to_string(getpid()) + " (", 0) == 0);
  const std::string status = ReadKernelFile("/proc/self/status");
  CHECK(status.find("\nPid:\t" + std::to_string(getpid()) + "\n") != std::string::npos);
}

TEST_CASE("ReadKernelFile: a file that is not there, or cannot be read, gives no text") {
  CHECK(ReadKernelFile("/proc/self/no such file").empty());
  // This file can be opened. Reading it fails, as for a process that has ended meanwhile.
  CHECK(ReadKernelFile("/proc/self/mem").empty());
  CHECK(ReadKernelFile("/proc").empty());
}

}  // namespace
}  // namespace talweg::runtime
