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

absl::Status CheckRole(const rpc::Credentials* credentials, rpc::Role role,
                       const std::string& directory) {
  if (credentials == nullptr || !credentials->identity()) return absl::OkStatus();
  const rpc::Identity& identity = *credentials->identity();
  if (identity.role == role) return absl::OkStatus();
  const std::string wanted(rpc::RoleName(role));
  return absl::InvalidArgumentError(
      "the certificate in tls_dir " + directory + " is that of " + rpc::Describe(identity) +
      ", and this daemon needs one of role " + wanted +
      ", or nobody takes it for what it is: give the directory of such a certificate (talweg certs "
      "makes them)");
}

}  // namespace

absl::StatusOr<std::shared_ptr<const rpc::Credentials>> LoadCredentials(
    const config::ProcessConfig& config, rpc::Role role) {
  rpc::TakeGrpcLog(LogOfGrpc);
  TALWEG_ASSIGN_OR_RETURN(const config::AcceptedTokens tokens, config::LoadAcceptedTokens(config));
  TALWEG_ASSIGN_OR_RETURN(std::shared_ptr<const rpc::Credentials> loaded,
                          rpc::Credentials::Load({.tls_directory = config.tls_dir,
                                                  .token_file = config.token_file,
                                                  .accepted_tokens = tokens.table,
                                                  .token_keys = tokens.keys,
                                                  .token_audience = config.token_audience,
                                                  .on_warning = [](const std::string& text) {
                                                    telemetry::Log(telemetry::LogLevel::kWarning,
                                                                   text);
                                                  }}));
  TALWEG_RETURN_IF_ERROR(CheckRole(loaded.get(), role, config.tls_dir));
  return loaded;
}

}  // namespace talweg::credentials
