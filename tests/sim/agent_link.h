// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_AGENT_LINK_H_
#define TALWEG_TESTS_SIM_AGENT_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "libs/membership/quiesce_follower.h"
#include "libs/rpc/scheduler_events.h"
#include "services/agent/agent_data_plane.h"
#include "services/agent/connected_link.h"
#include "tests/sim/network.h"
#include "tests/sim/profile.h"
#include "tests/sim/scheduler_process.h"
#include "tests/sim/sim_transport.h"

namespace talweg::sim {

// Does for an agent what rpc::SchedulerClient does, over simulated calls and streams, and has the
// agent's own AgentDataPlane. Events come from the timeline, never inside a call.
class AgentLink final : public agent::ConnectedLink {
 public:
  struct Config {
    std::string job_name;
    std::string name;
    std::string host_id;
    uint32_t rank_count = 1;
    HostIndex host = 0;
    bool knows_standbys = false;
    const Profile* profile = nullptr;
    std::function<void(const rpc::MemberEvent& event)> on_event;
    // Called before the AgentDataPlane gets `send`. May change it.
    std::function<void(pipeline::Send& send)> before_send;
    // Leave is over: the scheduler has answered (`told`), or did not in time.
    std::function<void(bool told)> on_left;
  };

  AgentLink(Timeline* timeline, Trace* trace, Network* network, SchedulerProcess* scheduler,
            agent::AgentDataPlane* data_plane, SimTransport* transport, const Config& config);

  // --- agent::JobLink.
  void Join(const view::MemberIdentity& self) override;
  absl::Status Leave(LeaveReason reason, const std::string& text) override;
  void Quiesced(uint64_t id, uint64_t step) override;
  void SetRanksAttached(bool attached) override;
  void SetRanksReady(bool ready) override;
  // Does not influence any decision.
  void SetRanksHaveState(bool /*have_state*/) override {}
  void ReportLost(const pipeline::ReportLost& lost) override;
  // Does not influence any decision.
  void ReportUnreachable(Incarnation, const std::string&) override {}
  using ConnectedLink::Do;
  void Do(pipeline::Send& effect) override;

 private:
  int64_t RetryNs() const;
  membership::JoinRequest JoinRequest() const;
  void Later(int64_t delay_ns, std::function<void()> event);
  void Tell(const rpc::MemberEvent& event) { config_.on_event(event); }
  void Enter();
  void Attach();
  void Renew();
  void SendRenewal();
  void OnMessage(const membership::MemberMessage& message);
  void OnRefused(const membership::Answer& answer);
  // The member is out: `event` is the last one.
  void Out(const rpc::MemberEvent& event);
  void NoteAnswer(bool answered);
  void SayLeave(LeaveReason reason, const std::string& text, int64_t end_ns);

  Timeline* const timeline_;
  Trace* const trace_;
  Network* const network_;
  SchedulerProcess* const scheduler_;
  const Config config_;

  view::MemberIdentity self_;
  JobId job_;
  Epoch held_;
  // `ready` stays unset if ranks know no standbys.
  membership::RanksWord ranks_ = {.attached = false};
  bool reachable_ = true;
  bool out_ = false;
  bool leaves_ = false;
  uint64_t attachment_ = 0;
  membership::QuiesceFollower quiesce_;
  std::optional<int64_t> joining_since_ns_;  // Since when Join has had no answer.
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_AGENT_LINK_H_
