// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_ADMIN_SERVICE_H_
#define TALWEG_LIBS_RPC_ADMIN_SERVICE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "libs/rpc/credentials.h"
#include "libs/rpc/server.h"
#include "proto/talweg/agent/v1/agent.pb.h"
#include "proto/talweg/aggregator/v1/aggregator.pb.h"

// The daemons' admin services without gRPC's headers.
//
// gRPC's threads call the handlers. A handler must not block: it posts to the daemon's owner
// thread, and `done` is called once, on any thread, now or later. The handler need not care whether
// the caller is gone. The Server must be shut down before the service is destroyed; a `done` that
// is called later does nothing.
namespace talweg::rpc {

template <typename Response>
using Done = std::function<void(absl::StatusOr<Response>)>;

template <typename Request, typename Response>
using Handler = std::function<void(const Request&, Done<Response>)>;

// The part of a timeline that a client has not read. Events are numbered from 0 since recording
// began.
struct TraceRange {
  uint64_t next = 0;
  uint64_t end = UINT64_MAX;  // The end of the timeline when the first piece is made.
  uint64_t missed = 0;        // Events before `next` that were overwritten before they were read.

  bool IsRead() const { return next >= end; }
};

struct TracePiece {
  agent::v1::GetTraceResponse events;
  TraceRange rest;
};

struct AgentAdminHandlers {
  Handler<agent::v1::GetStatusRequest, agent::v1::GetStatusResponse> get_status;
  Handler<agent::v1::SetTraceRequest, agent::v1::SetTraceResponse> set_trace;
  // Answers with the first events of a range, as many as the owner thread has time for. It is
  // called for the rest when the client has read these.
  Handler<TraceRange, TracePiece> get_trace;
};

struct AggregatorAdminHandlers {
  Handler<aggregator::v1::GetStatusRequest, aggregator::v1::GetStatusResponse> get_status;
};

// Keeps a grpc::Service alive for Server::Start.
class ServiceHolder {
 public:
  virtual ~ServiceHolder() = default;
  virtual grpc::Service* service() = 0;
};

// How long a client may take to read one piece of a timeline. Then the answer ends with
// DEADLINE_EXCEEDED, so that others can read.
inline constexpr int64_t kTracePieceNs = 10'000'000'000;

// `gate` is the server's. Null: calls are not counted.
std::unique_ptr<ServiceHolder> MakeAgentAdminService(AgentAdminHandlers handlers,
                                                     std::shared_ptr<CallGate> gate = {},
                                                     int64_t trace_piece_ns = kTracePieceNs);
// An agent's SealedService, which takes SetTrace from whoever proves that it knows `job_secret`; ""
// lets nobody in. With `credentials` the caller's role must allow SetTrace as well.
std::unique_ptr<ServiceHolder> MakeAgentSealedService(
    Handler<agent::v1::SetTraceRequest, agent::v1::SetTraceResponse> set_trace,
    std::string job_secret, std::shared_ptr<const Credentials> credentials = {},
    std::shared_ptr<CallGate> gate = {});
std::unique_ptr<ServiceHolder> MakeAggregatorAdminService(AggregatorAdminHandlers handlers,
                                                          std::shared_ptr<CallGate> gate = {});

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_ADMIN_SERVICE_H_
