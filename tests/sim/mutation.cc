// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/mutation.h"

#include <map>

namespace talweg::sim {
namespace {

struct Switches {
  std::map<std::string, bool> on;
  std::set<std::string> seen;
  std::string name;
};

Switches& TheSwitches() {
  static Switches switches;
  return switches;
}

}  // namespace

void TurnOnMutation(const std::string& name) {
  Switches& switches = TheSwitches();
  switches.name = name;
  for (auto& [known, on] : switches.on) on = known == name;
}

const std::set<std::string>& MutationsSeen() { return TheSwitches().seen; }

const bool* MutationSwitch(const char* name) {
  Switches& switches = TheSwitches();
  switches.seen.insert(name);
  // Nodes of a map stay where they are.
  return &switches.on.try_emplace(name, switches.name == name).first->second;
}

}  // namespace talweg::sim
