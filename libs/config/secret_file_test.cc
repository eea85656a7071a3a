// SPDX-License-Identifier: Apache-2.0
#include "libs/config/secret_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>

#include "libs/base/test_directory.h"

namespace talweg::config {
namespace {

using Catch::Contains;

std::string Error(const absl::Status& status) { return std::string(status.message()); }

mode_t ModeOf(const std::string& path) {
  struct stat status;
  REQUIRE(stat(path.c_str(), &status) == 0);
  return status.st_mode & 07777;
}

TEST_CASE("Secret file: it is made once, only for its user, and read again", "[config]") {
  const TestDirectory directory;
  const std::string path = directory.Path("config/talweg/secret");
  umask(0);
  REQUIRE(MakeSecretFile(path).ok());
  CHECK(ModeOf(path) == 0600);
  CHECK(ModeOf(directory.Path("config/talweg")) == 0700);
  const auto secret = ReadSecretFile(path);
  REQUIRE(secret.ok());
  CHECK(secret->size() == 64);
  // Making a second one does not replace it.
  CHECK(absl::IsAlreadyExists(MakeSecretFile(path)));
  CHECK(ReadSecretFile(path).value() == *secret);
  const std::string other = directory.Path("other");
  REQUIRE(MakeSecretFile(other).ok());
  CHECK(ReadSecretFile(other).value() != *secret);
  // No draft remains.
  CHECK(std::distance(std::filesystem::directory_iterator(directory.Path("config/talweg")), {}) ==
        1);
}

TEST_CASE("Secret file: a file that others may use is refused, with its name, mode and the remedy",
          "[config]") {
  const TestDirectory directory;
  const std::string path = directory.Path("secret");
  REQUIRE(MakeSecretFile(path).ok());
  for (const mode_t mode : {0640, 0604, 0620, 0611}) {
    REQUIRE(chmod(path.c_str(), mode) == 0);
    const absl::Status status = ReadSecretFile(path).status();
    CHECK(absl::IsPermissionDenied(status));
    CHECK_THAT(Error(status), Contains("'" + path + "' has mode 06") && Contains("chmod 600"));
  }
  REQUIRE(chmod(path.c_str(), 0400) == 0);
  CHECK(ReadSecretFile(path).ok());
  // Root may give files away, unless its user namespace has no other user.
  if (chown(path.c_str(), 65534, 65534) != 0) return;
  CHECK_THAT(Error(ReadSecretFile(path).status()), Contains("belongs to user 65534"));
}

TEST_CASE("Secret file: a file that holds no secret is refused", "[config]") {
  const TestDirectory directory;
  const std::string path = directory.Path("secret");
  CHECK(absl::IsNotFound(ReadSecretFile(path).status()));
  CHECK_THAT(Error(ReadSecretFile(path).status()),
             Contains("No such file") && Contains("talweg secret makes one"));
  CHECK_THAT(Error(ReadSecretFile(directory.Path("")).status()), Contains("is not a file"));
  for (const size_t bytes : {0, 31, 1025, 5000}) {
    std::ofstream(path) << std::string(bytes, 'x') << "\n";
    REQUIRE(chmod(path.c_str(), 0600) == 0);
    CHECK_THAT(Error(ReadSecretFile(path).status()), Contains("a secret has 32 to 1024"));
  }
  std::ofstream(path) << std::string(32, 'x') << "\r\n";
  CHECK(ReadSecretFile(path).value() == std::string(32, 'x'));
}

TEST_CASE("Secret file: it may be named, or found in its place, or missing", "[config]") {
  const TestDirectory directory;
  const Environment environment = {{"HOME", directory.Path("home")}};
  CHECK(DefaultSecretPath({{"XDG_CONFIG_HOME", "/c"}, {"HOME", "/h"}}) == "/c/talweg/secret");
  CHECK(DefaultSecretPath({{"HOME", "/h"}}) == "/h/.config/talweg/secret");
  CHECK(DefaultSecretPath({}).empty());
  ProcessConfig config;
  CHECK(LoadSecret(config, environment).value().empty());
  CHECK(LoadSecret(config, {}).value().empty());
  REQUIRE(MakeSecretFile(DefaultSecretPath(environment)).ok());
  const std::string found = LoadSecret(config, environment).value();
  CHECK(found.size() == 64);
  config.secret_file = "none";
  CHECK(LoadSecret(config, environment).value().empty());
  config.secret_file = directory.Path("named");
  CHECK(absl::IsNotFound(LoadSecret(config, environment).status()));
  REQUIRE(MakeSecretFile(config.secret_file).ok());
  CHECK(LoadSecret(config, environment).value() != found);
  // An existing file that is open to others is an error. The program does not go on without it.
  config.secret_file.clear();
  REQUIRE(chmod(DefaultSecretPath(environment).c_str(), 0644) == 0);
  CHECK(absl::IsPermissionDenied(LoadSecret(config, environment).status()));
}

}  // namespace
}  // namespace talweg::config
