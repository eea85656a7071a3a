// SPDX-License-Identifier: Apache-2.0
#include "libs/telemetry/counter.h"

#include <algorithm>

namespace talweg::telemetry {

Counter& CounterSet::Get(const std::string& name, const std::string& help) {
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    if (entry.name != name) continue;
    if (entry.help.empty()) entry.help = help;
    return entry.counter;
  }
  Entry& entry = entries_.emplace_back();
  entry.name = name;
  entry.help = help;
  return entry.counter;
}

std::vector<CounterValue> CounterSet::Snapshot() const {
  std::vector<CounterValue> values;
  {
    const std::lock_guard lock(mutex_);
    values.reserve(entries_.size());
    for (const Entry& entry : entries_) {
      values.push_back({entry.name, entry.help, entry.counter.value()});
    }
  }
  std::sort(values.begin(), values.end(),
            [](const CounterValue& a, const CounterValue& b) { return a.name < b.name; });
  return values;
}

}  // namespace talweg::telemetry
