// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_CONFIG_RULES_H_
#define TALWEG_LIBS_CONFIG_RULES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "libs/config/config.h"

// How an option's text becomes its value. Every rule has
//   type     its name in the documentation,
//   Allowed  the allowed values, with an example if that helps,
//   Parse    sets the value and returns "", or what is wrong ("is above the largest value"),
//   Format   a text that Parse takes.
namespace talweg::config {

struct Switch {
  static constexpr char type[] = "yes or no";
  std::string Allowed() const { return "true or false"; }
  std::string Parse(const std::string& text, bool& value) const;
  std::string Format(bool value) const { return value ? "true" : "false"; }
};

// Any text without control characters; a name or a path.
struct Text {
  static constexpr char type[] = "text";
  size_t bytes_max = 4096;
  std::string Allowed() const;
  std::string Parse(const std::string& text, std::string& value) const;
  std::string Format(const std::string& value) const { return value; }
};

// As Text, but not empty.
struct Name {
  static constexpr char type[] = "text";
  std::string Allowed() const { return "1 to 1024 bytes without control characters"; }
  std::string Parse(const std::string& text, std::string& value) const;
  std::string Format(const std::string& value) const { return value; }
};

struct Choice {
  static constexpr char type[] = "choice";
  std::vector<std::string> choices;
  std::string Allowed() const;
  std::string Parse(const std::string& text, std::string& value) const;
  std::string Format(const std::string& value) const { return value; }
};

struct LossPolicyChoice {
  static constexpr char type[] = "choice";
  std::string Allowed() const { return "fail_job, continue"; }
  std::string Parse(const std::string& text, LossPolicy& value) const;
  std::string Format(LossPolicy value) const;
};

struct EncodingChoice {
  static constexpr char type[] = "choice";
  std::string Allowed() const { return "plain, bf16, int8, gaps, few"; }
  std::string Parse(const std::string& text, Encoding& value) const;
  std::string Format(Encoding value) const { return std::string(EncodingName(value)); }
};

struct DealingRuleText {
  static constexpr char type[] = "rule";
  std::string Allowed() const { return std::string(kDealingForms); }
  std::string Parse(const std::string& text, Dealing& value) const;
  std::string Format(const Dealing& value) const { return DealingText(value); }
};

// A peer: host and port, or a socket on this machine.
struct Address {
  static constexpr char type[] = "address";
  std::string Allowed() const {
    return "host:port with a port from 1 to 65535, e.g. 10.0.0.1:7447 or [::1]:7447; or unix: and "
           "the path of a socket";
  }
  std::string Parse(const std::string& text, std::string& value) const;
  std::string Format(const std::string& value) const { return value; }
};

struct Listen {
  static constexpr char type[] = "address";
  std::string Allowed() const {
    return "host:port, host:first-last for a range of ports, or port 0 for any free one; e.g. "
           "127.0.0.1:0, [::]:7447, 0.0.0.0:7000-7099; or unix: and the path of a socket";
  }
  std::string Parse(const std::string& text, ListenAddress& value) const;
  std::string Format(const ListenAddress& value) const { return value.ToString(); }
};

template <typename Integer>
struct Number {
  static constexpr char type[] = "number";
  Integer min;
  Integer max;
  std::string Allowed() const;
  std::string Parse(const std::string& text, Integer& value) const;
  std::string Format(Integer value) const { return std::to_string(value); }
};

// 0 is allowed below `min` if it has its own meaning; the same holds for Milliseconds.
struct Bytes {
  static constexpr char type[] = "bytes";
  uint64_t min;
  uint64_t max;
  bool zero_allowed = false;
  uint64_t multiple_of = 1;
  std::string Allowed() const;
  std::string Parse(const std::string& text, uint64_t& value) const;
  std::string Format(uint64_t value) const;
};

struct Milliseconds {
  static constexpr char type[] = "milliseconds";
  uint64_t min;
  uint64_t max;
  bool zero_allowed = false;
  std::string Allowed() const;
  std::string Parse(const std::string& text, uint64_t& value) const;
  std::string Format(uint64_t value) const { return std::to_string(value); }
};

// CPUs by the kernel's numbers; each once, in the given order.
struct CpuList {
  static constexpr char type[] = "list";
  std::string Allowed() const { return "CPU numbers and ranges, up to 4095, e.g. 0,2-5"; }
  std::string Parse(const std::string& text, std::vector<uint32_t>& value) const;
  std::string Format(const std::vector<uint32_t>& value) const;
};

struct FileMode {
  static constexpr char type[] = "file mode";
  std::string Allowed() const { return "an octal mode from 0600 to 0777, e.g. 0660"; }
  std::string Parse(const std::string& text, uint32_t& value) const;
  std::string Format(uint32_t value) const;
};

}  // namespace talweg::config

#endif  // TALWEG_LIBS_CONFIG_RULES_H_
