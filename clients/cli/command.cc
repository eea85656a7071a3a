// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/command.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "libs/config/nearest.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

const CommandOption* FindOption(const Command& command, const std::string& name) {
  for (const CommandOption& option : command.options) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

std::string OptionText(const CommandOption& option) {
  return absl::StrCat("--", option.name,
                      option.placeholder.empty() ? "" : absl::StrCat("=", option.placeholder));
}

std::string Wrapped(const std::string& text, size_t indent) {
  constexpr size_t kColumns = 96;
  std::string wrapped;
  size_t column = kColumns;
  for (const std::string& word :
       std::vector<std::string>(absl::StrSplit(text, absl::ByAnyChar(" \n")))) {
    if (column + 1 + word.size() > kColumns) {
      absl::StrAppend(&wrapped, wrapped.empty() ? "" : "\n", std::string(indent, ' '), word);
      column = indent + word.size();
    } else {
      absl::StrAppend(&wrapped, " ", word);
      column += 1 + word.size();
    }
  }
  return absl::StrCat(wrapped, "\n");
}

}  // namespace

std::string CommandHelp(const Command& command) {
  std::string help = absl::StrCat("Usage: talweg ", command.name, command.usage.empty() ? "" : " ",
                                  command.usage, "\n\n", command.details, "\n\nOptions:\n");
  for (const CommandOption& option : command.options) {
    absl::StrAppend(&help, "  ", OptionText(option), "\n", Wrapped(option.help, 6));
  }
  return absl::StrCat(help, "  --help\n      Prints this and exits.\n");
}

std::string ToolHelp(const std::vector<Command>& commands) {
  std::string help =
      "Usage: talweg COMMAND [OPTIONS]\n\n"
      "Sums gradients of data-parallel training.\n\nCommands:\n";
  for (const Command& command : commands) {
    if (command.hidden) continue;
    absl::StrAppend(&help, "  ", command.name,
                    std::string(command.name.size() < 12 ? 12 - command.name.size() : 1, ' '),
                    command.summary, "\n");
  }
  return absl::StrCat(help, "\n`talweg COMMAND --help` says more about each.\n");
}

absl::StatusOr<Arguments> Arguments::Parse(const Command& command,
                                           const std::vector<std::string>& args) {
  Arguments arguments;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg == "--help" || arg == "-h") {
      arguments.values_["help"] = "true";
      continue;
    }
    const bool is_option = arg.size() > 2 && arg.compare(0, 2, "--") == 0;
    if (!is_option) {
      if (command.operands == Operands::kNone || (arg.size() > 1 && arg[0] == '-' && arg != "--")) {
        return absl::InvalidArgumentError(absl::StrCat("talweg ", command.name, ": argument '", arg,
                                                       "' is not an option; see talweg ",
                                                       command.name, " --help"));
      }
      if (command.operands == Operands::kWords && arg != "--") {
        arguments.operands_.push_back(arg);
        continue;
      }
      const size_t first = arg == "--" ? i + 1 : i;
      arguments.operands_.insert(arguments.operands_.end(), args.begin() + first, args.end());
      break;
    }
    const size_t equals = arg.find('=');
    const bool has_value = equals != std::string::npos;
    std::string name = arg.substr(2, has_value ? equals - 2 : std::string::npos);
    std::replace(name.begin(), name.end(), '_', '-');
    const CommandOption* option = FindOption(command, name);
    if (option == nullptr) {
      std::vector<std::string> known;
      for (const CommandOption& each : command.options) known.push_back(each.name);
      const std::string nearest = config::NearestName(name, known);
      return absl::InvalidArgumentError(
          absl::StrCat("talweg ", command.name, ": unknown option --", name,
                       nearest.empty() ? "" : absl::StrCat("; did you mean --", nearest, "?"),
                       "; see talweg ", command.name, " --help"));
    }
    if (option->placeholder.empty() && has_value) {
      return absl::InvalidArgumentError(absl::StrCat("talweg ", command.name, ": option --", name,
                                                     " takes no value, but was given '",
                                                     arg.substr(equals + 1), "'"));
    }
    if (option->placeholder.empty()) {
      arguments.values_[name] = "true";
    } else if (has_value) {
      arguments.values_[name] = arg.substr(equals + 1);
    } else if (i + 1 < args.size()) {
      arguments.values_[name] = args[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("talweg ", command.name, ": option --", name,
                                                     " has no value; write --", name, "=",
                                                     option->placeholder));
    }
  }
  return arguments;
}

std::string Arguments::Text(const std::string& option, const std::string& default_text) const {
  const auto value = values_.find(option);
  return value == values_.end() ? default_text : value->second;
}

absl::StatusOr<uint64_t> Arguments::Number(const std::string& option, uint64_t default_value,
                                           uint64_t min, uint64_t max) const {
  const auto value = values_.find(option);
  if (value == values_.end()) return default_value;
  TALWEG_ASSIGN_OR_RETURN(const std::vector<uint64_t> numbers,
                          ParseNumbers(absl::StrCat("option --", option), value->second, min, max));
  if (numbers.size() == 1) return numbers[0];
  return absl::InvalidArgumentError(
      absl::StrCat("option --", option, ": '", value->second, "' is more than one number"));
}

absl::StatusOr<std::vector<uint64_t>> ParseNumbers(const std::string& what, const std::string& text,
                                                   uint64_t min, uint64_t max) {
  std::vector<uint64_t> numbers;
  for (const std::string& piece : std::vector<std::string>(absl::StrSplit(text, ','))) {
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(piece.data(), piece.data() + piece.size(), number);
    if (error != std::errc() || end != piece.data() + piece.size() || number < min ||
        number > max) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": '", piece, "' is not a number from ", min, " to ", max));
    }
    numbers.push_back(number);
  }
  return numbers;
}

bool Print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return true;
  }
  PrintError(absl::StrCat("stdout cannot be written: ", std::strerror(errno),
                          "; what is there is not complete"));
  return false;
}

void PrintError(const std::string& text) { std::fprintf(stderr, "talweg: %s\n", text.c_str()); }

int Fail(const absl::Status& status) {
  PrintError(std::string(status.message()));
  return status.code() == absl::StatusCode::kInvalidArgument ? kExitUsage : kExitFailed;
}

std::string ToolDirectory() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string(".") : self.parent_path().string();
}

absl::StatusOr<std::string> FindDaemon(const std::string& name) {
  const std::string tool_directory = ToolDirectory();
  const std::string service = name.substr(name.find('-') + 1);
  std::vector<std::string> places;
  if (const char* told = std::getenv("TALWEG_DAEMON_DIR"); told != nullptr && *told != '\0') {
    places = {told};
  } else {
    places = {tool_directory, absl::StrCat(tool_directory, "/../../services/", service)};
  }
  for (const std::string& place : places) {
    const std::string path = absl::StrCat(place, "/", name);
    if (access(path.c_str(), X_OK) == 0 && !std::filesystem::is_directory(path)) return path;
  }
  return absl::NotFoundError(absl::StrCat("program ", name, " is not in ",
                                          absl::StrJoin(places, " or "),
                                          "; install it there, or set TALWEG_DAEMON_DIR"));
}

}  // namespace talweg::cli
