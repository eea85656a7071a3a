// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_IMPL_H_
#define TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_IMPL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "libs/base/descriptor.h"
#include "libs/shm/daemon/connections.h"
#include "libs/shm/daemon/declarations.h"
#include "libs/shm/daemon/node_memory.h"
#include "libs/shm/daemon/rank_listener.h"
#include "libs/shm/daemon/rank_messages.h"
#include "libs/shm/daemon/rank_server.h"
#include "libs/shm/daemon/rings.h"

namespace talweg::shm {

// A RankServer made of parts. Connections keeps the ranks' connections from accept to end.
// RankMessages handles what ranks say, Rings what they push, Declarations answers what they
// declare, NodeMemory has what they share. This class sends what the agent says.
class RankServerImpl final : public RankServer {
 public:
  RankServerImpl(RankServerConfig config, RankListener listener, Descriptor epoll)
      : config_(std::move(config)),
        listener_(std::move(listener)),
        epoll_(std::move(epoll)),
        memory_(config_),
        connections_(&config_, epoll_.get(), &counters_),
        rings_(&config_, &connections_, &counters_),
        declarations_(&config_, &connections_, &memory_),
        messages_(RankMessages::Parts{.config = &config_,
                                      .connections = &connections_,
                                      .memory = &memory_,
                                      .rings = &rings_,
                                      .declarations = &declarations_,
                                      .counters = &counters_}) {}

  const RankServerConfig& config() const override { return config_; }
  int WaitDescriptor() const override { return epoll_.get(); }
  RankServerCounters counters() const override { return counters_; }

  int PollRings(RankEventSink& sink) override { return rings_.Poll(sink); }
  int PollSockets(RankEventSink& sink) override;
  bool PrepareToSleep(Until until) override { return rings_.PrepareToSleep(until); }
  void Beat() override;
  void Welcome(RankConnectionId id, const WelcomeData& data) override;
  void Refuse(RankConnectionId id, RankStatus status, std::string_view text) override;
  Outcome<ContributionBuffer> AllocateContribution(RankConnectionId id, uint64_t bytes) override {
    return memory_.AllocateContribution(connections_.FindOpen(id), bytes);
  }
  Outcome<ResultBuffer> AllocateOnePlace(RankConnectionId id, uint64_t bytes) override {
    return memory_.AllocateOnePlace(connections_.FindOpen(id), bytes);
  }
  Outcome<SharedPlace> PlanContribution(const BufferShape& shape, bool in_place) override {
    return memory_.Plan(shape, in_place);
  }
  Outcome<Location> PlaceContribution(RankConnectionId id, const SharedPlace& place) override;
  Outcome<ResultBuffer> AllocateResult(uint64_t bytes) override {
    return memory_.AllocateResult(bytes);
  }
  void DropTensorMemory() override;
  void ReplyDeclared(RankConnectionId id, RequestId request, const DeclaredData& data) override {
    declarations_.Reply(id, request, data);
  }
  void RefuseDeclaration(RankConnectionId id, RequestId request, RankStatus status,
                         std::string_view text) override {
    declarations_.Refuse(id, request, status, text);
  }
  void ReplyExported(RankConnectionId id, RequestId request, const Exported& answer) override {
    Send(id, {.request = request.value(), .body = answer});
  }
  void ReplyUnexported(RankConnectionId id, RequestId request, const Unexported& answer) override {
    Send(id, {.request = request.value(), .body = answer});
  }
  void ReplyPlaced(RankConnectionId id, RequestId request, const Placed& answer) override {
    Send(id, {.request = request.value(), .body = answer});
  }
  void PublishEventsLost(RankConnectionId id) override;
  uint64_t PublishStop(RankConnectionId id, uint64_t stop_at) override;
  uint64_t StepsEnded(RankConnectionId id) override;
  void PublishEpoch(Epoch epoch) override;
  void ReplyMembership(RankConnectionId id, RequestId request,
                       const RankMembership& answer) override {
    Send(id, {.request = request.value(), .body = answer});
  }
  void ReplyTold(RankConnectionId id, RequestId request, const Told& answer) override {
    Send(id, {.request = request.value(), .body = answer});
  }
  void Renumber(RankConnectionId id, Rank rank, uint32_t size, const RankNumbers& numbers) override;
  void Garbage(RankConnectionId id, const std::string& why, RankEventSink& sink) override;
  void PublishCompletion(const Completion& completion) override;
  void PublishArrival(TensorIndex tensor, uint64_t bytes) override;
  void FailAll(RankStatus status, std::string_view text) override {
    connections_.FailAll(status, text);
  }
  void Disconnect(RankConnectionId id, RankStatus status, std::string_view text) override;
  void Release(RankConnectionId id) override { connections_.Release(id); }

 private:
  int AcceptAll();
  // Sends to a connection that is not over.
  void Send(RankConnectionId id, const Message& message);
  // Hands the rank part `part` of the other ranks' contributions.
  void IntroducePeers(Connection& connection, uint32_t part);

  const RankServerConfig config_;
  RankListener listener_;
  Descriptor epoll_;
  RankServerCounters counters_;
  NodeMemory memory_;
  Connections connections_;
  Rings rings_;
  Declarations declarations_;
  RankMessages messages_;
  Epoch epoch_;  // The newest view's epoch.
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_RANK_SERVER_IMPL_H_
