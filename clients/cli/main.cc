// SPDX-License-Identifier: Apache-2.0
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <string>
#include <vector>

#include "clients/cli/command.h"
#include "libs/config/nearest.h"

namespace talweg::cli {
namespace {

int Main(const std::vector<std::string>& args) {
  if (args.empty() || args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    if (args.size() == 2 && args[0] == "help") return Main({args[1], "--help"});
    const bool is_printed = Print(ToolHelp(Commands()));
    return args.empty() ? kExitUsage : is_printed ? 0 : kExitFailed;
  }
  const std::string name = args[0] == "--version" ? "version" : args[0];
  const std::vector<std::string> rest(args.begin() + 1, args.end());
  std::vector<std::string> names;
  for (const Command& command : Commands()) {
    names.push_back(command.name);
    if (command.name != name) continue;
    if (command.run_raw != nullptr) return command.run_raw(rest);
    const absl::StatusOr<Arguments> arguments = Arguments::Parse(command, rest);
    if (!arguments.ok()) return Fail(arguments.status());
    if (arguments->Has("help")) return Print(CommandHelp(command)) ? 0 : kExitFailed;
    return command.run(*arguments);
  }
  const std::string nearest = config::NearestName(name, names);
  PrintError(absl::StrCat("unknown command '", name, "'",
                          nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"),
                          "; see talweg --help"));
  return kExitUsage;
}

}  // namespace
}  // namespace talweg::cli

int main(int argc, char** argv) {
  return talweg::cli::Main(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
}
