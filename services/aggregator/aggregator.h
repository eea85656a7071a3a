// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_H_
#define TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "libs/base/ids.h"
#include "libs/config/config.h"
#include "libs/rpc/admin_service.h"
#include "libs/rpc/server.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/event_loop.h"
#include "libs/runtime/mailbox.h"
#include "libs/telemetry/counter.h"
#include "libs/transport/transport.h"
#include "services/aggregator/aggregator_data_plane.h"
#include "services/aggregator/aggregator_life.h"
#include "services/aggregator/memory_thread.h"
#include "services/aggregator/registration_link.h"

namespace talweg::aggregator {

// talweg-aggregator: sums slices for many jobs at once. main() and tests run the same object.
//
//   auto aggregator = Aggregator::Create(config, &clock);
//   std::thread data([&] { result = (*aggregator)->Run(); });  // The data thread.
//   ... (*aggregator)->Shutdown("SIGTERM"); data.join();
class Aggregator {
 public:
  // Binds the data and the admin address. Only gRPC's threads run until Run. `incarnation` is
  // random. What the aggregator says to the scheduler is sealed with `job_secret`. Without
  // `credentials` there is no TLS. The lanes of a process share `link`; nullptr: there is one lane.
  // `clock` and `link` outlive the aggregator. Errors name the cause and the remedy.
  static absl::StatusOr<std::unique_ptr<Aggregator>> Create(
      const config::AggregatorConfig& config, Incarnation incarnation, const runtime::Clock* clock,
      std::string job_secret = "", std::shared_ptr<const rpc::Credentials> credentials = nullptr,
      SharedLink* link = nullptr);
  // Run must have returned, unless it was never called.
  ~Aggregator();

  // Return the option's value, or its default if it is not given.
  static std::string NameOf(const config::AggregatorConfig& config);
  static uint64_t MemoryBytesMaxOf(const config::AggregatorConfig& config);

  // Registers with the scheduler and serves until Shutdown or Stop. The calling thread is the data
  // thread. Returns an error if the scheduler refuses this aggregator.
  absl::Status Run();

  // Asks the scheduler for no further jobs, waits until the aggregator's jobs are over, at most for
  // `drain_timeout_ms`, deregisters, and ends Run. Blocks. Must not be called on the data thread.
  void Shutdown(const std::string& text);
  // Ends Run at once. The scheduler declares the aggregator lost. Any thread.
  void Stop();

  // The address that peers connect to: "fi:tcp://127.0.0.1:4711/<token>,local:...". Only the
  // scheduler gets it, and tells the members of jobs.
  const std::string& data_address() const { return data_address_; }
  // The same without the token, for logs and status.
  std::string public_data_address() const;
  const std::string& admin_address() const { return server_->address(); }
  const std::string& name() const { return name_; }

 private:
  Aggregator(const config::AggregatorConfig& config, Incarnation incarnation,
             const runtime::Clock* clock, std::string job_secret,
             std::shared_ptr<const rpc::Credentials> credentials, SharedLink* link);
  absl::Status Open();
  absl::Status OpenTransport();
  // Logs who can reach the data port, and what they can do there.
  void SayWhoCanConnect() const;
  absl::Status OpenAdmin();
  std::unique_ptr<SchedulerLink> MakeLink(Incarnation incarnation, SchedulerLink::OnEvent on_event);
  aggregator::v1::GetStatusResponse GetStatus(const aggregator::v1::GetStatusRequest& request);

  // Runs closures of other threads on the data thread.
  class Errands : public runtime::Poller {
   public:
    explicit Errands(runtime::EventLoop* loop) : mailbox_(loop) {}
    void Post(std::function<void()> errand) { mailbox_.Post(std::move(errand)); }
    int Poll() override {
      return mailbox_.Drain([](const std::function<void()>& errand) { errand(); });
    }
    bool PrepareToSleep() override { return mailbox_.size() == 0; }

   private:
    runtime::Mailbox<std::function<void()>> mailbox_;
  };

  const config::AggregatorConfig config_;
  const std::string job_secret_;
  const std::shared_ptr<const rpc::Credentials> credentials_;
  const runtime::Clock* const clock_;
  SharedLink* const link_;
  const int64_t started_unix_ns_;
  std::string name_;
  std::string host_id_;
  std::string data_address_;
  telemetry::CounterSet counters_;

  std::unique_ptr<runtime::EventLoop> loop_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<Errands> errands_;
  std::unique_ptr<MemoryThread> memory_thread_;  // Posts to errands_.
  std::unique_ptr<AggregatorDataPlane> data_plane_;
  std::unique_ptr<rpc::ServiceHolder> admin_service_;
  std::unique_ptr<rpc::Server> server_;

  BlockingCalls shutdown_calls_;  // The thread in Shutdown runs them.

  const Incarnation incarnation_;         // The first.
  std::unique_ptr<AggregatorLife> life_;  // Owned by the data thread.
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_AGGREGATOR_H_
