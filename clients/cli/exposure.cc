// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/exposure.h"

#include <absl/strings/str_cat.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "clients/cli/daemons.h"
#include "libs/config/secret_file.h"
#include "libs/rpc/tls_files.h"

namespace talweg::cli {
namespace {

// Records what is found: each file and directory once, with all its users.
class Collector {
 public:
  explicit Collector(ExposureFacts* facts) : facts_(facts) {}

  // `shown`: the path for messages. `found`: the path that can be opened. `user`: a daemon, or ""
  // for this user.
  void AddTlsDirectory(const std::string& shown, const std::string& found,
                       const std::string& user) {
    for (const char* file : {"ca.crt", "ca.crl", "tls.key", "ca.key"}) {
      AddFile(file, absl::StrCat(shown, "/", file), absl::StrCat(found, "/", file), user);
    }
    // Where `talweg certs` puts the authority's key, and where people do.
    for (const char* file : {"../ca/ca.key", "../ca.key"}) {
      AddFile("ca.key", absl::StrCat(shown, "/", file), absl::StrCat(found, "/", file), user);
    }
    const std::optional<Place> place = PlaceOf(found, "");
    if (place) {
      if (const auto known = directories_.find(*place); known != directories_.end()) {
        return AddUser(user, facts_->tls[known->second].users);
      }
      directories_.emplace(*place, facts_->tls.size());
    }
    TlsFacts tls;
    tls.directory = shown;
    tls.users = user;
    const absl::StatusOr<rpc::TlsFiles> files = rpc::CheckTlsFiles(found);
    // The key's mode is checked with the files, and not every user may read the key.
    tls.is_readable = !absl::IsPermissionDenied(files.status());
    if (tls.is_readable) tls.error = std::string(files.status().message());
    if (files.ok()) {
      tls.error = std::string(rpc::CheckNotRevoked(*files).message());
      tls.revoked_until_unix_s = files->revoked_until_unix_s;
      tls.identity = files->identity ? rpc::Describe(*files->identity) : "no certificate";
      tls.expires_unix_s = files->expires_unix_s;
      tls.expires_first = shown + files->expires_first.substr(found.size());
    }
    facts_->tls.push_back(std::move(tls));
  }

  void AddFile(const std::string& what, const std::string& shown, const std::string& found,
               const std::string& user) {
    struct stat status {};
    const std::optional<Place> place = PlaceOf(found, what, &status);
    if (!place || !S_ISREG(status.st_mode)) return;
    const auto [known, is_new] = files_.emplace(*place, facts_->files.size());
    if (!is_new) return AddUser(user, facts_->files[known->second].users);
    facts_->files.push_back(
        {.what = what, .path = shown, .users = user, .mode = status.st_mode & 07777});
  }

 private:
  using Place = std::tuple<dev_t, ino_t, std::string>;

  static std::optional<Place> PlaceOf(const std::string& path, const std::string& what,
                                      struct stat* status = nullptr) {
    struct stat own {};
    if (status == nullptr) status = &own;
    if (stat(path.c_str(), status) != 0) return std::nullopt;
    return Place{status->st_dev, status->st_ino, what};
  }

  static void AddUser(const std::string& user, std::string& users) {
    if (!user.empty()) absl::StrAppend(&users, users.empty() ? "" : ", ", user);
  }

  ExposureFacts* const facts_;
  std::map<Place, size_t> directories_;
  std::map<Place, size_t> files_;
};

void AddDaemon(const RunningDaemon& daemon, Collector& collector, ExposureFacts& facts) {
  const config::ProcessConfig& config = daemon.config;
  const std::string& name = daemon.name;
  if (!daemon.environment_known) {
    facts.foreign_daemons.push_back(name);
    if (!daemon.status.ok()) return;
  }
  if (!daemon.status.ok()) {
    facts.unread_daemons.push_back(absl::StrCat(name, ": ", daemon.status.message()));
    return;
  }
  if (config.insecure) {
    facts.insecure_daemons.push_back(
        config.config.empty() ? name : absl::StrCat(name, ", of ", daemon.Shown(config.config)));
  }
  if (!config.tls_dir.empty()) {
    collector.AddTlsDirectory(daemon.Shown(config.tls_dir), daemon.Find(config.tls_dir), name);
  }
  const std::pair<const char*, std::string> files[] = {
      {"config", config.config},
      {"secret_file", config.secret_file.empty() ? daemon.default_secret_file : config.secret_file},
      {"token_file", config.token_file},
      {"tokens_file", config.tokens_file},
      {"token_keys_file", config.token_keys_file},
  };
  for (const auto& [what, path] : files) {
    if (!path.empty()) collector.AddFile(what, daemon.Shown(path), daemon.Find(path), name);
  }
}

}  // namespace

ExposureFacts ReadExposure(const OwnFiles& own, const config::Environment& environment,
                           const std::string& proc) {
  ExposureFacts facts;
  Collector collector(&facts);
  if (!own.tls_directory.empty()) {
    collector.AddTlsDirectory(own.tls_directory, own.tls_directory, "");
  }
  if (!own.token_file.empty()) {
    collector.AddFile("token_file", own.token_file, own.token_file, "");
  }
  const auto named = environment.find("TALWEG_SECRET_FILE");
  facts.secret_file =
      named == environment.end() ? config::DefaultSecretPath(environment) : named->second;
  if (facts.secret_file == "none" || access(facts.secret_file.c_str(), F_OK) != 0) {
    facts.secret_file.clear();
  } else {
    facts.secret_error = std::string(config::ReadSecretFile(facts.secret_file).status().message());
  }
  for (const RunningDaemon& daemon : FindDaemons(proc)) AddDaemon(daemon, collector, facts);
  // This user's own secret file is in the facts already.
  std::erase_if(facts.files, [&facts](const FileFacts& file) {
    std::error_code error;
    return file.what == "secret_file" && !facts.secret_file.empty() &&
           std::filesystem::equivalent(file.path, facts.secret_file, error);
  });
  return facts;
}

}  // namespace talweg::cli
