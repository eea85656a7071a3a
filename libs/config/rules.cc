// SPDX-License-Identifier: Apache-2.0
#include "libs/config/rules.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

namespace talweg::config {
namespace {

constexpr char kBelow[] = "is below the smallest value";
constexpr char kAbove[] = "is above the largest value";

template <typename Integer>
std::optional<Integer> ParseInteger(std::string_view text, int base = 10) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// An integer of any size is a whole number: one past 64 bits is out of range, not "no number".
bool IsWholeNumber(std::string_view text) {
  if (!text.empty() && text[0] == '-') text.remove_prefix(1);
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string TextProblem(const std::string& text, size_t bytes_max) {
  if (text.size() > bytes_max) return absl::StrCat("is ", text.size(), " bytes long");
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return "has a control character";
  }
  return "";
}

constexpr char kUnix[] = "unix:";
constexpr size_t kUnixBytes = sizeof kUnix - 1;
constexpr size_t kSocketPathBytesMax = 107;  // What a sockaddr_un holds.

// Returns "", or what is wrong with "unix:PATH".
std::string UnixProblem(const std::string& text) {
  const std::string path = text.substr(kUnixBytes);
  if (path.empty() || path.front() != '/') return "names a socket by a path that begins with no /";
  if (path.size() > kSocketPathBytesMax) {
    return absl::StrCat("names a socket by a path of ", path.size(), " bytes, where ",
                        kSocketPathBytesMax, " fit");
  }
  // Addresses are joined by commas; gRPC reads the other characters as parts of a URI.
  if (path.find_first_of(",%?#") != std::string::npos) {
    return "names a socket by a path with one of , % ? #";
  }
  return TextProblem(text, kUnixBytes + kSocketPathBytesMax);
}

struct HostAndPort {
  std::string host;
  std::string port;
};

// Sets the parts and returns "", or returns what is wrong.
std::string Split(const std::string& text, HostAndPort& parts) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return "has no port";
  parts.host = text.substr(0, colon);
  parts.port = text.substr(colon + 1);
  if (parts.host.size() >= 2 && parts.host.front() == '[' && parts.host.back() == ']') {
    parts.host = parts.host.substr(1, parts.host.size() - 2);
  } else if (parts.host.find(':') != std::string::npos) {
    return "is an IPv6 address without brackets";
  }
  if (parts.host.empty()) return "has no host";
  if (parts.host.size() > 255) return "has a host of more than 255 bytes";
  for (const char c : parts.host) {
    const bool allowed = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                         (c >= 'A' && c <= 'Z') || c == '.' || c == '-' || c == '_' || c == ':' ||
                         c == '%';
    if (!allowed) return "has a host with a character that no host name has";
  }
  return "";
}

}  // namespace

bool IsUnixAddress(const std::string& address) { return address.rfind(kUnix, 0) == 0; }

std::string ListenAddress::ToString() const {
  if (!path.empty()) return absl::StrCat(kUnix, path);
  const std::string host_text =
      host.find(':') == std::string::npos ? host : absl::StrCat("[", host, "]");
  if (port_first == port_last) return absl::StrCat(host_text, ":", port_first);
  return absl::StrCat(host_text, ":", port_first, "-", port_last);
}

std::string Switch::Parse(const std::string& text, bool& value) const {
  if (text == "true" || text == "yes" || text == "on" || text == "1") {
    value = true;
  } else if (text == "false" || text == "no" || text == "off" || text == "0") {
    value = false;
  } else {
    return "is neither true nor false";
  }
  return "";
}

std::string Text::Allowed() const {
  return absl::StrCat("at most ", bytes_max, " bytes without control characters");
}

std::string Text::Parse(const std::string& text, std::string& value) const {
  std::string problem = TextProblem(text, bytes_max);
  if (problem.empty()) value = text;
  return problem;
}

std::string Name::Parse(const std::string& text, std::string& value) const {
  if (text.empty()) return "is empty";
  std::string problem = TextProblem(text, 1024);
  if (problem.empty()) value = text;
  return problem;
}

std::string Choice::Allowed() const { return absl::StrJoin(choices, ", "); }

std::string Choice::Parse(const std::string& text, std::string& value) const {
  if (std::find(choices.begin(), choices.end(), text) == choices.end()) return "is not allowed";
  value = text;
  return "";
}

std::string LossPolicyChoice::Parse(const std::string& text, LossPolicy& value) const {
  if (text == "fail_job") {
    value = LossPolicy::kFailJob;
  } else if (text == "continue") {
    value = LossPolicy::kContinue;
  } else {
    return "is not allowed";
  }
  return "";
}

std::string LossPolicyChoice::Format(LossPolicy value) const {
  return value == LossPolicy::kContinue ? "continue" : "fail_job";
}

std::string EncodingChoice::Parse(const std::string& text, Encoding& value) const {
  for (const Encoding each :
       {Encoding::kPlain, Encoding::kBf16, Encoding::kInt8, Encoding::kGaps, Encoding::kFew}) {
    if (text != EncodingName(each)) continue;
    value = each;
    return "";
  }
  return "is not allowed";
}

std::string DealingRuleText::Parse(const std::string& text, Dealing& value) const {
  const std::optional<Dealing> read = ParseDealing(text);
  if (!read) return "is not allowed";
  value = *read;
  return "";
}

std::string Address::Parse(const std::string& text, std::string& value) const {
  HostAndPort parts;
  std::string problem = IsUnixAddress(text) ? UnixProblem(text) : Split(text, parts);
  if (problem.empty() && IsUnixAddress(text)) {
    value = text;
    return "";
  }
  if (!problem.empty()) return problem;
  if (ParseInteger<uint16_t>(parts.port).value_or(0) == 0) {
    return "has a port that is not a number from 1 to 65535";
  }
  value = text;
  return "";
}

std::string Listen::Parse(const std::string& text, ListenAddress& value) const {
  if (IsUnixAddress(text)) {
    std::string problem = UnixProblem(text);
    if (problem.empty()) value = {.host = "", .path = text.substr(kUnixBytes)};
    return problem;
  }
  HostAndPort parts;
  std::string problem = Split(text, parts);
  if (!problem.empty()) return problem;
  const size_t dash = parts.port.find('-');
  const auto first = ParseInteger<uint16_t>(parts.port.substr(0, dash));
  const auto last =
      dash == std::string::npos ? first : ParseInteger<uint16_t>(parts.port.substr(dash + 1));
  if (!first || !last) return "has a port that is not a number from 0 to 65535";
  if (*first > *last) return "has a range of ports that ends before it begins";
  if (*first == 0 && *last != 0) return "has a range of ports that begins with 0";
  value = {parts.host, *first, *last};
  return "";
}

template <typename Integer>
std::string Number<Integer>::Allowed() const {
  return absl::StrCat(min, " to ", max);
}

template <typename Integer>
std::string Number<Integer>::Parse(const std::string& text, Integer& value) const {
  if (!IsWholeNumber(text)) return "is not a whole number";
  const std::optional<Integer> number = ParseInteger<Integer>(text);
  if (!number) return text[0] == '-' ? kBelow : kAbove;
  if (*number < min) return kBelow;
  if (*number > max) return kAbove;
  value = *number;
  return "";
}

template struct Number<int32_t>;
template struct Number<uint32_t>;
template struct Number<uint64_t>;

std::string CpuList::Parse(const std::string& text, std::vector<uint32_t>& value) const {
  constexpr uint32_t kCpuMax = 4095;
  std::vector<uint32_t> cpus;
  if (text.empty()) {
    value = {};
    return "";
  }
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    const auto number = [](const std::string& end) -> std::optional<uint32_t> {
      if (!IsWholeNumber(end) || end[0] == '-') return std::nullopt;
      return ParseInteger<uint32_t>(end);
    };
    const std::optional<uint32_t> first = number(ends.front());
    const std::optional<uint32_t> last = number(ends.back());
    if (ends.size() > 2 || !first || !last) return absl::StrCat("has '", part, "' in it");
    if (*last > kCpuMax) return kAbove;
    if (*first > *last) return absl::StrCat("has the range ", part, " from high to low");
    for (uint32_t cpu = *first; cpu <= *last; ++cpu) {
      if (std::find(cpus.begin(), cpus.end(), cpu) != cpus.end()) {
        return absl::StrCat("has CPU ", cpu, " twice");
      }
      cpus.push_back(cpu);
    }
  }
  value = std::move(cpus);
  return "";
}

std::string CpuList::Format(const std::vector<uint32_t>& value) const {
  return absl::StrJoin(value, ",");
}

std::string Bytes::Allowed() const {
  const std::string of = multiple_of == 1 ? "" : absl::StrCat(", a multiple of ", multiple_of);
  return absl::StrCat(zero_allowed ? "0, or " : "", FormatBytes(min), " to ", FormatBytes(max), of,
                      "; a number of bytes, or with a unit: 64KiB, 8MiB, 2GiB");
}

std::string Bytes::Parse(const std::string& text, uint64_t& value) const {
  const std::optional<uint64_t> bytes = ParseBytes(text);
  if (!bytes) return "is not a number of bytes";
  if (*bytes != 0 || !zero_allowed) {
    if (*bytes < min) return kBelow;
    if (*bytes > max) return kAbove;
  }
  if (*bytes % multiple_of != 0) return absl::StrCat("is not a multiple of ", multiple_of);
  value = *bytes;
  return "";
}

std::string Bytes::Format(uint64_t value) const {
  for (const auto& [unit, name] :
       {std::pair{kGiB, "GiB"}, std::pair{kMiB, "MiB"}, std::pair{kKiB, "KiB"}}) {
    if (value != 0 && value % unit == 0) return absl::StrCat(value / unit, name);
  }
  return absl::StrCat(value);
}

std::string Milliseconds::Allowed() const {
  return absl::StrCat(zero_allowed ? "0, or " : "", min, " to ", max,
                      "; a number of milliseconds, or with a unit: 500ms, 10s, 5min");
}

std::string Milliseconds::Parse(const std::string& text, uint64_t& value) const {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string unit = text.substr(digits);
  uint64_t factor = 0;
  if (unit.empty() || unit == "ms") factor = 1;
  if (unit == "s") factor = 1'000;
  if (unit == "min") factor = 60'000;
  if (digits == 0 || factor == 0) return "is not a time in milliseconds";
  const auto number = ParseInteger<uint64_t>(text.substr(0, digits));
  if (!number || *number > std::numeric_limits<uint64_t>::max() / factor) return kAbove;
  if (*number * factor < min && !(zero_allowed && *number == 0)) return kBelow;
  if (*number * factor > max) return kAbove;
  value = *number * factor;
  return "";
}

std::string FileMode::Parse(const std::string& text, uint32_t& value) const {
  const auto mode = ParseInteger<uint32_t>(text, 8);
  if (!mode) return "is not an octal number";
  if (*mode > 0777) return kAbove;
  if ((*mode & 0600) != 0600) return "keeps its owner out";
  value = *mode;
  return "";
}

std::string FileMode::Format(uint32_t value) const {
  char text[16];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value, 8);
  return absl::StrCat("0", std::string(text, end));
}

}  // namespace talweg::config
