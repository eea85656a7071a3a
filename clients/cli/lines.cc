// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/lines.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

namespace talweg::cli {
namespace {

// The format of asctime.
std::string TimeText() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  localtime_r(&now, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", &parts)};
}

}  // namespace

absl::Status CheckPrefix(const std::string& format) {
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    ++i;  // %% is one field.
    if (i < format.size() && std::string_view("rst%").find(format[i]) != std::string_view::npos) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("option --line-prefix: '", format, "' has a % before '", format.substr(i, 1),
                     "'; there are %r (the rank), %s (stdout or stderr), %t (the time) and %%"));
  }
  return absl::OkStatus();
}

std::string FillPrefix(const std::string& format, const std::string& field,
                       const std::string& value) {
  return absl::StrReplaceAll(format, {{"%%", "%%"}, {field, value}});
}

LinePrefixer::LinePrefixer(std::string prefix)
    : prefix_(std::move(prefix)), has_time_(FillPrefix(prefix_, "%t", "") != prefix_) {
  if (!has_time_) prefix_ = absl::StrReplaceAll(prefix_, {{"%%", "%"}});
}

void LinePrefixer::Emit(std::string_view line, std::string& out) {
  out += has_time_ ? absl::StrReplaceAll(prefix_, {{"%%", "%"}, {"%t", TimeText()}}) : prefix_;
  out += line;
}

std::string LinePrefixer::Add(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    if (ended_by_return_) {
      ended_by_return_ = false;
      if (bytes.front() == '\n') {
        out += '\n';
        bytes.remove_prefix(1);
        continue;
      }
    }
    const size_t end = bytes.find_first_of("\r\n");
    if (end == std::string_view::npos) {
      partial_ += bytes;
      while (partial_.size() > kLineBytesMax) {
        Emit(partial_.substr(0, kLineBytesMax), out);
        out += '\n';
        partial_.erase(0, kLineBytesMax);
      }
      return out;
    }
    partial_ += bytes.substr(0, end + 1);
    Emit(partial_, out);
    partial_.clear();
    ended_by_return_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
  }
  return out;
}

std::string LinePrefixer::Finish() {
  std::string out;
  if (!partial_.empty()) {
    Emit(partial_, out);
    out += '\n';
    partial_.clear();
  } else if (ended_by_return_) {
    out += '\n';
  }
  ended_by_return_ = false;
  return out;
}

void LastLines::Add(std::string_view bytes) {
  while (!bytes.empty()) {
    if (line_ended_) {
      lines_.emplace_back();
      if (lines_.size() > lines_max_) lines_.pop_front();
      line_ended_ = false;
    }
    const size_t end = bytes.find('\n');
    std::string& line = lines_.back();
    const std::string_view piece = bytes.substr(0, end);
    line += piece.substr(0, kLineBytesKept - std::min(line.size(), kLineBytesKept));
    if (end == std::string_view::npos) return;
    line_ended_ = true;
    bytes.remove_prefix(end + 1);
  }
}

std::string LastLines::Text() const {
  std::string text;
  for (const std::string& line : lines_) {
    text += line;
    text += '\n';
  }
  return text;
}

void OutputQueue::Add(std::string_view bytes) {
  if (!gone_) bytes_ += bytes;
}

bool OutputQueue::Write() {
  while (!empty() && !gone_) {
    pollfd poll_fd = {fd_, POLLOUT, 0};
    if (poll(&poll_fd, 1, 0) <= 0) break;
    const size_t count = std::min<size_t>(bytes_.size() - begin_, PIPE_BUF);
    const ssize_t written = write(fd_, bytes_.data() + begin_, count);
    if (written >= 0) {
      begin_ += static_cast<size_t>(written);
      failure_ = 0;
    } else if (errno == EAGAIN) {
      break;
    } else if (errno == EPIPE) {
      gone_ = true;
    } else if (errno != EINTR) {
      failure_is_told_ = failure_ == errno && failure_is_told_;
      failure_ = errno;
      begin_ = bytes_.size();
    }
  }
  if (empty() || gone_) {
    bytes_.clear();
    begin_ = 0;
  } else if (begin_ > kBytesMax) {
    bytes_.erase(0, begin_);
    begin_ = 0;
  }
  return !gone_;
}

int OutputQueue::TakeFailure() {
  if (failure_is_told_) return 0;
  failure_is_told_ = true;
  return failure_;
}

}  // namespace talweg::cli
