// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/call_gate.h"

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "libs/rpc/call_gate_access.h"
#include "libs/rpc/credentials_access.h"
#include "libs/rpc/identity.h"
#include "libs/rpc/local_users.h"
#include "libs/rpc/secret.h"
#include "libs/rpc/steady_time.h"

namespace talweg::rpc {
namespace {

using grpc::experimental::InterceptionHookPoints;

// Returns "[::1]:1234" for "ipv6:%5B::1%5D:1234", or "" for a Unix socket.
std::string AddressOf(const std::string& uri) {
  if (uri.starts_with("unix")) return "";
  std::string address;
  for (size_t i = uri.find(':') + 1; i < uri.size(); ++i) {
    const std::string_view rest = std::string_view(uri).substr(i);
    const bool opens = rest.starts_with("%5B");
    if (opens || rest.starts_with("%5D")) {
      address += opens ? '[' : ']';
      i += 2;
    } else {
      address += uri[i];
    }
  }
  return address;
}

// Returns the address without the port, and for IPv6 only the network, which is the first 64 bits:
// a host may use any number of addresses in it. For the same reason 127.0.0.0/8 counts as one
// address.
std::string HostOf(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.starts_with("127.")) return "127.0.0.1";
  if (!host.starts_with('[')) return host;
  host = host.substr(1, host.rfind(']') - 1);
  size_t groups = 0;
  for (size_t i = 0; i < host.size(); ++i) {
    if (host.compare(i, 2, "::") == 0 && groups < 4) return host.substr(0, i) + "::";
    if (host[i] == ':' && ++groups == 4) return host.substr(0, i) + "::";
  }
  return host;
}

// Returns whether only one process has the identity, so that its calls count together wherever they
// come from. Many processes share other identities: the agents of a job, viewers, and names of "*".
bool IsOneProcess(const Identity& identity) {
  const bool is_single = identity.role == Role::kAggregator || identity.role == Role::kScheduler;
  return is_single && identity.name != "*";
}

// Talweg's own services call Enter, and answer with its refusal.
bool IsOurs(const char* method) { return std::string_view(method).starts_with("/talweg."); }

grpc::Status Refusal(const std::string& text) {
  return {grpc::StatusCode::RESOURCE_EXHAUSTED, text};
}

}  // namespace

struct CallGate::Impl {
  explicit Impl(const CallLimitOptions& options) : limits(options) {}

  struct Call {
    std::string caller;  // The name of the peer that it was begun for.
    // The peer to which it counts as open; nullopt: it does not count.
    std::optional<CallPeer> peer;
    std::string refusal;  // "": admitted.
    std::shared_ptr<Question> question;
  };

  // Begins the call for that peer.
  void Begin(const CallPeer& peer, Call& call) {
    CallLimits::Begun begun = limits.Begin(peer, SteadyNs());
    call.refusal = std::move(begun.refusal);
    call.peer.reset();
    if (call.refusal.empty()) call.peer = std::move(begun.peer);
  }

  LocalUsers users;

  std::mutex mutex;
  CallLimits limits;
  std::map<const grpc::ServerContextBase*, Call*> calls;
};

CallGate::CallGate(const CallLimitOptions& options) : impl_(std::make_shared<Impl>(options)) {}
CallGate::~CallGate() = default;

void CallGate::Forget(std::string_view session_secret) {
  if (session_secret.empty()) return;
  const membership::SecretHash hash = HashOf(session_secret);
  const std::lock_guard lock(impl_->mutex);
  impl_->limits.Forget(hash);
}

uint64_t CallGate::refused_count() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->limits.refused_count();
}

namespace {

// A question of a counted peer. It may outlive the gate.
template <typename Impl>
class CountedQuestion final : public CallGate::Question {
 public:
  CountedQuestion(std::shared_ptr<Impl> gate, CallPeer peer)
      : gate_(std::move(gate)), peer_(std::move(peer)) {}
  ~CountedQuestion() override {
    const std::lock_guard lock(gate_->mutex);
    gate_->limits.EndQuestion(peer_);
  }

  void Charge(uint64_t answer_bytes) override {
    const std::lock_guard lock(gate_->mutex);
    gate_->limits.Charge(peer_, answer_bytes);
  }

 private:
  const std::shared_ptr<Impl> gate_;
  const CallPeer peer_;
};

// The interceptor of one call, from its beginning to its end.
template <typename Impl>
class CountedCall final : public grpc::experimental::Interceptor {
 public:
  CountedCall(Impl* gate, const Credentials* credentials, grpc::experimental::ServerRpcInfo* info)
      : gate_(gate), credentials_(credentials), info_(info) {}
  ~CountedCall() override {
    const std::lock_guard lock(gate_->mutex);
    gate_->calls.erase(info_->server_context());
    if (call_.peer) gate_->limits.End(*call_.peer);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      Begin();
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const std::lock_guard lock(gate_->mutex);
      if (!call_.refusal.empty()) methods->ModifySendStatus(Refusal(call_.refusal));
    }
    methods->Proceed();
  }

 private:
  void Begin() {
    grpc::ServerContextBase* const context = info_->server_context();
    const std::optional<CallPeer> peer = PeerOf(*context);
    if (!peer) return;
    const std::lock_guard lock(gate_->mutex);
    call_.caller = peer->name;
    gate_->Begin(*peer, call_);
    gate_->calls[context] = &call_;
    // gRPC's own services cannot answer with a refusal.
    if (!call_.refusal.empty() && !IsOurs(info_->method()) &&
        info_->type() != grpc::experimental::ServerRpcInfo::Type::UNARY) {
      context->TryCancel();
    }
  }

  // nullopt: the call came by a Unix socket.
  std::optional<CallPeer> PeerOf(const grpc::ServerContextBase& context) const {
    const std::string address = AddressOf(context.peer());
    if (address.empty()) return std::nullopt;
    const std::optional<std::string> user = gate_->users.Find(address);
    const std::string place = user ? *user : HostOf(address);
    const std::optional<Identity> caller = CredentialsAccess::CallerOf(context, credentials_);
    if (!caller) return CallPeer{.name = place, .place = {}};
    return CallPeer{.name = Describe(*caller), .place = IsOneProcess(*caller) ? "" : place};
  }

  Impl* const gate_;
  const Credentials* const credentials_;
  grpc::experimental::ServerRpcInfo* const info_;
  typename Impl::Call call_;
};

template <typename Impl>
class CallCounter final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CallCounter(Impl* gate, std::shared_ptr<const Credentials> credentials)
      : gate_(gate), credentials_(std::move(credentials)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new CountedCall<Impl>(gate_, credentials_.get(), info);
  }

 private:
  Impl* const gate_;
  const std::shared_ptr<const Credentials> credentials_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> CallGateAccess::Interceptors(
    CallGate* gate, std::shared_ptr<const Credentials> credentials) {
  return std::make_unique<CallCounter<CallGate::Impl>>(gate->impl_.get(), std::move(credentials));
}

LocalUsers* CallGateAccess::Users(CallGate* gate) { return &gate->impl_->users; }

grpc::Status CallGateAccess::Enter(CallGate* gate, grpc::CallbackServerContext* context,
                                   std::string_view session_secret) {
  if (gate == nullptr) return grpc::Status::OK;
  CallGate::Impl& impl = *gate->impl_;
  std::string refusal;
  {
    const std::lock_guard lock(impl.mutex);
    const auto found = impl.calls.find(context);
    if (found == impl.calls.end()) return grpc::Status::OK;  // The call came by a Unix socket.
    CallGate::Impl::Call& call = *found->second;
    if (!session_secret.empty()) {
      // A known process is not limited by others of its address or name.
      if (const std::optional<CallPeer> session = impl.limits.SessionOf(HashOf(session_secret))) {
        if (call.peer) impl.limits.Withdraw(*call.peer);
        impl.Begin(*session, call);
      }
    }
    refusal = call.refusal;
  }
  if (refusal.empty()) return grpc::Status::OK;
  context->AddTrailingMetadata(kAskAgainHeader, "calls");
  return Refusal(refusal);
}

void CallGateAccess::Prove(CallGate* gate, const grpc::CallbackServerContext* context,
                           std::string_view session_secret) {
  if (gate == nullptr || session_secret.empty()) return;
  const membership::SecretHash hash = HashOf(session_secret);
  CallGate::Impl& impl = *gate->impl_;
  const std::lock_guard lock(impl.mutex);
  const auto found = impl.calls.find(context);
  if (found == impl.calls.end()) return;  // The call came by a Unix socket.
  impl.limits.Prove(hash, found->second->caller, SteadyNs());
}

absl::StatusOr<std::shared_ptr<CallGate::Question>> CallGateAccess::EnterQuestion(
    CallGate* gate, grpc::CallbackServerContext* context) {
  const grpc::Status entered = Enter(gate, context);
  if (!entered.ok()) return absl::ResourceExhaustedError(entered.error_message());
  if (gate == nullptr) return nullptr;
  CallGate::Impl& impl = *gate->impl_;
  std::string refusal;
  {
    const std::lock_guard lock(impl.mutex);
    const auto found = impl.calls.find(context);
    if (found == impl.calls.end() || !found->second->peer) return nullptr;
    CallGate::Impl::Call& call = *found->second;
    refusal = impl.limits.BeginQuestion(*call.peer);
    if (refusal.empty()) {
      call.question = std::make_shared<CountedQuestion<CallGate::Impl>>(gate->impl_, *call.peer);
      return call.question;
    }
  }
  context->AddTrailingMetadata(kAskAgainHeader, "calls");
  return absl::ResourceExhaustedError(refusal);
}

grpc::Status CallGateAccess::Seen(const grpc::Status& status, const grpc::ClientContext& context) {
  if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) return status;
  if (!context.GetServerTrailingMetadata().contains(kAskAgainHeader)) return status;
  return {grpc::StatusCode::ABORTED, status.error_message()};
}

}  // namespace talweg::rpc
