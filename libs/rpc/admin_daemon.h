// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_ADMIN_DAEMON_H_
#define TALWEG_LIBS_RPC_ADMIN_DAEMON_H_

#include <memory>
#include <string>
#include <utility>

#include <catch2/catch.hpp>

#include "libs/rpc/admin_service.h"
#include "libs/rpc/credentials.h"
#include "libs/rpc/server.h"

namespace talweg::rpc {

// An agent's admin service that answers every call.
class AdminDaemon {
 public:
  explicit AdminDaemon(std::shared_ptr<const Credentials> credentials) {
    AgentAdminHandlers handlers;
    handlers.get_status = [](const agent::v1::GetStatusRequest&,
                             Done<agent::v1::GetStatusResponse> done) {
      done(agent::v1::GetStatusResponse());
      return true;
    };
    handlers.set_trace = [](const agent::v1::SetTraceRequest&,
                            Done<agent::v1::SetTraceResponse> done) {
      done(agent::v1::SetTraceResponse());
      return true;
    };
    service_ = MakeAgentAdminService(std::move(handlers));
    auto server = Server::Start({.credentials = std::move(credentials)}, {service_->service()});
    INFO(server.status());
    REQUIRE(server.ok());
    server_ = *std::move(server);
  }

  const std::string& address() const { return server_->address(); }

 private:
  std::unique_ptr<ServiceHolder> service_;
  std::unique_ptr<Server> server_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_ADMIN_DAEMON_H_
