// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_MEMBER_LINK_H_
#define TALWEG_SERVICES_AGENT_MEMBER_LINK_H_

#include <memory>

#include "libs/rpc/scheduler_client.h"
#include "libs/transport/transport.h"
#include "services/agent/agent_data_plane.h"
#include "services/agent/job_link.h"

namespace talweg::agent {

// Returns a JobLink over gRPC. Join sets `join.member.id`. `on_event` is called on other threads.
// `transport`, which carries the data plane, outlives the link.
std::unique_ptr<JobLink> NewMemberLink(std::unique_ptr<AgentDataPlane> data_plane,
                                       transport::Transport* transport,
                                       rpc::SchedulerLinkOptions scheduler, rpc::JoinSpec join,
                                       rpc::SchedulerClient::OnEvent on_event);

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_MEMBER_LINK_H_
