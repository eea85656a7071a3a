// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/daemons.h"

#include <absl/status/statusor.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "libs/config/secret_file.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

// Returns the texts of a file of /proc, each ended by NUL. nullopt: the file may not be read.
std::optional<std::vector<std::string>> Texts(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> texts = absl::StrSplit(text, '\0');
  if (texts.back().empty()) texts.pop_back();
  return texts;
}

absl::StatusOr<config::ProcessConfig> Load(const std::string& program,
                                           const std::vector<std::string>& args,
                                           const config::Environment& environment,
                                           const config::FileFinder& find) {
  if (program == "talweg-scheduler") {
    TALWEG_ASSIGN_OR_RETURN(config::SchedulerConfig config,
                            config::LoadSchedulerConfig(args, environment, find));
    return config::ProcessConfig(std::move(config));
  }
  if (program == "talweg-aggregator") {
    TALWEG_ASSIGN_OR_RETURN(config::AggregatorConfig config,
                            config::LoadAggregatorConfig(args, environment, find));
    return config::ProcessConfig(std::move(config));
  }
  TALWEG_ASSIGN_OR_RETURN(config::AgentConfig config,
                          config::LoadAgentConfig(args, environment, find));
  return config::ProcessConfig(std::move(config));
}

bool IsDaemon(const std::string& program) {
  return program == "talweg-scheduler" || program == "talweg-aggregator" ||
         program == "talweg-agent";
}

std::optional<RunningDaemon> DaemonOf(const std::string& process, int pid) {
  std::vector<std::string> words = Texts(process + "/cmdline").value_or(std::vector<std::string>());
  if (words.empty()) return std::nullopt;  // A thread of the kernel, or a process that is over.
  const std::string program = std::filesystem::path(words[0]).filename().string();
  if (!IsDaemon(program)) return std::nullopt;
  words.erase(words.begin());
  RunningDaemon daemon;
  daemon.name = absl::StrCat(program, " (process ", pid, ")");
  daemon.process = process;
  config::Environment environment;
  if (const auto variables = Texts(process + "/environ")) {
    daemon.environment_known = true;
    for (const std::string& each : *variables) {
      const size_t equals = each.find('=');
      if (equals != std::string::npos) {
        environment.emplace(each.substr(0, equals), each.substr(equals + 1));
      }
    }
  }
  const absl::StatusOr<config::ProcessConfig> config =
      Load(program, words, environment,
           [&daemon](const std::string& path) { return daemon.Find(path); });
  // The process may have ended meanwhile, and its files with it.
  if (!std::filesystem::exists(process)) return std::nullopt;
  daemon.status = config.status();
  if (config.ok()) daemon.config = *config;
  daemon.default_secret_file = config::DefaultSecretPath(environment);
  return daemon;
}

}  // namespace

std::string RunningDaemon::Shown(const std::string& path) const {
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::read_symlink(process + "/cwd", error);
  // An absolute path stays as it is.
  return error ? path : (directory / path).string();
}

std::string RunningDaemon::Find(const std::string& path) const {
  if (!path.starts_with('/')) return process + "/cwd/" + path;
  // A container has another root, and other files.
  const std::string root = process + "/root";
  struct stat its {};
  struct stat ours {};
  const bool is_other = stat(root.c_str(), &its) == 0 && stat("/", &ours) == 0 &&
                        (its.st_dev != ours.st_dev || its.st_ino != ours.st_ino);
  return is_other ? root + path : path;
}

std::vector<RunningDaemon> FindDaemons(const std::string& proc) {
  std::vector<RunningDaemon> daemons;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(proc, error)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    if (std::optional<RunningDaemon> daemon = DaemonOf(entry.path().string(), pid)) {
      daemons.push_back(*std::move(daemon));
    }
  }
  return daemons;
}

}  // namespace talweg::cli
