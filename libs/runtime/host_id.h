// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_HOST_ID_H_
#define TALWEG_LIBS_RUNTIME_HOST_ID_H_

#include <string>

namespace talweg::runtime {

// Names this host until it reboots: two processes with the same HostId can reach each other through
// Unix sockets and shared memory. Two network namespaces are two hosts, since abstract sockets do
// not cross them; so are two users, whose processes do not take each other's memory. Empty when
// /proc does not say (no two processes are on one host then).
std::string HostId();

// The name that this host has for people; "unknown" without one.
std::string HostName();

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_HOST_ID_H_
