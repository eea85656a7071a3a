// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/completion.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>

#include <algorithm>

namespace talweg::cli {
namespace {

// "--nodes=", "--no-prefix", ...
std::vector<std::string> Words(const Command& command) {
  std::vector<std::string> words;
  if (command.option_names != nullptr) {
    for (const std::string& name : command.option_names()) {
      words.push_back(absl::StrCat("--", name, "="));
    }
  }
  for (const CommandOption& option : command.options) {
    words.push_back(absl::StrCat("--", option.name, option.placeholder.empty() ? "" : "="));
  }
  if (command.name == "completion") words.insert(words.end(), {"bash", "zsh", "fish"});
  words.push_back("--help");
  return words;
}

// Returns the text in a shell's single quotes.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string Bash(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  std::string cases;
  for (const Command& command : commands) {
    if (command.hidden) continue;
    names.push_back(command.name);
    absl::StrAppend(&cases, "    ", command.name, ") words='", absl::StrJoin(Words(command), " "),
                    "' ;;\n");
  }
  return absl::StrCat(
      "# bash completion of talweg; use: source <(talweg completion bash)\n"
      "_talweg() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} words='",
      absl::StrJoin(names, " "),
      " help --help --version' i\n"
      "  for ((i = 2; i < COMP_CWORD; i++)); do\n"
      "    # The program of `talweg run`, and its arguments.\n"
      "    if [[ ${COMP_WORDS[i]} == -- ]]; then\n"
      "      compopt -o default\n"
      "      COMPREPLY=()\n"
      "      return\n"
      "    fi\n"
      "  done\n"
      "  ((COMP_CWORD == 1)) || case ${COMP_WORDS[1]} in\n",
      cases,
      "    *) words= ;;\n"
      "  esac\n"
      "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
      "  [[ ${#COMPREPLY[@]} != 1 || ${COMPREPLY[0]} != *= ]] || compopt -o nospace\n"
      "}\n"
      "complete -o bashdefault -F _talweg talweg\n");
}

std::string Zsh(const std::vector<Command>& commands) {
  std::string names;
  std::string cases;
  for (const Command& command : commands) {
    if (command.hidden) continue;
    absl::StrAppend(&names, "    ",
                    Quoted(absl::StrCat(command.name, ":",
                                        absl::StrReplaceAll(command.summary, {{":", "\\:"}}))),
                    "\n");
    absl::StrAppend(&cases, "    ", command.name, ") compadd -S '' -- ",
                    absl::StrJoin(Words(command), " "), " ;;\n");
  }
  return absl::StrCat(
      "#compdef talweg\n"
      "# zsh completion of talweg; use: source <(talweg completion zsh)\n"
      "_talweg() {\n"
      "  local -a commands=(\n",
      names,
      "  )\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe command commands\n"
      "    return\n"
      "  fi\n"
      "  if ((${words[(I)--]})); then\n"
      "    _default\n"
      "    return\n"
      "  fi\n"
      "  case ${words[2]} in\n",
      cases,
      "  esac\n"
      "}\n"
      "compdef _talweg talweg\n");
}

std::string Fish(const std::vector<Command>& commands) {
  std::string script =
      "# fish completion of talweg; use: talweg completion fish | source\n"
      "complete -c talweg -f\n";
  for (const Command& command : commands) {
    if (command.hidden) continue;
    absl::StrAppend(&script, "complete -c talweg -n __fish_use_subcommand -a ", command.name,
                    " -d ", Quoted(command.summary), "\n");
    const std::string condition =
        absl::StrCat("complete -c talweg -n '__fish_seen_subcommand_from ", command.name, "' ");
    if (command.option_names != nullptr) {
      for (const std::string& name : command.option_names()) {
        absl::StrAppend(&script, condition, "-l ", name, " -r\n");
      }
    }
    for (const CommandOption& option : command.options) {
      absl::StrAppend(&script, condition, "-l ", option.name,
                      option.placeholder.empty() ? "" : " -r", " -d ", Quoted(option.help), "\n");
    }
  }
  return absl::StrCat(script,
                      "complete -c talweg -n '__fish_seen_subcommand_from completion' -a "
                      "'bash zsh fish'\n");
}

int RunCompletion(const Arguments& arguments) {
  if (arguments.operands().size() != 1) {
    return Fail(absl::InvalidArgumentError("talweg completion: name one shell: bash, zsh or fish"));
  }
  const std::string script = CompletionScript(arguments.operands()[0], Commands());
  if (!script.empty()) return Print(script) ? 0 : kExitFailed;
  return Fail(absl::InvalidArgumentError(absl::StrCat(
      "talweg completion: no shell '", arguments.operands()[0], "'; allowed: bash, zsh, fish")));
}

}  // namespace

std::string CompletionScript(const std::string& shell, const std::vector<Command>& commands) {
  if (shell == "bash") return Bash(commands);
  if (shell == "zsh") return Zsh(commands);
  if (shell == "fish") return Fish(commands);
  return "";
}

Command CompletionCommand() {
  Command command;
  command.name = "completion";
  command.summary = "Prints the completion script of a shell";
  command.usage = "bash|zsh|fish";
  command.details =
      "Prints a script for the shell to read:\n\n"
      "  source <(talweg completion bash)     in ~/.bashrc\n"
      "  source <(talweg completion zsh)      in ~/.zshrc, after compinit\n"
      "  talweg completion fish | source      in ~/.config/fish/config.fish";
  command.operands = Operands::kWords;
  command.run = RunCompletion;
  return command;
}

}  // namespace talweg::cli
