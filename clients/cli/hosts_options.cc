// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/hosts_options.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "clients/cli/guard.h"
#include "clients/cli/lines.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

constexpr uint64_t kCountMax = 65'536;
constexpr uint64_t kSecondsMax = 30 * 24 * 3'600;
constexpr const char* kLists[] = {"hosts", "hostfile", "host-discovery-script"};
// Options of `talweg run` that are valid here, too, beside HostsOptions().
constexpr const char* kAlike[] = {"nodes",
                                  "ranks-per-node",
                                  "aggregators",
                                  "job",
                                  "provider",
                                  "data-security",
                                  "loss-policy",
                                  "restarts",
                                  "min-nodes",
                                  "restart-window-s",
                                  "max-nodes",
                                  "restart-pause-ms",
                                  "gather-ms",
                                  "trace",
                                  "no-prefix",
                                  "master-addr",
                                  "master-port",
                                  "grace-ms",
                                  "ready-timeout-ms",
                                  "line-prefix",
                                  "output-dir"};
constexpr const char* kOthers[] = {"scheduler", "node-rank", "force-distributed"};

struct Range {
  const char* option;
  uint64_t min;
  uint64_t max;
};
constexpr Range kNumbers[] = {{"nodes", 1, kCountMax},
                              {"min-nodes", 1, kCountMax},
                              {"max-nodes", 1, kCountMax},
                              {"ranks", 1, kCountMax},
                              {"min-ranks", 1, kCountMax},
                              {"max-ranks", 1, kCountMax},
                              {"ranks-per-node", 1, 1024},
                              {"aggregators", 1, 64},
                              {"hosts-interval-s", 1, 3'600},
                              {"hosts-wait-s", 0, kSecondsMax},
                              {"host-changes-max", 0, 1'000'000},
                              {"ssh-port", 1, 65'535}};

absl::Status CheckBounds(const Arguments& arguments, const std::string& unit) {
  const uint64_t none = 0;
  TALWEG_ASSIGN_OR_RETURN(const uint64_t first, arguments.Number(unit, none, 0, kCountMax));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t least,
                          arguments.Number(absl::StrCat("min-", unit), none, 0, kCountMax));
  TALWEG_ASSIGN_OR_RETURN(const uint64_t most,
                          arguments.Number(absl::StrCat("max-", unit), none, 0, kCountMax));
  const auto above = [&](const char* low_name, uint64_t low, const char* high_name, uint64_t high) {
    if (low == 0 || high == 0 || low <= high) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("option --", low_name, unit, "=", low,
                                                   " is above --", high_name, unit, "=", high));
  };
  TALWEG_RETURN_IF_ERROR(above("min-", least, "", first));
  TALWEG_RETURN_IF_ERROR(above("min-", least, "max-", most));
  return above("", first, "max-", most);
}

absl::Status CheckCooldown(const Arguments& arguments) {
  if (!arguments.Has("host-cooldown-s")) return absl::OkStatus();
  const std::string text = arguments.Text("host-cooldown-s", "");
  TALWEG_ASSIGN_OR_RETURN(const std::vector<uint64_t> pauses,
                          ParseNumbers("option --host-cooldown-s", text, 1, 3'600));
  if (pauses.size() == 2 && pauses[0] <= pauses[1]) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("option --host-cooldown-s: '", text,
                   "' is not MIN,MAX: the first pause and the longest, in seconds"));
}

// The same check as that of _node/listed_hosts.py, before a Python is started.
absl::Status CheckHosts(const Arguments& arguments) {
  if (!arguments.Has("hosts")) return absl::OkStatus();
  const auto is_of_name = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-' || c >= 0x80;
  };
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  const std::string text = arguments.Text("hosts", "");
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(absl::StripAsciiWhitespace(part), absl::MaxSplits(':', 1));
    const auto& [name, slots] = parts;
    if (!name.empty() && name[0] != '-' && slots.size() <= 6 &&
        std::all_of(name.begin(), name.end(), is_of_name) &&
        std::all_of(slots.begin(), slots.end(), is_digit)) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "option --hosts: '", part, "' is not a host: write host or host:slots, as in a:2,b:4"));
  }
  return absl::OkStatus();
}

absl::Status Check(const Arguments& arguments) {
  if (arguments.operands().empty()) {
    return absl::InvalidArgumentError(
        "talweg run: no program; write it after --, as in: talweg run --hostfile hosts -- python "
        "train.py");
  }
  const auto is_given = [&](const char* name) { return arguments.Has(name); };
  if (std::count_if(std::begin(kLists), std::end(kLists), is_given) > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "talweg run: give one of --", absl::StrJoin(kLists, ", --"), ": several name the hosts"));
  }
  for (const char* name : kOthers) {
    if (!arguments.Has(name)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("option --", name,
                     " is not for hosts that come and go: the run has a scheduler of its own, "
                     "numbers its nodes and opens ports where hosts need them; leave it out"));
  }
  if (arguments.Text("loss-policy", "continue") != "continue") {
    return absl::InvalidArgumentError(
        "option --loss-policy=fail_job: a job whose hosts come and go has continue; leave it out");
  }
  TALWEG_RETURN_IF_ERROR(CheckHosts(arguments));
  TALWEG_RETURN_IF_ERROR(CheckPrefix(arguments.Text("line-prefix", "")));
  for (const Range& range : kNumbers) {
    TALWEG_RETURN_IF_ERROR(
        arguments.Number(range.option, range.min, range.min, range.max).status());
  }
  const bool in_ranks =
      arguments.Has("ranks") || arguments.Has("min-ranks") || arguments.Has("max-ranks");
  if (in_ranks &&
      (arguments.Has("nodes") || arguments.Has("min-nodes") || arguments.Has("max-nodes"))) {
    return absl::InvalidArgumentError(
        "talweg run: the job's bounds are given in nodes and in ranks: give one or the other");
  }
  TALWEG_RETURN_IF_ERROR(CheckBounds(arguments, in_ranks ? "ranks" : "nodes"));
  return CheckCooldown(arguments);
}

}  // namespace

std::vector<CommandOption> HostsOptions() {
  return {
      {"hosts", "HOST[:N],...", "Hosts that do not change, with N ranks each."},
      {"hostfile", "FILE",
       "A file of lines HOST, HOST:N or HOST slots=N, read again when it changes: a node runs on\n"
       "each host. N: its ranks; without it, --ranks-per-node."},
      {"host-discovery-script", "PATH",
       "A program that prints such lines, run again and again. With it, --hosts or --hostfile,\n"
       "--nodes says with how many the job begins."},
      {"hosts-interval-s", "S", "How often the file or the script is read. Default: 1."},
      {"hosts-wait-s", "S",
       "How long there may be too few hosts, at the beginning and later, before the job is ended.\n"
       "Default: 600."},
      {"ranks", "N",
       "With how many ranks the job begins: in place of --nodes, where slots differ."},
      {"min-ranks", "N", "In place of --min-nodes."},
      {"max-ranks", "N", "In place of --max-nodes."},
      {"host-cooldown-s", "MIN,MAX",
       "A host that fails is used again after so many seconds: MIN first, then twice as long each\n"
       "time, at most MAX. Default: when it has been off the list."},
      {"host-changes-max", "N",
       "How often hosts may come or go before the job is ended. Default: no limit."},
      {"network-interfaces", "NAME,...",
       "The first of these that a host has carries the data there."},
      {"ssh-port", "PORT", "The port of sshd on the hosts."},
      {"ssh-identity-file", "FILE", "The private key that ssh shows them."},
  };
}

bool ComesWithHosts(const Arguments& arguments) {
  const std::vector<CommandOption> options = HostsOptions();
  return std::any_of(options.begin(), options.end(),
                     [&](const CommandOption& option) { return arguments.Has(option.name); });
}

int RunOnHosts(const Arguments& arguments) {
  const auto is_given = [&](const char* name) { return arguments.Has(name); };
  if (std::none_of(std::begin(kLists), std::end(kLists), is_given)) {
    std::vector<std::string> given;
    for (const CommandOption& option : HostsOptions()) {
      if (arguments.Has(option.name)) given.push_back(absl::StrCat("--", option.name));
    }
    const std::string names = absl::StrJoin(given, ", ");
    return Fail(absl::InvalidArgumentError(absl::StrCat(
        names, given.size() == 1 ? " is" : " are",
        " for hosts that come and go, and no option names the hosts: give one of --",
        absl::StrJoin(kLists, ", --"),
        "; for a job whose nodes stay, say --nodes and --ranks-per-node in place of ", names)));
  }
  if (const absl::Status status = Check(arguments); !status.ok()) return Fail(status);
  const char* const told = std::getenv("TALWEG_PYTHON");
  std::vector<std::string> line = {
      told != nullptr && *told != '\0' ? told : "python3", "-c",
      // Does not import from the caller's directory.
      "import sys\n"
      "sys.path[:] = [path for path in sys.path if path]\n"
      "try:\n"
      "    from talweg._node import hosts_run\n"
      "except ImportError as error:\n"
      "    sys.exit(f'talweg: run: {error} in {sys.executable}: install the wheel there, or let '\n"
      "             'TALWEG_PYTHON name a Python that has it')\n"
      "hosts_run.main()\n"};
  for (const CommandOption& option : HostsOptions()) {
    if (!arguments.Has(option.name)) continue;
    line.push_back(absl::StrCat("--", option.name, "=", arguments.Text(option.name, "")));
  }
  for (const std::string name : kAlike) {
    if (!arguments.Has(name) || name == "loss-policy") continue;
    line.push_back(name == "no-prefix" ? "--no-prefix"
                                       : absl::StrCat("--", name, "=", arguments.Text(name, "")));
  }
  const absl::StatusOr<int> status = RunGuarded([&](const std::string& directory) {
    std::vector<std::string> words = line;
    words.push_back(absl::StrCat("--directory=", directory));
    words.emplace_back("--");
    words.insert(words.end(), arguments.operands().begin(), arguments.operands().end());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    // The signals that RunGuarded has blocked stay blocked until hosts_run.py takes them. So a
    // signal that comes before, for example when this process's parent dies, still makes it remove
    // the directory.
    execvp(pointers[0], pointers.data());
    return Fail(absl::NotFoundError(absl::StrCat(
        "talweg run: '", words[0], "', which starts nodes on hosts, cannot be started: ",
        std::strerror(errno), "; let TALWEG_PYTHON name a Python that has talweg")));
  });
  return status.ok() ? *status : Fail(status.status());
}

}  // namespace talweg::cli
