// SPDX-License-Identifier: Apache-2.0
#include "libs/config/secret_file.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>

#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/base/descriptor.h"
#include "libs/base/read_at_most.h"
#include "libs/config/write_all.h"
#include "libs/status/status.h"

namespace talweg::config {
namespace {

constexpr char kNone[] = "none";
constexpr size_t kBytesMin = 32;  // As long as 128 bits in hexadecimal digits.
constexpr size_t kBytesMax = 1024;
constexpr size_t kTokensBytesMax = 1 << 20;

std::string ValueOf(const Environment& environment, const std::string& name) {
  const auto variable = environment.find(name);
  return variable == environment.end() ? "" : variable->second;
}

std::string Octal(mode_t mode) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "%04o", mode & 07777);
  return text.data();
}

// Checks that only this user, and root, can have read or written the file.
absl::Status CheckOwnerAndMode(int fd, const std::string& what) {
  struct stat status;
  if (fstat(fd, &status) != 0) return status::ErrnoStatus(errno, absl::StrCat("stat ", what));
  if (!S_ISREG(status.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(what, " is not a file; name one"));
  }
  if (status.st_uid != geteuid() && status.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat(what, " belongs to user ", status.st_uid,
                                                    ", and this process runs as user ", geteuid(),
                                                    "; name a file of your own"));
  }
  if ((status.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(what, " has mode ", Octal(status.st_mode),
                                                    ": others than its owner may use it; run "
                                                    "chmod 600 on it"));
  }
  return absl::OkStatus();
}

enum class Readers { kOwner, kAnybody };

// Reads at most `bytes_max` bytes of the file.
absl::StatusOr<std::string> ReadFile(const std::string& path, const std::string& what,
                                     Readers readers, size_t bytes_max) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return status::ErrnoStatus(errno, absl::StrCat("open ", what));
  if (readers == Readers::kOwner) TALWEG_RETURN_IF_ERROR(CheckOwnerAndMode(file.get(), what));
  std::string text;
  if (ReadAtMost(file.get(), bytes_max, text)) return text;
  return status::ErrnoStatus(errno, absl::StrCat("read ", what));
}

absl::Status MakeParents(const std::string& path) {
  for (size_t slash = path.find('/', 1); slash != std::string::npos;
       slash = path.find('/', slash + 1)) {
    const std::string directory = path.substr(0, slash);
    if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
      return status::ErrnoStatus(errno, absl::StrCat("make directory ", directory));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string DefaultSecretPath(const Environment& environment) {
  const std::string config_home = ValueOf(environment, "XDG_CONFIG_HOME");
  if (!config_home.empty()) return absl::StrCat(config_home, "/talweg/secret");
  const std::string home = ValueOf(environment, "HOME");
  return home.empty() ? "" : absl::StrCat(home, "/.config/talweg/secret");
}

absl::StatusOr<std::string> LoadSecret(const ProcessConfig& config,
                                       const Environment& environment) {
  if (config.secret_file == kNone) return "";
  if (!config.secret_file.empty()) return ReadSecretFile(config.secret_file);
  const std::string path = DefaultSecretPath(environment);
  // Skips it also if HOME belongs to another user, who denies this one access.
  if (path.empty() || access(path.c_str(), F_OK) != 0) return "";
  return ReadSecretFile(path);
}

absl::StatusOr<std::string> ReadSecretFile(const std::string& path) {
  const std::string what = absl::StrCat("secret file '", path, "'");
  absl::StatusOr<std::string> read = ReadFile(path, what, Readers::kOwner, kBytesMax + 1);
  if (absl::IsNotFound(read.status())) {
    return absl::NotFoundError(absl::StrCat(read.status().message(),
                                            "; copy the scheduler's file there (talweg secret "
                                            "makes one), or give secret_file=none"));
  }
  TALWEG_RETURN_IF_ERROR(read.status());
  std::string_view secret = *read;
  while (secret.ends_with('\n') || secret.ends_with('\r')) secret.remove_suffix(1);
  if (secret.size() < kBytesMin || secret.size() > kBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " holds ", secret.size() > kBytesMax ? "more than " : "",
        Counted(std::min(secret.size(), kBytesMax), "byte"), "; a secret has ", kBytesMin, " to ",
        kBytesMax, " (move the file away and run talweg secret, which makes one)"));
  }
  return std::string(secret);
}

absl::StatusOr<AcceptedTokens> LoadAcceptedTokens(const ProcessConfig& config) {
  AcceptedTokens tokens;
  const auto load = [](const std::string& path, const char* option, Readers readers,
                       std::string& text) -> absl::Status {
    if (path.empty()) return absl::OkStatus();
    const std::string what = absl::StrCat(option, " '", path, "'");
    TALWEG_ASSIGN_OR_RETURN(text, ReadFile(path, what, readers, kTokensBytesMax + 1));
    if (text.size() <= kTokensBytesMax) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has more than ", kTokensBytesMax, " bytes; split it"));
  };
  TALWEG_RETURN_IF_ERROR(load(config.tokens_file, "tokens_file", Readers::kOwner, tokens.table));
  TALWEG_RETURN_IF_ERROR(
      load(config.token_keys_file, "token_keys_file", Readers::kAnybody, tokens.keys));
  return tokens;
}

absl::Status MakeSecretFile(const std::string& path) {
  const std::string what = absl::StrCat("secret file '", path, "'");
  TALWEG_RETURN_IF_ERROR(MakeParents(path));
  std::array<unsigned char, 32> drawn{};
  // So few bytes are never cut short, and the call fails only if it does not exist.
  TALWEG_CHECK(getrandom(drawn.data(), drawn.size(), 0) == static_cast<ssize_t>(drawn.size()));
  std::string text;
  for (const unsigned char byte : drawn) {
    constexpr char kDigits[] = "0123456789abcdef";
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  text += '\n';
  // A process that finds the file finds it whole.
  const std::string draft = absl::StrCat(path, ".", getpid());
  const Descriptor file(open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return status::ErrnoStatus(errno, absl::StrCat("make ", what));
  absl::Status status = WriteAll(file.get(), text, what);
  if (status.ok() && link(draft.c_str(), path.c_str()) != 0) {
    status = status::ErrnoStatus(errno, absl::StrCat("make ", what));
  }
  unlink(draft.c_str());
  return status;
}

}  // namespace talweg::config
