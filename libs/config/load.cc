// SPDX-License-Identifier: Apache-2.0
#include "libs/config/load.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "libs/config/nearest.h"
#include "libs/config/options.h"
#include "libs/config/read_file.h"
#include "libs/status/status.h"
#include "proto/config/config.pb.h"

extern char** environ;

namespace talweg::config {
namespace {

template <typename Config>
std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& option : Options<Config>()) names.push_back(option.name);
  return names;
}

template <typename Config>
const Option<Config>* Find(const std::string& name) {
  for (const auto& option : Options<Config>()) {
    if (option.name == name) return &option;
  }
  return nullptr;
}

std::string DidYouMean(const std::string& name, const std::vector<std::string>& known,
                       const std::string& prefix) {
  const std::string nearest = NearestName(name, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", prefix, nearest, "?");
}

template <typename Config>
absl::Status Set(const Option<Config>& option, const std::string& where, const std::string& text,
                 Config& config) {
  const std::string problem = option.set(config, text);
  if (problem.empty()) return absl::OkStatus();
  const std::string shown = text.size() <= 200 ? text : absl::StrCat(text.substr(0, 200), "...");
  return absl::InvalidArgumentError(
      absl::StrCat("option ", where, ": '", shown, "' ", problem, "; ", Remedy(option)));
}

// The command line's flags, in order, as (name, text).
using Flags = std::vector<std::pair<std::string, std::string>>;

template <typename Config>
absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& args) {
  Flags flags;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& arg = args[i];
    if (arg.size() < 3 || arg.compare(0, 2, "--") != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "argument '", arg, "' is not an option; options are --name=value, see --help"));
    }
    const size_t equals = arg.find('=');
    const bool has_text = equals != std::string::npos;
    std::string name = arg.substr(2, has_text ? equals - 2 : std::string::npos);
    std::replace(name.begin(), name.end(), '-', '_');
    const Option<Config>* option = Find<Config>(name);
    if (option != nullptr && has_text) {
      flags.emplace_back(name, arg.substr(equals + 1));
      continue;
    }
    if (option != nullptr && option->is_switch) {
      flags.emplace_back(name, "true");
      continue;
    }
    if (option != nullptr) {
      if (i + 1 == args.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("option --", name, " has no value; ", Remedy(*option)));
      }
      flags.emplace_back(name, args[++i]);
      continue;
    }
    const Option<Config>* negated =
        name.compare(0, 2, "no") == 0 ? Find<Config>(name.substr(name[2] == '_' ? 3 : 2)) : nullptr;
    if (negated != nullptr && negated->is_switch && !has_text) {
      flags.emplace_back(negated->name, "false");
      continue;
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown option --", name, DidYouMean(name, Names<Config>(), "--"), "; --help lists all"));
  }
  return flags;
}

// Keeps the first error of a text-format file.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (!text_.empty()) return;
    line_ = line;
    column_ = column;
    text_ = message;
  }
  void AddWarning(int, google::protobuf::io::ColumnNumber, const std::string&) override {}

  int line() const { return line_; }
  int column() const { return column_; }
  const std::string& text() const { return text_; }

 private:
  int line_ = 0;
  int column_ = 0;
  std::string text_;
};

// The name that a line of the file begins with, as in `lease_ms: 5`.
std::string FieldOfLine(const std::string& text, int line) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (line < 0 || line >= static_cast<int>(lines.size())) return "";
  const std::string& content = lines[line];
  const size_t begin = content.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  const size_t end = content.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", begin);
  return content.substr(begin, end == std::string::npos ? end : end - begin);
}

bool IsOfName(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Returns the name of a field that the message does not have, as the file spells it: `lease-ms`,
// though a text-format name ends at the hyphen. "" if the error is another one.
std::string UnknownField(const std::string& text, const FirstError& error) {
  static constexpr std::string_view kMark = "has no field named \"";
  const size_t mark = error.text().find(kMark);
  if (mark == std::string::npos) return "";
  const size_t begin = mark + kMark.size();
  std::string name = error.text().substr(begin, error.text().find('"', begin) - begin);
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const size_t column = static_cast<size_t>(std::max(error.column(), 0));
  if (error.line() < 0 || error.line() >= static_cast<int>(lines.size())) return name;
  // The error is reported at what follows the name. A tab counts as up to eight columns, so the
  // name may not be where the column says.
  const std::string_view line = lines[error.line()];
  if (column < name.size() || column > line.size() ||
      line.substr(column - name.size(), name.size()) != name) {
    return name;
  }
  for (size_t i = column; i < line.size() && (line[i] == '-' || IsOfName(line[i])); ++i) {
    name += line[i];
  }
  return name;
}

template <typename Config>
absl::Status FileError(const std::string& text, const std::string& path, const FirstError& error) {
  const std::string where = absl::StrCat("configuration file '", path, "', line ", error.line() + 1,
                                         ", column ", error.column() + 1, ": ");
  if (const std::string unknown = UnknownField(text, error); !unknown.empty()) {
    // Whoever writes a name as a flag or a variable means the option.
    const std::string plain = absl::StrReplaceAll(absl::AsciiStrToLower(unknown), {{"-", "_"}});
    return absl::InvalidArgumentError(absl::StrCat(where, "unknown option '", unknown, "'",
                                                   DidYouMean(plain, Names<Config>(), ""),
                                                   "; --help lists all"));
  }
  const std::string field = FieldOfLine(text, error.line());
  const Option<Config>* const option = Find<Config>(field);
  return absl::InvalidArgumentError(absl::StrCat(
      where, error.text(),
      option == nullptr ? "" : absl::StrCat("; option ", field, ": ", Remedy(*option))));
}

std::string FieldText(const google::protobuf::Message& message,
                      const google::protobuf::FieldDescriptor& field) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.GetBool(message, &field) ? "true" : "false";
    case FieldDescriptor::CPPTYPE_INT32: return absl::StrCat(reflection.GetInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat(reflection.GetUInt32(message, &field));
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat(reflection.GetUInt64(message, &field));
    default: return reflection.GetString(message, &field);
  }
}

// Puts the file's fields into `config`.
template <typename Proto, typename Config>
absl::Status ApplyFile(const std::string& text, const std::string& path, Config& config) {
  Proto message;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(text, &message)) return FileError<Config>(text, path, error);
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const auto* field : fields) {
    const Option<Config>* option = Find<Config>(field->name());
    if (option == nullptr) continue;  // A test checks that the two lists are equal.
    TALWEG_RETURN_IF_ERROR(Set(*option,
                               absl::StrCat(field->name(), " (in configuration file '", path, "')"),
                               FieldText(message, *field), config));
  }
  return absl::OkStatus();
}

// Checks rules that concern several options.
absl::Status CheckTogether(const SchedulerConfig& config) {
  if (config.in_memory && !config.store_path.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("options --in_memory and --store_path='",
                                                   config.store_path,
                                                   "' exclude each other; leave one out"));
  }
  return absl::OkStatus();
}

// Checks that each lane has an address of its own.
absl::Status CheckLanes(const char* option, const ListenAddress& listen, uint32_t lanes) {
  if (!listen.path.empty() || listen.port_first == 0) return absl::OkStatus();
  const bool is_range = listen.port_last > listen.port_first;
  const uint32_t last = is_range ? listen.port_last : listen.port_first + lanes - 1;
  if (last <= 65'535 && last - listen.port_first + 1 >= lanes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "option --", option, "=", listen.ToString(), " has ",
      (is_range ? listen.port_last : 65'535) - listen.port_first + 1, " ports, and --lanes=", lanes,
      " takes one for each lane; give a range of as many ports, or port 0"));
}

absl::Status CheckTogether(const AggregatorConfig& config) {
  if (!config.listen.path.empty() && !config.local_transport) {
    return absl::InvalidArgumentError(
        absl::StrCat("option --listen=", config.listen.ToString(),
                     " serves agents through shared memory, which --local_transport=false "
                     "excludes; leave that out, or give --listen=host:port"));
  }
  TALWEG_RETURN_IF_ERROR(CheckLanes("listen", config.listen, config.lanes));
  return CheckLanes("admin_listen", config.admin_listen, config.lanes);
}

absl::Status CheckTogether(const AgentConfig& config) {
  if (config.min_members > config.max_members) {
    return absl::InvalidArgumentError(absl::StrCat("option --min_members=", config.min_members,
                                                   " is above --max_members=", config.max_members,
                                                   "; raise --max_members or lower --min_members"));
  }
  const uint32_t begin = config.begin_members;
  if (begin != 0 && (begin < config.min_members || begin > config.max_members)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "option --begin_members=", begin, " is not from --min_members=", config.min_members,
        " to --max_members=", config.max_members, "; give a number between them, or leave it out"));
  }
  if (IsUnixAddress(config.scheduler) && !config.local_transport && !config.standalone) {
    return absl::InvalidArgumentError(absl::StrCat(
        "option --scheduler=", config.scheduler,
        " is of this machine, and so are its aggregators, which are reached through shared memory; "
        "--local_transport=false excludes that: leave it out, or have the scheduler listen at "
        "host:port"));
  }
  if (config.standalone && (config.max_members > 1 || config.node_rank > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("option --standalone serves one node, but --max_members=", config.max_members,
                     " and --node_rank=", config.node_rank, "; leave --standalone out"));
  }
  return absl::OkStatus();
}

template <typename Proto, typename Config>
absl::StatusOr<Config> Load(const std::vector<std::string>& args, const Environment& environment,
                            const FileFinder& find) {
  TALWEG_ASSIGN_OR_RETURN(const Flags flags, ParseFlags<Config>(args));
  Config config;
  const auto apply = [&](bool only_config_path) -> absl::Status {
    for (const auto& option : Options<Config>()) {
      if ((option.name == "config") != only_config_path) continue;
      const auto variable = environment.find(option.EnvironmentName());
      if (variable != environment.end()) {
        TALWEG_RETURN_IF_ERROR(
            Set(option, absl::StrCat(option.name, " (environment ", variable->first, ")"),
                variable->second, config));
      }
    }
    for (const auto& [name, text] : flags) {
      if ((name == "config") != only_config_path) continue;
      TALWEG_RETURN_IF_ERROR(Set(*Find<Config>(name), absl::StrCat("--", name), text, config));
    }
    return absl::OkStatus();
  };
  TALWEG_RETURN_IF_ERROR(apply(true));
  if (!config.config.empty()) {
    TALWEG_ASSIGN_OR_RETURN(const std::string text,
                            ReadSmallFile(find ? find(config.config) : config.config,
                                          absl::StrCat("configuration file '", config.config, "'"),
                                          " (option --config or TALWEG_CONFIG)",
                                          find ? FileKind::kRegular : FileKind::kAny));
    TALWEG_RETURN_IF_ERROR(ApplyFile<Proto>(text, config.config, config));
  }
  TALWEG_RETURN_IF_ERROR(apply(false));
  TALWEG_RETURN_IF_ERROR(CheckTogether(config));
  return config;
}

template <typename Proto, typename Config>
absl::StatusOr<Config> ParseFile(const std::string& text, const std::string& path) {
  Config config;
  TALWEG_RETURN_IF_ERROR(ApplyFile<Proto>(text, path, config));
  TALWEG_RETURN_IF_ERROR(CheckTogether(config));
  return config;
}

template <typename Config>
Config OrExit(int argc, char** argv,
              absl::StatusOr<Config> (*load)(const std::vector<std::string>&, const Environment&,
                                             const FileFinder&),
              std::string (*help)()) {
  const std::vector<std::string> args(argv + std::min(argc, 1), argv + argc);
  const char* slash = argc > 0 ? std::strrchr(argv[0], '/') : nullptr;
  const std::string program = argc == 0 ? "talweg" : slash == nullptr ? argv[0] : slash + 1;
  if (HelpWanted(args)) {
    const std::string text = help();
    if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
        std::fflush(stdout) == 0) {
      std::exit(0);
    }
    std::fprintf(stderr, "%s: stdout cannot be written: %s\n", program.c_str(),
                 std::strerror(errno));
    std::exit(1);
  }
  absl::StatusOr<Config> config = load(args, ProcessEnvironment(), {});
  if (!config.ok()) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(),
                 std::string(config.status().message()).c_str());
    std::exit(2);
  }
  return *std::move(config);
}

}  // namespace

Environment ProcessEnvironment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

bool HelpWanted(const std::vector<std::string>& args) {
  return std::find(args.begin(), args.end(), "--help") != args.end() ||
         std::find(args.begin(), args.end(), "-h") != args.end();
}

absl::StatusOr<SchedulerConfig> LoadSchedulerConfig(const std::vector<std::string>& args,
                                                    const Environment& environment,
                                                    const FileFinder& find) {
  return Load<v1::SchedulerConfig, SchedulerConfig>(args, environment, find);
}

absl::StatusOr<AggregatorConfig> LoadAggregatorConfig(const std::vector<std::string>& args,
                                                      const Environment& environment,
                                                      const FileFinder& find) {
  return Load<v1::AggregatorConfig, AggregatorConfig>(args, environment, find);
}

absl::StatusOr<AgentConfig> LoadAgentConfig(const std::vector<std::string>& args,
                                            const Environment& environment,
                                            const FileFinder& find) {
  return Load<v1::AgentConfig, AgentConfig>(args, environment, find);
}

SchedulerConfig SchedulerConfigOrExit(int argc, char** argv) {
  return OrExit<SchedulerConfig>(argc, argv, LoadSchedulerConfig, SchedulerHelp);
}

AggregatorConfig AggregatorConfigOrExit(int argc, char** argv) {
  return OrExit<AggregatorConfig>(argc, argv, LoadAggregatorConfig, AggregatorHelp);
}

AgentConfig AgentConfigOrExit(int argc, char** argv) {
  return OrExit<AgentConfig>(argc, argv, LoadAgentConfig, AgentHelp);
}

absl::StatusOr<SchedulerConfig> ParseSchedulerFile(const std::string& text,
                                                   const std::string& path) {
  return ParseFile<v1::SchedulerConfig, SchedulerConfig>(text, path);
}

absl::StatusOr<AggregatorConfig> ParseAggregatorFile(const std::string& text,
                                                     const std::string& path) {
  return ParseFile<v1::AggregatorConfig, AggregatorConfig>(text, path);
}

absl::StatusOr<AgentConfig> ParseAgentFile(const std::string& text, const std::string& path) {
  return ParseFile<v1::AgentConfig, AgentConfig>(text, path);
}

std::vector<std::string> SchedulerOptionNames() { return Names<SchedulerConfig>(); }
std::vector<std::string> AggregatorOptionNames() { return Names<AggregatorConfig>(); }
std::vector<std::string> AgentOptionNames() { return Names<AgentConfig>(); }

}  // namespace talweg::config
