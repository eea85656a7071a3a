// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_LOAD_H_
#define TALWEG_LIBS_CONFIG_LOAD_H_

#include <absl/status/statusor.h>

#include <string>

#include "libs/config/config.h"

// The functions that tests, including the fuzz test, call without a file.
namespace talweg::config {

// As Load..., with the text of a configuration file; `path` only names the file in errors.
absl::StatusOr<SchedulerConfig> ParseSchedulerFile(const std::string& text,
                                                   const std::string& path);
absl::StatusOr<AggregatorConfig> ParseAggregatorFile(const std::string& text,
                                                     const std::string& path);
absl::StatusOr<AgentConfig> ParseAgentFile(const std::string& text, const std::string& path);

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_LOAD_H_
