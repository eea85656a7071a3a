// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_LINES_H_
#define TALWEG_CLIENTS_CLI_LINES_H_

#include <absl/status/status.h>

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace talweg::cli {

// Checks the format of a line prefix: %r is the rank, %s the output's name, %t the time when the
// line was read, as in "Thu Nov 26 19:26:35 2026", %% a %. INVALID_ARGUMENT names the option: it
// has another field.
absl::Status CheckPrefix(const std::string& format);
// Returns the format with `value` in place of `field` (%r or %s).
std::string FillPrefix(const std::string& format, const std::string& field,
                       const std::string& value);

// Makes whole, prefixed lines from the bytes that a process writes to one of its outputs.
//
// A carriage return ends a piece, too, so that a progress bar moves. Longer lines are cut at
// kLineBytesMax.
class LinePrefixer {
 public:
  static constexpr size_t kLineBytesMax = 1 << 20;

  // `prefix` is a format with only %t and %% left.
  explicit LinePrefixer(std::string prefix);

  // Adds bytes. Returns the whole lines that may be written now, with their prefix.
  std::string Add(std::string_view bytes);
  // Returns the rest as a line, when the output has ended.
  std::string Finish();

 private:
  void Emit(std::string_view line, std::string& out);

  std::string prefix_;
  const bool has_time_;
  std::string partial_;
  bool ended_by_return_ = false;  // A line feed that follows belongs to the same end.
};

// The last lines of what was added.
class LastLines {
 public:
  explicit LastLines(size_t lines_max) : lines_max_(lines_max) {}

  void Add(std::string_view bytes);
  // The lines, each with a line feed.
  std::string Text() const;

 private:
  static constexpr size_t kLineBytesKept = 2000;

  const size_t lines_max_;
  std::deque<std::string> lines_;  // The last one may be growing.
  bool line_ended_ = true;
};

// Bytes that this process has yet to write to one of its own outputs, so that a reader that stops
// does not block it. Writes at most PIPE_BUF bytes at a time, when poll says that there is room:
// such a write does not block.
class OutputQueue {
 public:
  explicit OutputQueue(int fd) : fd_(fd) {}

  void Add(std::string_view bytes);
  // Writes while there is room. Returns false if the reader is gone; from then on drops everything.
  // Also drops bytes that cannot be written for another reason, such as a full disk.
  bool Write();
  // Returns that reason, an errno, if writes have begun to fail for it since the last call; else 0.
  int TakeFailure();
  bool empty() const { return begin_ == bytes_.size(); }
  // Returns whether so much waits that the children's outputs should not be read now.
  bool full() const { return bytes_.size() - begin_ > kBytesMax; }
  int fd() const { return fd_; }

 private:
  static constexpr size_t kBytesMax = 1 << 20;

  const int fd_;
  std::string bytes_;
  size_t begin_ = 0;
  bool gone_ = false;
  int failure_ = 0;  // Why the last write failed.
  bool failure_is_told_ = true;
};

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_LINES_H_
