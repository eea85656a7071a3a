// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_CONNECTED_LINK_H_
#define TALWEG_SERVICES_AGENT_CONNECTED_LINK_H_

#include <absl/status/statusor.h>

#include <string>

#include "libs/transport/transport.h"
#include "services/agent/agent_data_plane.h"
#include "services/agent/job_link.h"

namespace talweg::agent {

// The part of a JobLink that talks to aggregators, through an AgentDataPlane. A derived class talks
// to the scheduler.
class ConnectedLink : public JobLink {
 public:
  bool IsAlone() const override { return false; }
  void Do(const pipeline::Connect& effect) override { data_plane_->Do(effect); }
  void Do(const pipeline::Close& effect) override { data_plane_->Do(effect); }
  void Do(pipeline::Send& effect) override { data_plane_->Do(effect); }
  void Do(const pipeline::WriteSlice& effect) override { data_plane_->Do(effect); }
  void OnHostFound(ConnectionId connection, const absl::StatusOr<std::string>& literal) override {
    data_plane_->OnHostFound(connection, literal);
  }
  int Poll(int events_max) override { return data_plane_->Poll(events_max); }
  bool PrepareToSleep() override { return transport_->PrepareToSleep(); }
  bool Drained() const override { return data_plane_->Drained(); }
  void CloseAll() override { data_plane_->CloseAll(); }
  bool AnyLocal() const override { return data_plane_->AnyLocal(); }
  void UseNetworkOnly() override { data_plane_->UseNetworkOnly(); }

  AgentDataPlane::Traffic TrafficOf(ConnectionId connection) const override {
    return data_plane_->TrafficOf(connection);
  }
  Totals totals() const override {
    return {data_plane_->bytes_sent(), data_plane_->bytes_received(), data_plane_->bad_frames()};
  }

 protected:
  // Both outlive the link.
  ConnectedLink(AgentDataPlane* data_plane, transport::Transport* transport)
      : data_plane_(data_plane), transport_(transport) {}

 private:
  AgentDataPlane* const data_plane_;
  transport::Transport* const transport_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_CONNECTED_LINK_H_
