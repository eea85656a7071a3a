// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/channel.h"

#include <algorithm>
#include <chrono>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "libs/rpc/credentials_access.h"
#include "libs/rpc/grpc_log.h"

namespace talweg::rpc {
namespace {

constexpr int64_t kNsPerMs = 1'000'000;
// Slower than leases: a connection is only given up for a peer that is surely gone.
constexpr int kKeepaliveMs = 20'000;
constexpr int kMessageBytesMax = 64 << 20;

// What to look at if a call has found nobody; gRPC's text says how far it came.
const char* Remedy(const std::string& text) {
  const auto has = [&text](std::string_view part) { return text.find(part) != std::string::npos; };
  if (has("handshake failed") || has("verification check failed")) {
    return "is this its address, does it have TLS, and is its certificate of its role and of an "
           "authority in ca.crt here?";
  }
  if (has("Socket closed")) {
    return "is it running, and do both ends have TLS (tls_dir), or neither, with certificates "
           "that are not revoked?";
  }
  return "is it running, and is this its address?";
}

}  // namespace

absl::Status CheckAddress(const std::string& what, const std::string& address) {
  if (address.rfind("unix:/", 0) == 0) return absl::OkStatus();
  const size_t colon = address.rfind(':');
  const std::string port = colon == std::string::npos ? "" : address.substr(colon + 1);
  const bool number = !port.empty() && port.size() <= 5 &&
                      port.find_first_not_of("0123456789") == std::string::npos &&
                      std::stoi(port) >= 1 && std::stoi(port) <= 65535;
  const std::string host = colon == std::string::npos ? "" : address.substr(0, colon);
  const bool plain = host.find(':') == std::string::npos ||
                     (host.front() == '[' && host.back() == ']' && host.size() > 2);
  if (number && !host.empty() && plain) return absl::OkStatus();
  return absl::InvalidArgumentError("the " + what + "'s address '" + address +
                                    "' is not host:port, such as 10.0.0.3:7447 or [::1]:7447, and "
                                    "does not begin with unix:/");
}

std::shared_ptr<grpc::Channel> MakeChannel(const ChannelOptions& options) {
  QuietGrpcLog();
  const int64_t backoff_min_ns = options.backoff_min_ns;
  const int64_t backoff_max_ns = options.backoff_max_ns;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS,
                   static_cast<int>(backoff_min_ns / kNsPerMs));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   std::max(1000, static_cast<int>(backoff_min_ns / kNsPerMs)));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, static_cast<int>(backoff_max_ns / kNsPerMs));
  arguments.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS,
                   static_cast<int>(backoff_max_ns / kNsPerMs));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  CredentialsAccess::EndWithCertificates(options.credentials, &arguments);
  return grpc::CreateCustomChannel(
      options.address,
      CredentialsAccess::Channel(options.credentials, options.address, options.peers), arguments);
}

void SetDeadline(grpc::ClientContext& context, int64_t timeout_ns) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(timeout_ns));
}

bool IsTransient(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::INTERNAL:  // The connection was reset in the middle of a message.
    case grpc::StatusCode::UNKNOWN: return true;
    default: return false;
  }
}

absl::Status ToAbsl(const grpc::Status& status, const std::string& what,
                    const std::string& address) {
  if (status.ok()) return absl::OkStatus();
  const std::string who = what + " at " + address;
  const std::string text = status.error_message();
  if (text.find("DNS resolution failed") != std::string::npos) {
    return absl::UnavailableError(who + ": the name '" + address.substr(0, address.rfind(':')) +
                                  "' does not resolve (" + text + "): is it right?");
  }
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
    return absl::UnavailableError(
        absl::StrCat(who, " does not answer (", text, "): ", Remedy(text)));
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(
        who + " does not answer (" + text +
        "): does it hang, or does something on the way drop packets?");
  }
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
    return absl::UnimplementedError(who + " does not know this call" +
                                    (text.empty() ? "" : " (" + text + ")") +
                                    ": is it another daemon, or an older one?");
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), text);
}

}  // namespace talweg::rpc
