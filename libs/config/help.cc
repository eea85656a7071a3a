// SPDX-License-Identifier: Apache-2.0
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <string>
#include <vector>

#include "libs/config/config.h"
#include "libs/config/options.h"

namespace talweg::config {
namespace {

constexpr size_t kColumns = 100;

std::string Wrapped(const std::string& text, const std::string& indent) {
  std::string wrapped;
  size_t column = 0;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' '))) {
    if (column == 0 || column + 1 + word.size() > kColumns) {
      absl::StrAppend(&wrapped, column == 0 ? "" : "\n", indent, word);
      column = indent.size() + word.size();
    } else {
      absl::StrAppend(&wrapped, " ", word);
      column += 1 + word.size();
    }
  }
  return absl::StrCat(wrapped, "\n");
}

// The text of a default, such as "" (the host's name), or 8MiB.
std::string DefaultOf(const OptionText& option, const std::string& quote) {
  const std::string text =
      option.default_text.empty() ? "empty" : absl::StrCat(quote, option.default_text, quote);
  if (option.default_note.empty()) return text;
  return absl::StrCat(text, ": ", option.default_note);
}

template <typename Config>
std::string Help(const std::string& program, const std::string& what) {
  std::string help = absl::StrCat(
      "Usage: ", program, " [--option=value ...]\n\n", what,
      "\nA value given here wins over the environment (TALWEG_<OPTION>), that over the file named\n"
      "by --config, that over the default.\n\nOptions:\n");
  for (const OptionText& option : Options<Config>()) {
    absl::StrAppend(&help, "  --", option.name,
                    option.is_switch ? "" : absl::StrCat("=<", option.type, ">"), "\n",
                    Wrapped(option.help, "      "),
                    Wrapped(absl::StrCat("Allowed: ", option.allowed, "."), "      "),
                    Wrapped(absl::StrCat("Default: ", DefaultOf(option, ""), "."), "      "));
  }
  return absl::StrCat(help, "  --help\n      Prints this and exits.\n");
}

template <typename Config>
std::string Table(const std::string& program, const std::string& message) {
  std::string page = absl::StrCat(
      "## ", program, "\n\nFile: message `", message, "` of `proto/config/config.proto`.\n\n",
      "| option | type | default | allowed | meaning |\n", "|---|---|---|---|---|\n");
  for (const OptionText& option : Options<Config>()) {
    absl::StrAppend(&page, "| `", option.name, "` | ", option.type, " | ", DefaultOf(option, "`"),
                    " | ", option.allowed, " | ", option.help, " |\n");
  }
  return absl::StrCat(page, "\n");
}

}  // namespace

std::string SchedulerHelp() {
  return Help<SchedulerConfig>(
      "talweg-scheduler",
      "Decides who is in a job, and tells everyone. Runs in the foreground; SIGTERM ends it.\n");
}

std::string AggregatorHelp() {
  return Help<AggregatorConfig>(
      "talweg-aggregator",
      "Sums slices of gradients for all jobs. Runs in the foreground; SIGTERM ends it.\n");
}

std::string AgentHelp() {
  return Help<AgentConfig>(
      "talweg-agent",
      "Serves the ranks of one job on one node. Runs in the foreground; SIGTERM ends it.\n");
}

std::string ConfigurationPage() {
  std::string page =
      "# Configuration\n\n"
      "<!-- Generated from libs/config/options.cc by //libs/config:configuration_page. Do not "
      "edit. "
      "-->\n\n"
      "Every daemon takes its options from four places; the first that has a value wins:\n\n"
      "1. flags: `--lease_ms=5000` or `--lease_ms 5000`; dashes may stand for underscores; "
      "switches:\n   `--standalone`, `--nostandalone`,\n"
      "2. environment variables: `TALWEG_LEASE_MS=5000`,\n"
      "3. the file named by `--config` or `TALWEG_CONFIG`, in protobuf's text format: `lease_ms: "
      "5000`,\n"
      "4. the default below.\n\n"
      "In the file, numbers stand without a unit, in bytes or milliseconds; flags and environment\n"
      "variables also take `8MiB` and `10s`. Text and addresses are quoted there: `listen:\n"
      "\"127.0.0.1:7447\"`. A value that is not allowed, and an option that does not exist, stop "
      "the\n"
      "daemon with an error that says what would do. Examples of all three files are in\n"
      "`deploy/config`.\n\n"
      "What the ranks read (`TALWEG_AGENT_SOCKET`) is said in [shared_memory.md](shared_memory.md)."
      "\n\n";
  absl::StrAppend(&page, Table<SchedulerConfig>("talweg-scheduler", "SchedulerConfig"),
                  Table<AggregatorConfig>("talweg-aggregator", "AggregatorConfig"),
                  Table<AgentConfig>("talweg-agent", "AgentConfig"));
  page.pop_back();
  return page;
}

}  // namespace talweg::config
