// SPDX-License-Identifier: Apache-2.0
#include "libs/config/ready.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <set>

#include "libs/base/json.h"
#include "libs/config/write_all.h"
#include "libs/status/status.h"

namespace talweg::config {

absl::Status AnnounceReady(const ProcessConfig& config,
                           const std::map<std::string, std::string>& addresses) {
  std::vector<std::string> members;
  for (const auto& [name, address] : addresses) {
    members.push_back(absl::StrCat(JsonString(name), ":", JsonString(address)));
  }
  const std::string line =
      absl::StrCat("{\"pid\":", getpid(), ",\"addresses\":{", absl::StrJoin(members, ","), "}}\n");
  if (config.ready_fd >= 0) {
    TALWEG_RETURN_IF_ERROR(WriteAll(config.ready_fd, line,
                                    absl::StrCat("file descriptor --ready_fd=", config.ready_fd)));
    close(config.ready_fd);
  }
  if (config.ready_file.empty()) return absl::OkStatus();
  const std::string what = absl::StrCat("--ready_file='", config.ready_file, "'");
  const std::string draft = absl::StrCat(config.ready_file, ".", getpid());
  const int fd = open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return status::ErrnoStatus(errno, absl::StrCat("create ", what));
  absl::Status status = WriteAll(fd, line, what);
  close(fd);
  if (status.ok() && rename(draft.c_str(), config.ready_file.c_str()) != 0) {
    status = status::ErrnoStatus(errno, absl::StrCat("rename to ", what));
  }
  if (!status.ok()) unlink(draft.c_str());
  return status;
}

absl::StatusOr<ListenAddress> OnInterface(const ListenAddress& listen,
                                          const std::string& interface_name) {
  if (interface_name.empty() || !listen.path.empty()) return listen;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return status::ErrnoStatus(errno, "list network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, &freeifaddrs);
  std::set<std::string> names;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
      names.insert(entry->ifa_name);
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family) continue;
      if (interface_name != entry->ifa_name) continue;
      char host[NI_MAXHOST];
      const socklen_t bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (getnameinfo(entry->ifa_addr, bytes, host, sizeof host, nullptr, 0, NI_NUMERICHOST) == 0) {
        return ListenAddress{host, listen.port_first, listen.port_last};
      }
    }
  }
  return absl::NotFoundError(absl::StrCat("option --interface: '", interface_name, "' ",
                                          names.count(interface_name) > 0
                                              ? "has no address"
                                              : "is not a network interface of this machine",
                                          "; allowed: ", absl::StrJoin(names, ", ")));
}

}  // namespace talweg::config
