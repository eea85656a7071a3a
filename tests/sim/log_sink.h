// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_LOG_SINK_H_
#define TALWEG_TESTS_SIM_LOG_SINK_H_

#include <functional>
#include <string>
#include <utility>

#include "libs/telemetry/log.h"

namespace talweg::sim {

// Receives the daemons' log lines while it lives.
class LogSink {
 public:
  explicit LogSink(std::function<void(const std::string& text)> sink) {
    telemetry::SetLogSink(
        [sink = std::move(sink)](telemetry::LogLevel, const std::string& text) { sink(text); });
  }
  ~LogSink() { telemetry::SetLogSink(nullptr); }
  LogSink(const LogSink&) = delete;
  LogSink& operator=(const LogSink&) = delete;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_LOG_SINK_H_
