// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_LINES_H_
#define TALWEG_CLIENTS_CLI_LINES_H_

#include <absl/status/status.h>

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>

namespace talweg::cli {

// What stands in front of lines is a format: %r is the rank, %s the output's name, %t the time when
// the line was read, as in "Thu Nov 26 19:26:35 2026", %% is a %. INVALID_ARGUMENT for another one,
// naming the option.
absl::Status CheckPrefix(const std::string& format);
// The format with `value` in place of `field` (%r or %s).
std::string FillPrefix(const std::string& format, const std::string& field,
                       const std::string& value);

// Makes whole, prefixed lines of the bytes that one process writes to one of its outputs.
//
// A carriage return ends a piece too, so that a progress bar moves; what is longer than
// kLineBytesMax is cut.
class LinePrefixer {
 public:
  static constexpr size_t kLineBytesMax = 1 << 20;

  // A format of which only %t and %% are left.
  explicit LinePrefixer(std::string prefix);

  // What may be written now, whole lines with their prefix.
  std::string Add(std::string_view bytes);
  // What is left when the output has ended, as a line.
  std::string Finish();

 private:
  void Emit(std::string_view line, std::string& out);

  std::string prefix_;
  const bool has_time_;
  std::string partial_;
  bool ended_by_return_ = false;  // A line feed that follows belongs to it.
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

// What this process has yet to write to one of its own outputs, so that a reader that stops reading
// does not stop us. Written in pieces of at most PIPE_BUF when poll says that there is room: such a
// write does not block.
class OutputQueue {
 public:
  explicit OutputQueue(int fd) : fd_(fd) {}

  void Add(std::string_view bytes);
  // Writes while there is room. False when the reader has gone; the rest is dropped from then on.
  // What cannot be written for another reason, as on a full disk, is dropped.
  bool Write();
  // That reason, an errno, when writes have begun to fail for it since the last call; otherwise 0.
  int TakeFailure();
  bool empty() const { return begin_ == bytes_.size(); }
  // Whether so much waits that it is better to read no more from the children.
  bool full() const { return bytes_.size() - begin_ > kBytesMax; }
  int fd() const { return fd_; }

 private:
  static constexpr size_t kBytesMax = 1 << 20;

  const int fd_;
  std::string bytes_;
  size_t begin_ = 0;
  bool gone_ = false;
  int failure_ = 0;  // Why the last write has failed.
  bool failure_is_told_ = true;
};

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_LINES_H_
