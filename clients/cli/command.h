// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_COMMAND_H_
#define TALWEG_CLIENTS_CLI_COMMAND_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace talweg::cli {

// The tool's own exit statuses: 1, the command failed; 2, its usage was wrong.
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;

struct CommandOption {
  std::string name;         // Without dashes: "ranks-per-node". Underscores are taken too.
  std::string placeholder;  // The name of its value in the help; empty: a switch without a value.
  std::string help;
};

// The words after the options.
enum class Operands {
  kNone,
  kProgram,  // A program and its arguments; `--` may stand before it.
  kWords,    // Words, between which options may stand.
};

class Arguments;

struct Command {
  std::string name;
  std::string summary;  // One line, for the list of commands.
  std::string usage;    // After "talweg <name> ".
  std::string details;  // Paragraphs of the help.
  Operands operands = Operands::kNone;
  std::vector<CommandOption> options;
  int (*run)(const Arguments& arguments) = nullptr;
  bool hidden = false;  // Not in the list of commands.
  // Used instead of `run`: gets the arguments unparsed, --help included.
  int (*run_raw)(const std::vector<std::string>& args) = nullptr;
  // The options of a run_raw command, for completion.
  std::vector<std::string> (*option_names)() = nullptr;
};

// The tool's commands, in the order of the help.
const std::vector<Command>& Commands();
std::string CommandHelp(const Command& command);
std::string ToolHelp(const std::vector<Command>& commands);

// The options and operands of one call.
class Arguments {
 public:
  // INVALID_ARGUMENT names the option and, if it is unknown, the nearest known one. Every command
  // knows --help.
  static absl::StatusOr<Arguments> Parse(const Command& command,
                                         const std::vector<std::string>& args);

  bool Has(const std::string& option) const { return values_.count(option) > 0; }
  // Returns the value that was given last.
  std::string Text(const std::string& option, const std::string& default_text) const;
  // INVALID_ARGUMENT names the option, the value and the range.
  absl::StatusOr<uint64_t> Number(const std::string& option, uint64_t default_value, uint64_t min,
                                  uint64_t max) const;
  const std::vector<std::string>& operands() const { return operands_; }

 private:
  std::map<std::string, std::string> values_;
  std::vector<std::string> operands_;
};

// Parses a comma-separated list of numbers from `min` to `max`. INVALID_ARGUMENT names `what` and
// the text.
absl::StatusOr<std::vector<uint64_t>> ParseNumbers(const std::string& what, const std::string& text,
                                                   uint64_t min, uint64_t max);

// Writes to stdout. If that fails (a closed pipe, a full disk), prints the error, and returns
// false.
bool Print(const std::string& text);
// Writes "talweg: ..." to stderr.
void PrintError(const std::string& text);
// Prints the error. Returns kExitUsage for INVALID_ARGUMENT, else kExitFailed.
int Fail(const absl::Status& status);

// Returns the directory of the tool's executable.
std::string ToolDirectory();
// Finds the executable of a daemon ("talweg-agent"): in $TALWEG_DAEMON_DIR, beside the tool, or in
// a build tree. NOT_FOUND names the places.
absl::StatusOr<std::string> FindDaemon(const std::string& name);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_COMMAND_H_
