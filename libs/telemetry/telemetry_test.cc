// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/telemetry/counter.h"
#include "libs/telemetry/log.h"

namespace talweg::telemetry {
namespace {

// Captures what the process writes to stderr while this lives.
class CapturedStderr {
 public:
  CapturedStderr() : file_(std::tmpfile()), saved_(dup(STDERR_FILENO)) {
    REQUIRE(file_ != nullptr);
    REQUIRE(saved_ >= 0);
    std::fflush(stderr);
    dup2(fileno(file_), STDERR_FILENO);
  }
  ~CapturedStderr() {
    Restore();
    std::fclose(file_);
  }

  std::string Text() {
    Restore();
    std::rewind(file_);
    std::string text;
    for (int c = std::fgetc(file_); c != EOF; c = std::fgetc(file_)) text += static_cast<char>(c);
    return text;
  }

 private:
  void Restore() {
    if (saved_ < 0) return;
    std::fflush(stderr);
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    saved_ = -1;
  }

  std::FILE* file_;
  int saved_;
};

TEST_CASE("Counter: nothing is lost between threads", "[telemetry]") {
  CounterSet set;
  Counter& counter = set.Get("result_bytes", "bytes of results");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&set] {
      Counter& same = set.Get("result_bytes");
      for (int j = 0; j < 1000; ++j) same.Add(2);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(counter.value() == 8000);
}

TEST_CASE("CounterSet: a snapshot is sorted by name", "[telemetry]") {
  CounterSet set;
  set.Get("b", "second").Set(5);
  set.Get("a").Add();
  set.Get("a", "first");
  CHECK(set.Snapshot() == std::vector<CounterValue>{{"a", "first", 1}, {"b", "second", 5}});
}

TEST_CASE("Log: a long text is cut to its beginning", "[telemetry]") {
  CapturedStderr captured;
  StartLog("talweg-agent", 1, LogLevel::kInfo);
  Log(LogLevel::kInfo, std::string(kLineBytesMax - 1, 'x'), "\u00e4", std::string(100'000, 'y'));
  const std::string text = captured.Text();
  CHECK(text.size() < kLineBytesMax + 100);
  CHECK(text.find("xx... (108193 bytes)\n") != std::string::npos);
}

TEST_CASE("BoundedLog: it takes some lines at once, then one a second", "[telemetry]") {
  constexpr int64_t kSecond = 1'000'000'000;
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel, const std::string& line) { lines.push_back(line); });
  BoundedLog log;
  int64_t now_ns = 1000 * kSecond;
  for (int i = 0; i < 120; ++i) log.Write(now_ns, LogLevel::kInfo, "line ", i);
  CHECK(lines.size() == BoundedLog::kAtOnce);
  CHECK(lines.back() == "line 19");
  now_ns += kSecond;
  for (int i = 0; i < 5; ++i) log.Write(now_ns, LogLevel::kInfo, "more");
  CHECK(lines.size() == BoundedLog::kAtOnce + 1);
  CHECK(lines.back() == "more (100 lines like this left out before it)");
  now_ns += 100 * kSecond;
  for (int i = 0; i < 120; ++i) log.Write(now_ns, LogLevel::kInfo, "later");
  CHECK(lines.size() == 2 * BoundedLog::kAtOnce + 1);
  SetLogSink(nullptr);
}

TEST_CASE("Log: a line has time, level, process, incarnation and text, and never breaks",
          "[telemetry]") {
  CapturedStderr captured;
  StartLog("talweg-agent", 0x7f3a21, LogLevel::kInfo);
  Log(LogLevel::kDebug, "not shown");
  Log(LogLevel::kInfo, "joined job '", std::string("a\nb\x1b\u009b\u00a3"), "' {} as node ", 1);
  Log(LogLevel::kWarning, "second");
  const std::string text = captured.Text();
  const std::regex expected(
      R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z I talweg-agent\[007f3a21\] joined job 'a\\nb\\x1b\\u009b)"
      "\u00a3"
      R"(' \{\} as node 1\n)"
      R"(\S+Z W talweg-agent\[007f3a21\] second\n)");
  INFO(text);
  CHECK(std::regex_match(text, expected));
}

TEST_CASE("Log: levels have names", "[telemetry]") {
  LogLevel level = LogLevel::kInfo;
  CHECK(ParseLogLevel("error", &level));
  CHECK(level == LogLevel::kError);
  CHECK_FALSE(ParseLogLevel("loud", &level));
  CHECK(level == LogLevel::kError);
  StartLog("talweg", 1, LogLevel::kOff);
  CHECK_FALSE(LogEnabled(LogLevel::kError));
  CHECK_FALSE(LogEnabled(LogLevel::kOff));
}

TEST_CASE("Log: lines go to a sink while there is one", "[telemetry]") {
  StartLog("talweg", 1, LogLevel::kInfo);
  std::vector<std::string> lines;
  SetLogSink([&lines](LogLevel, const std::string& text) { lines.push_back(text); });
  Log(LogLevel::kWarning, "to the ", "sink");
  SetLogSink(nullptr);
  CHECK(lines == std::vector<std::string>{"to the sink"});
  CapturedStderr captured;
  Log(LogLevel::kWarning, "to stderr");
  CHECK(captured.Text().find("to stderr") != std::string::npos);
  CHECK(lines.size() == 1);
}

}  // namespace
}  // namespace talweg::telemetry
