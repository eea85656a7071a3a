// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_INTEGRATION_RUNNING_AGENT_H_
#define TALWEG_TESTS_INTEGRATION_RUNNING_AGENT_H_

#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/base/test_directory.h"
#include "libs/config/config.h"
#include "libs/rpc/admin_client.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "services/agent/agent.h"

namespace talweg::integration {

// An agent in this process, on a thread of its own. The destructor stops and joins it.
class RunningAgent {
 public:
  explicit RunningAgent(const config::AgentConfig& config, uint64_t incarnation = 0,
                        const std::string& job_secret = "") {
    agent::AgentOptions options;
    options.config = config;
    options.job_secret = job_secret;
    options.socket_path = directory_.Path("agent.sock");
    options.incarnation = Incarnation{incarnation != 0 ? incarnation
                                                       : static_cast<uint64_t>(getpid()) * 1000 +
                                                             config.node_rank + 1};
    socket_path_ = options.socket_path;
    std::promise<absl::StatusOr<std::string>> ready;
    auto is_ready = ready.get_future();
    thread_ = std::thread([this, options, &ready]() mutable {
      auto created = agent::Agent::Create(std::move(options));
      if (!created.ok()) {
        ready.set_value(created.status());
        return;
      }
      agent_ = created->get();
      ready.set_value(agent_->admin_address());
      end_.set_value(agent_->Run());
      // Destroyed when nobody can call Stop any more.
      released_.get_future().wait();
    });
    const auto admin = is_ready.get();
    if (!admin.ok()) {
      thread_.join();
      FAIL(status::StatusText(admin.status()));
    }
    admin_address_ = *admin;
  }
  ~RunningAgent() {
    if (!ended_) Stop().IgnoreError();
    released_.set_value();
    thread_.join();
    unlink(socket_path_.c_str());
  }
  RunningAgent(const RunningAgent&) = delete;
  RunningAgent& operator=(const RunningAgent&) = delete;

  const std::string& socket_path() const { return socket_path_; }
  const std::string& admin_address() const { return admin_address_; }

  void RequestStop(const std::string& why) { agent_->Stop(why); }
  absl::Status WaitForEnd() {
    if (!ended_) result_ = end_.get_future().get();
    ended_ = true;
    return result_;
  }
  absl::Status Stop() {
    if (!ended_) RequestStop("the test is over");
    return WaitForEnd();
  }

  agent::v1::GetStatusResponse Status() const {
    rpc::AgentAdminClient client(admin_address_, 60'000'000'000);
    agent::v1::GetStatusRequest request;
    request.set_with_tensors(true);
    const auto status = client.GetStatus(request);
    if (!status.ok()) FAIL(status::StatusText(status.status()));
    return *status;
  }
  // Waits until the ranks of `generation` have left and the agent serves the next ones. For agents
  // that are alone.
  void WaitForRestart(uint64_t generation) const {
    while (Status().job_id() <= generation) std::this_thread::yield();
  }

 private:
  TestDirectory directory_;
  std::string socket_path_;
  std::string admin_address_;
  agent::Agent* agent_ = nullptr;
  std::promise<absl::Status> end_;
  std::promise<void> released_;
  absl::Status result_;
  bool ended_ = false;
  std::thread thread_;
};

}  // namespace talweg::integration

#endif  // TALWEG_TESTS_INTEGRATION_RUNNING_AGENT_H_
