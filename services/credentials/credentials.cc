// SPDX-License-Identifier: Apache-2.0
#include "services/credentials/credentials.h"

#include "libs/config/secret_file.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"

namespace talweg::credentials {

absl::StatusOr<std::shared_ptr<const rpc::Credentials>> LoadCredentials(
    const config::ProcessConfig& config) {
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
