// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_FAKE_CONTROL_GROUPS_H_
#define TALWEG_LIBS_RUNTIME_FAKE_CONTROL_GROUPS_H_

#include <filesystem>
#include <fstream>
#include <string>

#include "libs/base/test_directory.h"

namespace talweg::runtime {

// A directory with files like the kernel's for control groups, for tests.
class FakeControlGroups {
 public:
  void Write(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = directory_.Path(file);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }
  const std::string& path() const { return directory_.path(); }

 private:
  TestDirectory directory_;
};

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_FAKE_CONTROL_GROUPS_H_
