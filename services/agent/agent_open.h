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

namespace talweg::agent {

// The network that the configuration names, and shared memory if it allows that; for these devices'
// memory, too, if it reaches that. Shared memory alone where the scheduler, and so every
// aggregator, is on this machine.
absl::StatusOr<std::unique_ptr<transport::Transport>> MakeTransport(
    const config::AgentConfig& config, transport::FabricOptions::Devices devices,
    const runtime::Clock* clock, telemetry::CounterSet* counters);

// Why this agent cannot exchange data with an aggregator of the view: they are set to carry it in
// different ways. Names both. "" if it can.
std::string SettingProblem(const config::AgentConfig& config, const view::View& view);

absl::StatusOr<gid_t> GroupId(const std::string& name);

// Makes the directory of a socket's path, for this user alone; one that is there must be this
// user's, or not writable by others unless its entries are protected (/tmp).
absl::Status MakeSocketDirectory(const std::string& socket_path);

// Where a trace is written, to be renamed: whoever waits for the file sees it whole.
std::string PartialPath(const std::string& trace_path);

// Whether the trace can be written to this path when the agent ends, which is too late to hear that
// it cannot. Leaves nothing there. "" is no trace.
absl::Status CheckTracePath(const std::string& path);

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_AGENT_OPEN_H_
