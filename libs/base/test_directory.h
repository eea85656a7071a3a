// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_TEST_DIRECTORY_H_
#define TALWEG_LIBS_BASE_TEST_DIRECTORY_H_

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "libs/base/check.h"

namespace talweg {

// A test's own directory, which is removed with everything in it. Its path is short, because a
// socket's path has 107 bytes and the directory that Bazel gives to a test may be longer.
class TestDirectory {
 public:
  TestDirectory() {
    const char* const given = std::getenv("TEST_TMPDIR");
    path_ = given != nullptr && std::string(given).size() < kParentBytesMax ? given : "/tmp";
    path_ += "/talweg-XXXXXX";
    TALWEG_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string Path(const std::string& name) const { return path_ + "/" + name; }

 private:
  static constexpr size_t kParentBytesMax = 60;

  std::string path_;
};

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_TEST_DIRECTORY_H_
