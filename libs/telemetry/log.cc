// SPDX-License-Identifier: Apache-2.0
#include "libs/telemetry/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>

namespace talweg::telemetry {
namespace {

spdlog::level::level_enum SpdlogLevel(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: break;
  }
  return spdlog::level::off;
}

std::shared_ptr<spdlog::logger> MakeLogger(const std::string& who) {
  auto logger =
      std::make_shared<spdlog::logger>(who, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      "%Y-%m-%dT%H:%M:%S.%fZ %L %n %v", spdlog::pattern_time_type::utc));
  logger->set_level(spdlog::level::debug);
  return logger;
}

// StartLog replaces it before there are threads; afterwards all threads read it. It is never
// destroyed, because threads may log while the process ends.
std::shared_ptr<spdlog::logger>& Logger() {
  static auto* const logger = new std::shared_ptr<spdlog::logger>(MakeLogger("talweg"));
  return *logger;
}

std::atomic<LogLevel> least_level{LogLevel::kInfo};

// Never destroyed, as the logger.
std::function<void(LogLevel, const std::string&)>& Sink() {
  static auto* const sink = new std::function<void(LogLevel, const std::string&)>;
  return *sink;
}

bool IsControl(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

// U+0080 to U+009F, in UTF-8: terminals obey them as they do ESC and what follows it.
bool IsLateControl(const std::string& text, size_t at) {
  return text[at] == '\xc2' && at + 1 < text.size() && (text[at + 1] & 0xe0) == 0x80;
}

// Whole characters of UTF-8.
std::string Beginning(const std::string& text) {
  size_t bytes = kLineBytesMax;
  while (bytes > 0 && (text[bytes] & 0xc0) == 0x80) --bytes;
  return text.substr(0, bytes) + "... (" + std::to_string(text.size()) + " bytes)";
}

std::string Escaped(const std::string& text) {
  constexpr char kHex[] = "0123456789abcdef";
  const auto in_hex = [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return std::string{kHex[byte >> 4], kHex[byte & 15]};
  };
  std::string escaped;
  escaped.reserve(text.size() + 8);
  for (size_t i = 0; i < text.size(); ++i) {
    if (IsLateControl(text, i)) {
      escaped += "\\u00" + in_hex(text[++i]);
    } else if (!IsControl(text[i])) {
      escaped += text[i];
    } else if (text[i] == '\n') {
      escaped += "\\n";
    } else {
      escaped += "\\x" + in_hex(text[i]);
    }
  }
  return escaped;
}

}  // namespace

void StartLog(std::string_view process_name, uint64_t incarnation, LogLevel level) {
  Logger() = MakeLogger(fmt::format("{}[{:08x}]", process_name, incarnation));
  least_level.store(level, std::memory_order_relaxed);
}

bool ParseLogLevel(std::string_view text, LogLevel* level) {
  constexpr std::string_view kNames[] = {"debug", "info", "warning", "error", "off"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (text != kNames[i]) continue;
    *level = static_cast<LogLevel>(i);
    return true;
  }
  return false;
}

bool LogEnabled(LogLevel level) {
  return level >= least_level.load(std::memory_order_relaxed) && level != LogLevel::kOff;
}

void SetLogSink(std::function<void(LogLevel, const std::string&)> sink) {
  Sink() = std::move(sink);
}

void internal::WriteLog(LogLevel level, const std::string& text) {
  if (Sink()) return Sink()(level, text);
  const std::string line = Escaped(text.size() > kLineBytesMax ? Beginning(text) : text);
  Logger()->log(SpdlogLevel(level), spdlog::string_view_t(line));
}

std::optional<uint64_t> BoundedLog::Take(int64_t now_ns) {
  constexpr int64_t kLineNs = 1'000'000'000;
  const std::lock_guard lock(mutex_);
  const int64_t full_ns = std::max(full_ns_, now_ns) + kLineNs;
  if (full_ns - now_ns > kAtOnce * kLineNs) {
    ++left_out_;
    return std::nullopt;
  }
  full_ns_ = full_ns;
  return std::exchange(left_out_, 0);
}

}  // namespace talweg::telemetry
