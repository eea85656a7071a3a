// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_LANES_H_
#define TALWEG_SERVICES_AGGREGATOR_LANES_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "libs/base/ids.h"
#include "libs/config/config.h"
#include "libs/rpc/server.h"
#include "libs/runtime/clock.h"
#include "services/aggregator/aggregator.h"

namespace talweg::aggregator {

// Returns the configuration of lane `lane`: a name and addresses of its own, and an equal part of
// the memory. Lane 0 has the daemon's name and addresses.
config::AggregatorConfig LaneConfig(const config::AggregatorConfig& config, uint32_t lane);

// The lanes of one process: aggregators, each with a data thread of its own. To the scheduler and
// to jobs each lane is an aggregator like any other, with an endpoint, slots and credit of its own.
// Lanes share the host's link, and end together.
//
// All calls are on one thread.
class Lanes {
 public:
  // Calls Aggregator::Create `config.lanes` times. Lane 0 has `incarnation`.
  static absl::StatusOr<std::unique_ptr<Lanes>> Create(
      const config::AggregatorConfig& config, Incarnation incarnation, const runtime::Clock* clock,
      const std::string& job_secret, const std::shared_ptr<const rpc::Credentials>& credentials);
  // Stops the lanes that still run.
  ~Lanes();

  // Starts the data threads. Each calls `on_ended` when it ends for any reason.
  void Start(std::function<void()> on_ended);
  // Calls Aggregator::Shutdown of all lanes at once.
  void Shutdown(const std::string& text);
  // Stops the lanes that still run. Returns the error of the first lane that failed, else OK.
  absl::Status Join();

  // Returns the addresses: "data" and "admin" of lane 0, "data/1" and "admin/1" of lane 1, and so
  // on.
  std::map<std::string, std::string> addresses() const;
  const std::string& name() const { return lanes_.front().aggregator->name(); }

 private:
  struct Lane {
    std::unique_ptr<Aggregator> aggregator;
    std::thread data_thread;
    absl::Status served;  // Owned by the data thread until it is joined.
  };

  explicit Lanes(std::vector<uint32_t> cpus) : cpus_(std::move(cpus)) {}

  const std::vector<uint32_t> cpus_;
  SharedLink link_;  // Outlives the lanes.
  std::vector<Lane> lanes_;
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_LANES_H_
