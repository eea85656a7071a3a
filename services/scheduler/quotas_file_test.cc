// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/quotas_file.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>

#include "libs/base/test_directory.h"

namespace talweg::scheduler {
namespace {

void Write(const std::string& path, const std::string& text) {
  // Does as an editor does: puts another file in its place.
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
}

TEST_CASE("QuotasFile: it is read anew when it has changed, and only then", "[scheduler]") {
  const TestDirectory directory;
  const std::string path = directory.Path("quotas");
  Write(path, "job a weight=2\n");
  QuotasFile file(path);
  const auto first = file.Read();
  REQUIRE(first.ok());
  CHECK(first->For("a", "").share.weight == 2);
  CHECK_FALSE(file.ReadIfChanged());
  Write(path, "job a weight=3\n");
  const auto second = file.ReadIfChanged();
  REQUIRE(second);
  REQUIRE(second->ok());
  CHECK((*second)->For("a", "").share.weight == 3);
  CHECK_FALSE(file.ReadIfChanged());
}

TEST_CASE("QuotasFile: an error names the file, and is reported once", "[scheduler]") {
  const TestDirectory directory;
  const std::string path = directory.Path("quotas");
  QuotasFile file(path);
  CHECK_THAT(std::string(file.Read().status().message()),
             Catch::Matchers::Contains("read the quotas file " + path + ": No such file"));
  CHECK_FALSE(file.ReadIfChanged());
  Write(path, "\njob a weight=x\n");
  const auto wrong = file.ReadIfChanged();
  REQUIRE(wrong);
  CHECK_THAT(std::string(wrong->status().message()),
             Catch::Matchers::Contains("the quotas file " + path +
                                       ": line 2 has a wrong setting: weight is 'x'; give"));
  CHECK_FALSE(file.ReadIfChanged());
  Write(path, std::string((1 << 20) + 1, '#'));
  const auto large = file.ReadIfChanged();
  REQUIRE(large);
  CHECK_THAT(std::string(large->status().message()),
             Catch::Matchers::Contains("the quotas file " + path + " is larger than 1 MiB"));
}

}  // namespace
}  // namespace talweg::scheduler
