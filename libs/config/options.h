// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_OPTIONS_H_
#define TALWEG_LIBS_CONFIG_OPTIONS_H_

#include <functional>
#include <string>
#include <vector>

#include "libs/config/config.h"

namespace talweg::config {

// Everything about one option. Flag, environment variable, field of the file, help and
// documentation all come from here.
struct OptionText {
  std::string name;  // Flag --name, field `name`, environment TALWEG_NAME.
  std::string type;
  std::string default_text;  // Giving this text means the same as giving nothing.
  std::string default_note;  // What the default means, if its text does not say it.
  std::string allowed;
  std::string help;
  bool is_switch = false;  // --name alone means true, --noname false.

  std::string EnvironmentName() const;
};

template <typename Config>
struct Option : OptionText {
  // Sets the field and returns "", or returns what is wrong with the text.
  std::function<std::string(Config&, const std::string& text)> set;
};

// The end of an error about this option, after the problem.
std::string Remedy(const OptionText& option);

const std::vector<Option<SchedulerConfig>>& OptionsOf(const SchedulerConfig*);
const std::vector<Option<AggregatorConfig>>& OptionsOf(const AggregatorConfig*);
const std::vector<Option<AgentConfig>>& OptionsOf(const AgentConfig*);

template <typename Config>
const std::vector<Option<Config>>& Options() {
  return OptionsOf(static_cast<const Config*>(nullptr));
}

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_OPTIONS_H_
