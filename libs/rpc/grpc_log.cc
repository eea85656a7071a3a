// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <cstdlib>
#include <cstring>
#include <utility>

namespace talweg::rpc {
namespace {

// Never destroyed: gRPC's threads may log while the process ends.
std::function<void(const std::string&)>& Writer() {
  static auto* const writer = new std::function<void(const std::string&)>;
  return *writer;
}

bool IsSet(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr && *text != '\0';
}

void WriteLine(gpr_log_func_args* line) {
  const char* slash = std::strrchr(line->file, '/');
  const std::string file = slash == nullptr ? line->file : slash + 1;
  Writer()("gRPC: " + std::string(line->message) + " (" + file + ":" + std::to_string(line->line) +
           ")");
}

}  // namespace

void TakeGrpcLog(std::function<void(const std::string&)> write) {
  if (IsSet("GRPC_VERBOSITY") || IsSet("GRPC_TRACE")) return;
  Writer() = std::move(write);
  gpr_set_log_function(WriteLine);
}

}  // namespace talweg::rpc
