// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

namespace talweg::rpc {
namespace {

constexpr std::string_view kTlsFile = "ssl_transport_security.cc";
constexpr std::string_view kOtherHostName = "No match found for server name";

// Never destroyed: gRPC's threads may log while the process ends.
std::function<void(const std::string&)>& Writer() {
  static auto* const writer = new std::function<void(const std::string&)>;
  return *writer;
}

void WriteLine(gpr_log_func_args* line) {
  const std::string_view path = line->file;
  const std::string_view file = path.substr(path.rfind('/') + 1);
  const std::string_view message = line->message;
  if (message.starts_with(kOtherHostName)) return;
  const std::string text = "gRPC: " + std::string(message) + " (" + std::string(file) + ":" +
                           std::to_string(line->line) + ")";
  if (Writer()) {
    Writer()(text);
  } else if (file != kTlsFile) {
    std::fprintf(stderr, "%s\n", text.c_str());
  }
}

bool IsSet(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr && *text != '\0';
}

}  // namespace

void TakeGrpcLog(std::function<void(const std::string&)> write) {
  Writer() = std::move(write);
  QuietGrpcLog();
}

void QuietGrpcLog() {
  if (!IsSet("GRPC_VERBOSITY") && !IsSet("GRPC_TRACE")) gpr_set_log_function(WriteLine);
}

}  // namespace talweg::rpc
