// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_AGENT_OPEN_H_
#define TALWEG_SERVICES_AGENT_AGENT_OPEN_H_

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <memory>
#include <string>

#include "libs/config/config.h"
#include "libs/runtime/clock.h"
#include "libs/telemetry/counter.h"
#include "libs/transport/libfabric/fabric_transport.h"
#include "libs/transport/transport.h"
#include "libs/view/view.h"
#include "services/agent/encoding_rule.h"

namespace talweg::agent {

// Makes the transport that the configuration names: the network, and shared memory if `config`
// allows it. The network also carries the memory of `devices` if the provider can. If the
// scheduler, and so every aggregator, is on this machine, shared memory is the only transport.
absl::StatusOr<std::unique_ptr<transport::Transport>> MakeTransport(
    const config::AgentConfig& config, transport::FabricOptions::Devices devices,
    const runtime::Clock* clock, telemetry::CounterSet* counters);

// Returns why this agent cannot exchange data with an aggregator of the view, because their
// transport settings differ; the text names both. Returns "" if it can.
std::string SettingProblem(const config::AgentConfig& config, const view::View& view);

// Returns which tensors travel encoded. None do if the agent is alone: it sends nothing.
EncodingRule EncodingRuleOf(const config::AgentConfig& config);

absl::StatusOr<gid_t> GroupId(const std::string& name);

// Makes the directory of a socket's path, with access for this user only. A directory that exists
// must belong to this user or root. Others may write to it only if it is sticky, as /tmp is.
absl::Status MakeSocketDirectory(const std::string& socket_path);

// Returns the path where the agent writes a trace before it renames the file. A reader of
// `trace_path` so sees the whole trace or nothing.
std::string PartialPath(const std::string& trace_path);

// Checks at the start whether the agent can write a trace to `path` when it ends. Leaves no file
// there. OK if `path` is "": no trace.
absl::Status CheckTracePath(const std::string& path);

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_AGENT_OPEN_H_
