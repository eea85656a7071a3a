// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_HOST_ID_H_
#define TALWEG_LIBS_RUNTIME_HOST_ID_H_

#include <string>

namespace talweg::runtime {

// Names this host until it reboots: two processes with the same HostId can reach each other through
// Unix sockets and shared memory. Two network namespaces are two hosts, because abstract sockets do
// not cross them; so are two users, whose processes do not take each other's memory. Empty if /proc
// does not say: then no two processes count as on one host.
std::string HostId();

// The host's name for people; "unknown" without one.
std::string HostName();

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_HOST_ID_H_
