// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TELEMETRY_LOG_H_
#define TALWEG_LIBS_TELEMETRY_LOG_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

namespace talweg::telemetry {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarning, kError, kOff };

// Names the process that writes. main() calls it once, before there are threads. Lines go to
// stderr, with one write each:
//   2026-11-21T02:30:01.123456Z I talweg-agent[7f3a21c0] joined job 'digits' as node 1
// Before this call, lines are written as those of "talweg", from kInfo on.
void StartLog(std::string_view process_name, uint64_t incarnation, LogLevel level);

// "debug", "info", "warning", "error", "off". Returns false for another text, and leaves *level.
bool ParseLogLevel(std::string_view text, LogLevel* level);

// Thread-safe, as is Log. A line that would not be written costs one load.
bool LogEnabled(LogLevel level);

// For tests and the simulation: lines go to `sink` instead of stderr, unescaped; with an empty
// `sink`, to stderr again. No other thread may log meanwhile.
void SetLogSink(std::function<void(LogLevel level, const std::string& text)> sink);

namespace internal {
void WriteLog(LogLevel level, const std::string& text);
}  // namespace internal

// The bytes of a text that go into a line, so that no peer fills a disk with long names.
inline constexpr size_t kLineBytesMax = 8192;

// Log(LogLevel::kInfo, "joined job '", name, "' as node ", node): anything that has operator<<. A
// text of several lines becomes one line. Line breaks and other control characters are escaped,
// since names come from users and peers.
template <typename... Parts>
void Log(LogLevel level, const Parts&... parts) {
  if (!LogEnabled(level)) return;
  std::ostringstream text;
  (text << ... << parts);
  internal::WriteLog(level, text.str());
}

// For lines of which strangers can cause any number. Writes kAtOnce of them, and then one a second.
// The next line that is written says how many were left out. Any thread may call it.
class BoundedLog {
 public:
  static constexpr int kAtOnce = 20;

  template <typename... Parts>
  void Write(int64_t now_ns, LogLevel level, const Parts&... parts) {
    if (!LogEnabled(level)) return;
    const std::optional<uint64_t> left_out = Take(now_ns);
    if (!left_out) return;
    if (*left_out == 0) return Log(level, parts...);
    Log(level, parts..., " (", *left_out, *left_out == 1 ? " line" : " lines",
        " like this left out before it)");
  }

 private:
  // Returns how many lines were left out before this one, or nullopt to leave it out too.
  std::optional<uint64_t> Take(int64_t now_ns);

  std::mutex mutex_;
  int64_t full_ns_ = 0;  // When kAtOnce lines may be written at once again.
  uint64_t left_out_ = 0;
};

}  // namespace talweg::telemetry

#endif  // TALWEG_LIBS_TELEMETRY_LOG_H_
