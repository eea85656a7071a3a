// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <string_view>
#include <utility>

#include "libs/transport/transport.h"

namespace talweg::transport {
namespace {

// Where the host stands in "<scheme>://<host>:<port>...", brackets included. npos: nowhere.
std::pair<size_t, size_t> HostPlace(const std::string& address) {
  constexpr std::string_view kBehindScheme = "://";
  const size_t scheme = address.find(kBehindScheme);
  const bool on_network = address.starts_with("fi:") || address.starts_with("tcp:");
  if (!on_network || scheme == std::string::npos) return {std::string::npos, 0};
  const size_t begin = scheme + kBehindScheme.size();
  const size_t end = address.find(':', address[begin] == '[' ? address.find(']', begin) : begin);
  if (end == std::string::npos) return {std::string::npos, 0};
  return {begin, end - begin};
}

}  // namespace

std::string HostOf(const std::string& address) {
  const auto [begin, length] = HostPlace(address);
  if (begin == std::string::npos) return "";
  if (address[begin] == '[') return address.substr(begin + 1, length - 2);
  return address.substr(begin, length);
}

std::string WithHost(const std::string& address, const std::string& host) {
  const auto [begin, length] = HostPlace(address);
  if (begin == std::string::npos) return address;
  const bool bracketed = host.find(':') != std::string::npos;
  return address.substr(0, begin) + (bracketed ? "[" + host + "]" : host) +
         address.substr(begin + length);
}

std::string SelectAddress(const std::string& addresses, bool same_host) {
  std::string network;
  std::string local;
  size_t begin = 0;
  while (begin <= addresses.size()) {
    size_t end = addresses.find(',', begin);
    if (end == std::string::npos) end = addresses.size();
    const std::string address = addresses.substr(begin, end - begin);
    std::string& kind = address.starts_with("local:") ? local : network;
    if (kind.empty()) kind = address;
    begin = end + 1;
  }
  return same_host && !local.empty() ? local : network;
}

}  // namespace talweg::transport
