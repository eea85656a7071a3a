// SPDX-License-Identifier: Apache-2.0
#include "services/credentials/credentials.h"

#include <string>

#include "libs/config/secret_file.h"
#include "libs/rpc/grpc_log.h"
#include "libs/runtime/clock.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"

namespace talweg::credentials {
namespace {

void LogOfGrpc(const std::string& text) {
  static auto* const log = new telemetry::BoundedLog;
  log->Write(runtime::MonotonicClock().NowNs(), telemetry::LogLevel::kWarning, text);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const rpc::Credentials>> LoadCredentials(
    const config::ProcessConfig& config) {
  rpc::TakeGrpcLog(LogOfGrpc);
  TALWEG_ASSIGN_OR_RETURN(const config::AcceptedTokens tokens, config::LoadAcceptedTokens(config));
  return rpc::Credentials::Load({.tls_directory = config.tls_dir,
                                 .token_file = config.token_file,
                                 .accepted_tokens = tokens.table,
                                 .token_keys = tokens.keys,
                                 .token_audience = config.token_audience,
                                 .on_warning = [](const std::string& text) {
                                   telemetry::Log(telemetry::LogLevel::kWarning, text);
                                 }});
}

}  // namespace talweg::credentials
