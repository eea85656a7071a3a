// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_CONVERSION_H_
#define TALWEG_LIBS_RPC_CONVERSION_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "google/protobuf/duration.pb.h"
#include "google/protobuf/timestamp.pb.h"
#include "libs/membership/records.h"
#include "libs/rpc/version.h"
#include "libs/view/gone.h"
#include "libs/view/job_quota.h"
#include "libs/view/view.h"
#include "proto/talweg/scheduler/v1/membership.pb.h"
#include "proto/talweg/scheduler/v1/pool.pb.h"
#include "proto/talweg/scheduler/v1/scheduler.pb.h"

// Converts between the messages of //proto and Talweg's own types. A peer may send anything:
// INVALID_ARGUMENT names the field that is not valid.
namespace talweg::rpc {

scheduler::v1::View ToProto(const view::View& view);
absl::StatusOr<view::View> FromProto(
    const scheduler::v1::View& view);  // Checks Problem() and digest.

// Returns what differs, aggregators included.
scheduler::v1::WatchViewsResponse::ViewChange ChangeOf(const view::View& base,
                                                       const view::View& view);
// Applies `change` to `base`. Checks that it is a change of that view, Problem() and the digest.
// Aggregators that stay keep their data address of `base`.
absl::StatusOr<view::View> Changed(const view::View& base,
                                   const scheduler::v1::WatchViewsResponse::ViewChange& change);

// For AdminService, which anybody may ask: without incarnations and digest. Addresses say where and
// how a process is reached, without keys and tokens.
scheduler::v1::View ToShown(const view::View& view);
scheduler::v1::ViewMember ToShown(const view::ViewMember& member);
scheduler::v1::ViewAggregator ToShown(const view::ViewAggregator& aggregator);
scheduler::v1::MemberId ToShown(const view::MemberIdentity& id);

scheduler::v1::ViewMember ToProto(const view::ViewMember& member);
scheduler::v1::ViewAggregator ToProto(const view::ViewAggregator& aggregator);
view::ViewMember FromProto(const scheduler::v1::ViewMember& member);
view::ViewAggregator FromProto(const scheduler::v1::ViewAggregator& aggregator);

scheduler::v1::MemberId ToProto(const view::MemberIdentity& id);
view::MemberIdentity FromProto(const scheduler::v1::MemberId& id);

scheduler::v1::Dealing ToProto(const Dealing& dealing);
Dealing FromProto(const scheduler::v1::Dealing& dealing);  // IsValid() is the caller's to check.

scheduler::v1::JobSpec ToProto(const membership::JobSpec& spec);
absl::StatusOr<membership::JobSpec> FromProto(const scheduler::v1::JobSpec& spec);

// A message has 0 for "no limit".
uint64_t LimitToProto(uint64_t limit);
uint64_t LimitFromProto(uint64_t limit);
scheduler::v1::JobQuota ToProto(const view::JobQuota& quota);
scheduler::v1::WatchJobsResponse::Gone ToProto(const view::Gone& gone);
view::Gone FromProto(const scheduler::v1::WatchJobsResponse::Gone& gone);
view::JobQuota FromProto(const scheduler::v1::JobQuota& quota);

scheduler::v1::ProtocolVersion ToProto(const Version& version);
Version FromProto(const scheduler::v1::ProtocolVersion& version);

// Returns whether a text can travel in a message.
bool IsUtf8(std::string_view text);
// Returns the text with invalid UTF-8 replaced.
std::string CleanUtf8(std::string_view text);

google::protobuf::Duration DurationFromNs(int64_t ns);
int64_t NsFromDuration(const google::protobuf::Duration& duration);  // Saturates.
google::protobuf::Timestamp TimestampFromUnixNs(int64_t unix_ns);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CONVERSION_H_
