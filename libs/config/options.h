// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_OPTIONS_H_
#define TALWEG_LIBS_CONFIG_OPTIONS_H_

#include <functional>
#include <string>
#include <vector>

#include "libs/config/config.h"

namespace talweg::config {

// All that there is to know about an option. Flag, environment variable, field of the file, help
// and documentation all come from here.
struct OptionText {
  std::string name;  // Flag --name, field `name`, environment TALWEG_NAME.
  std::string type;
  std::string default_text;  // One that may be written in place of giving nothing.
  std::string default_note;  // What the default means where its text does not say it.
  std::string allowed;
  std::string help;
  bool is_switch = false;  // --name alone means true, --noname false.

  std::string EnvironmentName() const;
};

template <typename Config>
struct Option : OptionText {
  // "" and the field set, or what is wrong with the text.
  std::function<std::string(Config&, const std::string& text)> set;
};

// What an error about this option says after the problem.
std::string Remedy(const OptionText& option);

const std::vector<Option<SchedulerConfig>>& OptionsOf(const SchedulerConfig*);
const std::vector<Option<AggregatorConfig>>& OptionsOf(const AggregatorConfig*);
const std::vector<Option<AgentConfig>>& OptionsOf(const AgentConfig*);

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_OPTIONS_H_
