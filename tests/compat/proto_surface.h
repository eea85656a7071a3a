// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_COMPAT_PROTO_SURFACE_H_
#define TALWEG_TESTS_COMPAT_PROTO_SURFACE_H_

#include <google/protobuf/descriptor.h>

#include <map>
#include <string>
#include <vector>

namespace talweg {

// What processes of different releases must agree on about .proto files, one entry for each field
// number, enum value, reserved number and call: "talweg.agent.v1.SetTraceRequest 1" is "bool
// enabled", "talweg.agent.v1.AggregatorStatus 2" is "reserved".
using ProtoSurface = std::map<std::string, std::string>;

void AddFile(const google::protobuf::FileDescriptor& file, ProtoSurface* surface);

// Returns what `now` breaks of `before`, one text for each entry. An entry may become reserved. No
// other entry may change or go. Entries that only `now` has break nothing.
std::vector<std::string> Breaks(const ProtoSurface& before, const ProtoSurface& now);

}  // namespace talweg

#endif  // TALWEG_TESTS_COMPAT_PROTO_SURFACE_H_
