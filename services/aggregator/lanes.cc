// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/lanes.h"

#include <utility>

#include "libs/runtime/affinity.h"
#include "libs/runtime/incarnation.h"
#include "libs/status/status.h"

namespace talweg::aggregator {
namespace {

// Returns the K-th port after a single port. From a range, and for port 0, each lane takes a free
// port.
config::ListenAddress LaneAddress(config::ListenAddress listen, uint32_t lane) {
  if (lane == 0) return listen;
  if (!listen.path.empty()) {
    listen.path += "." + std::to_string(lane);
  } else if (listen.port_first != 0 && listen.port_first == listen.port_last) {
    listen.port_first += lane;
    listen.port_last += lane;
  }
  return listen;
}

std::string Suffix(size_t lane) { return lane == 0 ? "" : "/" + std::to_string(lane); }

}  // namespace

config::AggregatorConfig LaneConfig(const config::AggregatorConfig& config, uint32_t lane) {
  config::AggregatorConfig own = config;
  own.name = Aggregator::NameOf(config) + Suffix(lane);
  own.listen = LaneAddress(config.listen, lane);
  own.admin_listen = LaneAddress(config.admin_listen, lane);
  own.memory_bytes_max = Aggregator::MemoryBytesMaxOf(config) / config.lanes;
  own.lanes = 1;
  return own;
}

absl::StatusOr<std::unique_ptr<Lanes>> Lanes::Create(
    const config::AggregatorConfig& config, Incarnation incarnation, const runtime::Clock* clock,
    const std::string& job_secret, const std::shared_ptr<const rpc::Credentials>& credentials) {
  auto lanes = std::unique_ptr<Lanes>(new Lanes(config.cpus));
  for (uint32_t lane = 0; lane < config.lanes; ++lane) {
    absl::StatusOr<std::unique_ptr<Aggregator>> aggregator = Aggregator::Create(
        LaneConfig(config, lane), lane == 0 ? incarnation : runtime::NewIncarnation(), clock,
        job_secret, credentials, &lanes->link_);
    if (!aggregator.ok()) {
      return config.lanes == 1
                 ? aggregator.status()
                 : status::Annotate(aggregator.status(), "lane " + std::to_string(lane));
    }
    lanes->lanes_.push_back({.aggregator = *std::move(aggregator)});
  }
  return lanes;
}

Lanes::~Lanes() { (void)Join(); }

void Lanes::Start(std::function<void()> on_ended) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    lane.data_thread = std::thread([this, i, &lane, on_ended] {
      if (!cpus_.empty()) lane.served = runtime::RunOnCpu(cpus_[i % cpus_.size()]);
      if (lane.served.ok()) lane.served = lane.aggregator->Run();
      on_ended();
    });
  }
}

void Lanes::Shutdown(const std::string& text) {
  std::vector<std::thread> calls;
  calls.reserve(lanes_.size());
  for (Lane& lane : lanes_) {
    calls.emplace_back([&lane, &text] { lane.aggregator->Shutdown(text); });
  }
  for (std::thread& call : calls) call.join();
}

absl::Status Lanes::Join() {
  absl::Status first;
  for (Lane& lane : lanes_) {
    if (!lane.data_thread.joinable()) continue;
    lane.aggregator->Stop();
    lane.data_thread.join();
    first.Update(lane.served);
  }
  return first;
}

std::map<std::string, std::string> Lanes::addresses() const {
  std::map<std::string, std::string> addresses;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    addresses["data" + Suffix(i)] = lanes_[i].aggregator->public_data_address();
    addresses["admin" + Suffix(i)] = lanes_[i].aggregator->admin_address();
  }
  return addresses;
}

}  // namespace talweg::aggregator
