// SPDX-License-Identifier: Apache-2.0
#include "libs/config/config.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "libs/base/check.h"
#include "libs/config/load.h"

namespace talweg::config {
namespace {

// Any input gives a usable configuration, or an error with a text.
template <typename Config>
void Check(const absl::StatusOr<Config>& config) {
  TALWEG_CHECK(config.ok() || !config.status().message().empty());
}

// One flag on each line. The fuzzer does not choose the file that --config names.
std::vector<std::string> Args(const std::string& text) {
  std::vector<std::string> args;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string arg = text.substr(begin, end - begin);
    if (arg.find("config") == std::string::npos) args.push_back(arg);
    begin = end + 1;
  }
  return args;
}

void Run(uint8_t what, const std::string& text) {
  switch (what % 6) {
    case 0: return Check(ParseSchedulerFile(text, "fuzzed"));
    case 1: return Check(ParseAggregatorFile(text, "fuzzed"));
    case 2: return Check(ParseAgentFile(text, "fuzzed"));
    case 3: return Check(LoadSchedulerConfig(Args(text), {}));
    case 4: return Check(LoadAggregatorConfig({}, {{"TALWEG_LISTEN", text}}));
    case 5: return Check(LoadAgentConfig(Args(text), {}));
  }
}

}  // namespace
}  // namespace talweg::config

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes == 0) return 0;
  talweg::config::Run(data[0], std::string(reinterpret_cast<const char*>(data + 1), bytes - 1));
  return 0;
}
