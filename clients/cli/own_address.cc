// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/own_address.h"

#include <absl/strings/str_cat.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "libs/base/descriptor.h"
#include "libs/status/status.h"

namespace talweg::cli {

absl::StatusOr<std::string> OwnAddressTowards(const std::string& host) {
  const bool has_brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const std::string name = has_brackets ? host.substr(1, host.size() - 2) : host;
  addrinfo hints = {};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // Any port will do, because nothing is sent.
  if (const int error = getaddrinfo(name.c_str(), "9", &hints, &found); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("the scheduler's host '", host, "' has no address: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> freed(found, &freeaddrinfo);
  int error_number = 0;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const Descriptor fd(socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own = {};
    socklen_t bytes = sizeof own;
    char text[NI_MAXHOST];
    if (!fd.valid() || connect(fd.get(), each->ai_addr, each->ai_addrlen) != 0 ||
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &bytes) != 0) {
      error_number = errno;
      continue;
    }
    if (getnameinfo(reinterpret_cast<sockaddr*>(&own), bytes, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) == 0) {
      return each->ai_family == AF_INET6 ? absl::StrCat("[", text, "]") : std::string(text);
    }
  }
  return status::ErrnoStatus(error_number, absl::StrCat("reach the scheduler's host '", host, "'"));
}

}  // namespace talweg::cli
