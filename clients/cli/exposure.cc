// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/exposure.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "libs/config/secret_file.h"
#include "libs/rpc/tls_files.h"

namespace talweg::cli {
namespace {

// The words of a file of /proc, which end with NUL.
std::vector<std::string> Words(const std::filesystem::path& path) {
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return absl::StrSplit(text, '\0', absl::SkipEmpty());
}

bool IsFalse(absl::string_view word) {
  bool value = true;
  return absl::SimpleAtob(word, &value) ? !value : absl::EqualsIgnoreCase(word, "off");
}

// As a daemon reads its options: a word that means true in one of its ways, or is none, is true.
bool SaysInsecure(const std::filesystem::path& process) {
  for (const std::string& each : Words(process / "cmdline")) {
    absl::string_view word = each;
    if (!absl::ConsumePrefix(&word, "--insecure") && !absl::ConsumePrefix(&word, "-insecure")) {
      continue;
    }
    if (word.empty() || (absl::ConsumePrefix(&word, "=") && !IsFalse(word))) return true;
  }
  for (const std::string& each : Words(process / "environ")) {
    absl::string_view word = each;
    if (absl::ConsumePrefix(&word, "TALWEG_INSECURE=") && !IsFalse(word)) return true;
  }
  return false;
}

// Daemons that were told to serve a network without TLS, as far as this user may look.
std::vector<std::string> InsecureDaemons() {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    int pid = 0;
    const std::string name = entry.path().filename().string();
    if (!absl::SimpleAtoi(name, &pid)) continue;
    const std::vector<std::string> words = Words(entry.path() / "cmdline");
    if (words.empty()) continue;
    const std::string program = std::filesystem::path(words[0]).filename().string();
    const bool daemon = program == "talweg-scheduler" || program == "talweg-aggregator" ||
                        program == "talweg-agent";
    if (daemon && SaysInsecure(entry.path())) {
      found.push_back(absl::StrCat(program, " (process ", pid, ")"));
    }
  }
  return found;
}

}  // namespace

ExposureFacts ReadExposure(const Arguments& arguments) {
  ExposureFacts facts;
  const char* told = std::getenv("TALWEG_TLS_DIR");
  facts.tls_directory = arguments.Text("tls-dir", told == nullptr ? "" : told);
  if (!facts.tls_directory.empty()) {
    const absl::StatusOr<rpc::TlsFiles> files = rpc::CheckTlsFiles(facts.tls_directory);
    facts.tls_error = std::string(files.status().message());
    if (files.ok()) {
      facts.tls_expires_unix_s = files->expires_unix_s;
      facts.tls_identity = files->identity ? rpc::Describe(*files->identity) : "no certificate";
    }
  }
  const config::Environment environment = config::ProcessEnvironment();
  const auto named = environment.find("TALWEG_SECRET_FILE");
  facts.secret_file =
      named == environment.end() ? config::DefaultSecretPath(environment) : named->second;
  if (facts.secret_file == "none" || access(facts.secret_file.c_str(), F_OK) != 0) {
    facts.secret_file.clear();
  } else {
    facts.secret_error = std::string(config::ReadSecretFile(facts.secret_file).status().message());
  }
  facts.insecure_daemons = InsecureDaemons();
  return facts;
}

}  // namespace talweg::cli
