// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_JOB_LINK_H_
#define TALWEG_SERVICES_AGENT_JOB_LINK_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "libs/base/ids.h"
#include "libs/pipeline/effects.h"
#include "libs/rpc/scheduler_events.h"
#include "libs/view/view.h"
#include "services/agent/agent_data_plane.h"

namespace talweg::agent {

// Connects an agent with its job: carries the core's messages to the scheduler and to aggregators.
// Owned by the data thread.
class JobLink {
 public:
  enum class LeaveReason : uint8_t {
    kFinished,  // All ranks are done.
    kStopped,   // Stopped while ranks still work: the job has lost a member.
  };
  struct Totals {
    uint64_t bytes_sent = 0;
    uint64_t bytes_received = 0;
    uint64_t bad_frames = 0;
  };

  virtual ~JobLink() = default;

  // Returns whether this node is the whole job. Then no message goes anywhere.
  virtual bool IsAlone() const = 0;
  // A view follows, during the call or later.
  virtual void Join(const view::MemberIdentity& self) = 0;
  // Nothing is sent or received after that. Returns OK if there was nobody to tell.
  virtual absl::Status Leave(LeaveReason reason, const std::string& text) = 0;

  // --- To the scheduler.
  virtual void Quiesced(uint64_t id, uint64_t step) = 0;
  virtual void SetRanksAttached(bool attached) = 0;
  virtual void SetRanksReady(bool ready) = 0;
  virtual void SetRanksHaveState(bool have_state) = 0;
  virtual void ReportLost(const pipeline::ReportLost& lost) = 0;
  virtual void ReportUnreachable(Incarnation aggregator, const std::string& reason) = 0;

  // --- To aggregators. Their messages go to the PeerEvents of the AgentDataPlane.
  virtual void Do(const pipeline::Connect& effect) = 0;
  virtual void Do(const pipeline::Close& effect) = 0;
  virtual void Do(pipeline::Send& effect) = 0;
  virtual void Do(const pipeline::WriteSlice& effect) = 0;
  virtual void OnHostFound(ConnectionId connection, const absl::StatusOr<std::string>& literal) = 0;
  virtual int Poll(int events_max) = 0;
  virtual bool PrepareToSleep() = 0;
  virtual bool Drained() const = 0;
  virtual void CloseAll() = 0;
  // See AgentDataPlane.
  virtual bool AnyLocal() const = 0;
  virtual void UseNetworkOnly() = 0;

  virtual AgentDataPlane::Traffic TrafficOf(ConnectionId connection) const = 0;
  virtual Totals totals() const = 0;
};

// `publish` is called during Join, with a view of this node alone; each Join begins another job.
std::unique_ptr<JobLink> NewAloneLink(
    view::ViewMember self, uint64_t slice_bytes_max,
    std::function<void(const rpc::ViewPublished& published)> publish);

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_JOB_LINK_H_
