// SPDX-License-Identifier: Apache-2.0
// Somebody without the job secret hands on all that a process and its scheduler say, on a network
// without TLS. This relay ends HTTP/2 on both sides, so it can do whatever a proxy of bytes can.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/random.h"
#include "libs/rpc/scheduler_client.h"
#include "libs/store/store.h"
#include "proto/talweg/scheduler/v1/sealed.grpc.pb.h"
#include "services/scheduler/daemon_testing.h"
#include "services/scheduler/testing.h"

namespace talweg::scheduler {
namespace {

const std::string kSecret(64, 's');

class Relay final : public v1::SealedService::Service {
 public:
  using Code = grpc::StatusCode;
  // Answers a call in the scheduler's place, or hands it on.
  using OnGreet = std::function<grpc::Status(const v1::GreetRequest&, v1::GreetResponse*)>;
  using OnCall = std::function<grpc::Status(const v1::CallRequest&, v1::CallResponse*)>;
  // Returns what to send in place of a message of a watch stream.
  using OnMessage = std::function<std::vector<v1::WatchResponse>(const v1::WatchResponse&)>;

  explicit Relay(const std::string& target) {
    LeadTo(target);
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    address_ = "127.0.0.1:" + std::to_string(port);
  }
  ~Relay() override { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& address() const { return address_; }
  // From now on hands on what comes to the scheduler there.
  void LeadTo(const std::string& target) {
    auto stub =
        v1::SealedService::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
    const std::lock_guard lock(mutex_);
    target_ = std::move(stub);
  }
  void Set(OnGreet on_greet, OnCall on_call) {
    const std::lock_guard lock(mutex_);
    on_greet_ = std::move(on_greet);
    on_call_ = std::move(on_call);
  }
  void SetOnMessage(OnMessage on_message) {
    const std::lock_guard lock(mutex_);
    on_message_ = std::move(on_message);
  }

  grpc::Status HandOn(const v1::GreetRequest& request, v1::GreetResponse* response) {
    return Ask(
        [&](auto& target, auto& context) { return target.Greet(&context, request, response); });
  }
  grpc::Status HandOn(const v1::CallRequest& request, v1::CallResponse* response) {
    return Ask(
        [&](auto& target, auto& context) { return target.Call(&context, request, response); });
  }

  // All bytes that it has seen.
  std::string heard() const {
    const std::lock_guard lock(mutex_);
    return heard_;
  }
  // What the scheduler said to each WatchRequest that was sent once more.
  std::vector<Code> repeated_watches() const {
    const std::lock_guard lock(mutex_);
    return repeated_watches_;
  }

  grpc::Status Greet(grpc::ServerContext*, const v1::GreetRequest* request,
                     v1::GreetResponse* response) override {
    Hear(*request);
    const OnGreet on_greet = Get(on_greet_);
    const grpc::Status status =
        on_greet ? on_greet(*request, response) : HandOn(*request, response);
    Hear(*response);
    return status;
  }
  grpc::Status Call(grpc::ServerContext*, const v1::CallRequest* request,
                    v1::CallResponse* response) override {
    Hear(*request);
    const OnCall on_call = Get(on_call_);
    const grpc::Status status = on_call ? on_call(*request, response) : HandOn(*request, response);
    Hear(*response);
    return status;
  }
  grpc::Status Watch(grpc::ServerContext* server, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::WatchResponse>* writer) override {
    Hear(*request);
    const auto target = Get(target_);
    const auto context = grpc::ClientContext::FromServerContext(*server);
    const auto stream = target->Watch(context.get(), *request);
    v1::WatchResponse message;
    bool is_first = true;
    while (stream->Read(&message)) {
      Hear(message);
      if (std::exchange(is_first, false)) RepeatWatch(*target, *request);
      const OnMessage on_message = Get(on_message_);
      for (const v1::WatchResponse& each :
           on_message ? on_message(message) : std::vector<v1::WatchResponse>{message}) {
        writer->Write(each);
      }
    }
    return stream->Finish();
  }

 private:
  template <typename Value>
  Value Get(const Value& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }
  template <typename Message>
  void Hear(const Message& message) {
    const std::lock_guard lock(mutex_);
    heard_ += message.SerializeAsString();
  }
  template <typename Made>
  grpc::Status Ask(const Made& made) {
    const auto target = Get(target_);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    return made(*target, context);
  }
  void RepeatWatch(v1::SealedService::Stub& target, const v1::WatchRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    const auto stream = target.Watch(&context, request);
    v1::WatchResponse ignored;
    if (stream->Read(&ignored)) context.TryCancel();
    const Code code = stream->Finish().error_code();
    const std::lock_guard lock(mutex_);
    repeated_watches_.push_back(code);
  }

  mutable std::mutex mutex_;
  std::shared_ptr<v1::SealedService::Stub> target_;
  OnGreet on_greet_;
  OnCall on_call_;
  OnMessage on_message_;
  std::string heard_;
  std::vector<Code> repeated_watches_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// A scheduler with a job secret, and a relay before it.
struct Relayed {
  explicit Relayed(const std::string& secret = kSecret)
      : daemon(store::MakeMemoryStore(), {.job_secret = secret}), relay(daemon.address()) {}

  rpc::SchedulerLinkOptions Link() const {
    rpc::SchedulerLinkOptions link = scheduler::Link(relay.address());
    link.job_secret = kSecret;
    link.renew_ns = kSecond / 50;
    return link;
  }

  const Daemon daemon;
  Relay relay;
};

void CheckNothingIsRead(const std::string& heard) {
  for (const char* said : {"ssssssss", "mnist", "host-0", "fi:tcp"}) {
    CHECK_FALSE(heard.find(said) != std::string::npos);
  }
}

// The member says what only its own scheduler takes from it.
void CheckIsIn(TestMember& member) {
  CHECK_FALSE(member.events.Has<rpc::LeaseLost>());
  CHECK_FALSE(member.events.Has<rpc::JobFailed>());
  CHECK(member.client->Leave(rpc::SchedulerClient::LeaveReason::kFinished, "", 30 * kSecond).ok());
}

TEST_CASE("Relay: whoever hands everything on, and repeats it, reads and does nothing",
          "[scheduler]") {
  Relayed relayed;
  std::mutex mutex;
  std::vector<grpc::StatusCode> repeated;
  relayed.relay.Set({}, [&](const v1::CallRequest& request, v1::CallResponse* response) {
    const grpc::Status status = relayed.relay.HandOn(request, response);
    v1::CallResponse again;
    const grpc::Status twice = relayed.relay.HandOn(request, &again);
    const std::lock_guard lock(mutex);
    repeated.push_back(twice.error_code());
    return status;
  });
  TestMember member(relayed.Link(), Spec(0, 1, 1));
  member.events.Next<rpc::ViewPublished>();
  CheckIsIn(member);
  member.client.reset();
  CHECK(repeated.size() >= 2);  // It joined, and it left.
  for (const grpc::StatusCode code : repeated) CHECK(code == grpc::StatusCode::ABORTED);
  const std::vector<grpc::StatusCode> watches = relayed.relay.repeated_watches();
  CHECK_FALSE(watches.empty());
  for (const grpc::StatusCode code : watches) CHECK(code == grpc::StatusCode::ABORTED);
  CheckNothingIsRead(relayed.relay.heard());
}

TEST_CASE("Relay: answers that are swapped or changed are no word of the scheduler",
          "[scheduler]") {
  Relayed relayed;
  std::mutex mutex;
  std::optional<v1::CallResponse> kept;
  relayed.relay.Set({}, [&](const v1::CallRequest& request, v1::CallResponse* response) {
    const grpc::Status status = relayed.relay.HandOn(request, response);
    const std::lock_guard lock(mutex);
    if (!kept) kept = *response;
    return status;
  });
  TestMember member(relayed.Link(), Spec(0, 1, 1));
  member.events.Next<rpc::ViewPublished>();

  Random random(5);
  const int what = GENERATE(range(0, 4));
  CAPTURE(what);
  relayed.relay.Set({}, [&, what](const v1::CallRequest& request, v1::CallResponse* response) {
    const grpc::Status status = relayed.relay.HandOn(request, response);
    const std::lock_guard lock(mutex);
    const auto flip = [&](std::string* bytes) {
      (*bytes)[random.Below(bytes->size())] ^= static_cast<char>(1 << random.Below(8));
    };
    if (what == 0) *response = *kept;  // That of another call.
    if (what == 1) flip(response->mutable_sealed());
    if (what == 2) flip(response->mutable_salt());
    if (what == 3) return grpc::Status(grpc::StatusCode::NOT_FOUND, "you are out");
    return status;
  });
  member.events.Next<rpc::Unreachable>();
  relayed.relay.Set({}, {});
  member.events.Next<rpc::Reachable>();
  CheckIsIn(member);
}

TEST_CASE("Relay: calls that are changed, or sent in another's name, have no effect",
          "[scheduler]") {
  Relayed relayed;
  TestMember member(relayed.Link(), Spec(0, 1, 1));
  rpc::JoinSpec another = Spec(0, 1, 1);
  another.job_name = "another";
  TestMember other(relayed.Link(), another);
  member.events.Next<rpc::ViewPublished>();
  other.events.Next<rpc::ViewPublished>();
  std::mutex mutex;
  Random random(6);
  std::string another_key;
  std::vector<grpc::StatusCode> codes;
  const int what = GENERATE(range(0, 4));
  CAPTURE(what);
  relayed.relay.Set({}, [&, what](const v1::CallRequest& request, v1::CallResponse* response) {
    v1::CallRequest changed = request;
    {
      const std::lock_guard lock(mutex);
      if (what == 0) {
        std::string* sealed = changed.mutable_sealed();
        (*sealed)[random.Below(sealed->size())] ^= static_cast<char>(1 << random.Below(8));
      }
      if (what == 1) changed.set_method("/talweg.scheduler.v1.MembershipService/Leave");
      if (what == 2) changed.set_count(request.count() + 1);
      if (what == 3) {
        if (another_key.empty()) another_key = request.public_key();
        if (another_key == request.public_key()) return relayed.relay.HandOn(request, response);
        changed.set_public_key(another_key);
      }
    }
    const grpc::Status status = relayed.relay.HandOn(changed, response);
    const std::lock_guard lock(mutex);
    codes.push_back(status.error_code());
    return status;
  });
  // One of the two at least has been touched.
  const auto is_touched = [&] {
    const std::lock_guard lock(mutex);
    return codes.size() >= 3;
  };
  const auto until = std::chrono::steady_clock::now() + kPatience;
  while (!is_touched() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  REQUIRE(is_touched());
  relayed.relay.Set({}, {});
  {
    const std::lock_guard lock(mutex);
    for (const grpc::StatusCode code : codes) CHECK(code == grpc::StatusCode::UNAUTHENTICATED);
  }
  CheckIsIn(member);
  CheckIsIn(other);
}

TEST_CASE("Relay: messages of a stream that are swapped, repeated or left out are not believed",
          "[scheduler]") {
  Relayed relayed;
  const int what = GENERATE(range(0, 3));
  CAPTURE(what);
  std::mutex mutex;
  std::vector<v1::WatchResponse> seen;
  relayed.relay.SetOnMessage([&, what](const v1::WatchResponse& message) {
    const std::lock_guard lock(mutex);
    seen.push_back(message);
    std::vector<v1::WatchResponse> sent = {message};
    if (seen.size() > 2) return sent;  // The next stream goes untouched.
    if (what == 0) {                   // The second comes first.
      sent.clear();
      if (seen.size() == 2) sent = {seen[1], seen[0]};
    } else if (what == 1) {
      sent.push_back(message);
    } else if (seen.size() == 1) {
      sent.clear();
    }
    return sent;
  });
  TestMember member(relayed.Link(), Spec(0, 1, 1));
  // The member ends the stream, which counts as its loss, as a cut connection does. The scheduler
  // says so in its next answer.
  CHECK(Contains(member.events.Next<rpc::LeaseLost>().text, "closed its connection"));
}

TEST_CASE("Relay: its own words are shown as those of somebody who has proven nothing",
          "[scheduler]") {
  Relayed relayed;
  const auto says = [](const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::ABORTED, "wait for the relay");
  };
  const bool to_greeting = GENERATE(true, false);
  relayed.relay.Set(to_greeting ? Relay::OnGreet(says) : Relay::OnGreet(),
                    to_greeting ? Relay::OnCall() : Relay::OnCall(says));
  TestMember member(relayed.Link(), Spec(0, 1, 1));
  CHECK(Contains(member.events.Next<rpc::JoinDelayed>().text,
                 "whoever answers has not proven that it knows the job secret, and says: wait for "
                 "the relay"));
  relayed.relay.Set({}, {});
  member.events.Next<rpc::ViewPublished>();
  CheckIsIn(member);
}

TEST_CASE("Relay: it leads a process only to schedulers of the same secret", "[scheduler]") {
  Relayed relayed;
  {
    // Each scheduler has a secret of its own.
    const Daemon other(store::MakeMemoryStore(), {.job_secret = std::string(64, 't')});
    relayed.relay.LeadTo(other.address());
    TestMember member(relayed.Link(), Spec(0, 1, 1));
    CHECK(Contains(Message(member.Refusal()), "does not prove that it knows the job secret"));
    CheckNothingIsRead(relayed.relay.heard());
  }
  {
    // Nobody knows which addresses lead to a scheduler, so it does not prove one.
    const Daemon other(store::MakeMemoryStore(), {.job_secret = kSecret});
    relayed.relay.LeadTo(other.address());
    TestMember member(relayed.Link(), Spec(0, 1, 1));
    member.events.Next<rpc::ViewPublished>();
    CheckNothingIsRead(relayed.relay.heard());
    CheckIsIn(member);
  }
}

}  // namespace
}  // namespace talweg::scheduler
