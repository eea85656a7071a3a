// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "libs/base/check.h"
#include "libs/rpc/call_gate_access.h"
#include "libs/rpc/channel.h"
#include "libs/rpc/steady_time.h"

namespace talweg::rpc {

class Session::Call {
 public:
  // Stop finds the call through `slot`.
  Call(Session* session, Call** slot) : session_(session), slot_(slot) {
    const std::lock_guard lock(session_->mutex_);
    *slot_ = this;
    if (session_->stopped_) context.TryCancel();
  }
  ~Call() {
    const std::lock_guard lock(session_->mutex_);
    *slot_ = nullptr;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  grpc::ClientContext context;

 private:
  Session* const session_;
  Call** const slot_;
};

Session::Session(const SchedulerLinkOptions& options, Peer* peer)
    : options_(options),
      peer_(peer),
      channel_(MakeChannel({.address = options.address,
                            .backoff_min_ns = options.backoff_min_ns,
                            .backoff_max_ns = options.backoff_max_ns,
                            .credentials = options.credentials,
                            .peers = {Role::kScheduler}})),
      random_(options.seed) {}

Session::~Session() { Stop(); }

void Session::Start() {
  const std::lock_guard lock(mutex_);
  TALWEG_CHECK(!watching_.joinable());
  if (stopped_) return;
  watching_ = std::thread([this] { Watching(); });
  renewing_ = std::thread([this] { Renewing(); });
}

void Session::Send(Word word) {
  const std::lock_guard lock(mutex_);
  words_.push_back(std::move(word));
  changed_.notify_all();
}

void Session::Stop() {
  {
    // With this lock no delivery is under way, and none starts later.
    const std::lock_guard deliver_lock(deliver_mutex_);
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    for (Call* call : {watch_call_, renew_call_, now_call_}) {
      if (call != nullptr) call->context.TryCancel();
    }
    changed_.notify_all();
  }
  if (watching_.joinable()) watching_.join();
  if (renewing_.joinable()) renewing_.join();
}

grpc::Status Session::Heard(const grpc::Status& status, const grpc::ClientContext& context) const {
  const grpc::Status seen = CallGateAccess::Seen(status, context);
  if (seen.error_code() != grpc::StatusCode::UNIMPLEMENTED || !entered()) return seen;
  // The scheduler that let this process in knows its calls. Somebody else has its address for now,
  // or a proxy answers for it.
  return {grpc::StatusCode::UNAVAILABLE, "whoever answers knows no such call"};
}

grpc::Status Session::CallNow(const Word& word, int64_t timeout_ns) {
  const int64_t end_ns = SteadyNs() + timeout_ns;
  for (int attempt = 0;; ++attempt) {
    const int64_t left_ns = std::max<int64_t>(end_ns - SteadyNs(), 1'000'000);
    Call call(this, &now_call_);
    SetDeadline(call.context, std::min(left_ns, options_.call_timeout_ns));
    const grpc::Status status = Heard(word(call.context), call.context);
    const int64_t pause_ns = BackoffNs(attempt);
    if (!IsTransient(status) || SteadyNs() + pause_ns >= end_ns || !SleepNs(pause_ns)) {
      return status;
    }
  }
}

void Session::OnAttached(int64_t lease_ns) {
  {
    const std::lock_guard lock(mutex_);
    attached_ = true;
  }
  SetLease(lease_ns);
  NoteAnswer(grpc::Status::OK);
}

void Session::SetLease(int64_t lease_ns) {
  const std::lock_guard lock(mutex_);
  lease_ns_ = std::max<int64_t>(lease_ns, 1'000'000);
  changed_.notify_all();
}

bool Session::entered() const {
  const std::lock_guard lock(mutex_);
  return entered_;
}

void Session::Deliver(const std::function<void()>& deliver) {
  const std::lock_guard deliver_lock(deliver_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || out_) return;
  }
  deliver();
}

absl::Status Session::Describe(const grpc::Status& status) const {
  return ToAbsl(status, "scheduler", options_.address);
}

// Delivers the first failure, and the first success after it.
void Session::NoteAnswer(const grpc::Status& status) {
  const std::lock_guard deliver_lock(deliver_mutex_);
  int64_t lease_ns = 0;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    lease_ns = lease_ns_;
  }
  const bool reachable = !IsTransient(status);
  if (reachable == reachable_) return;
  reachable_ = reachable;
  if (reachable) {
    peer_->OnReachable(lease_ns);
  } else {
    peer_->OnUnreachable(std::string(Describe(status).message()));
  }
}

void Session::GoOut(const grpc::Status& status) {
  const absl::Status described = Describe(status);
  Deliver([&] {
    bool entered = false;
    {
      const std::lock_guard lock(mutex_);
      out_ = true;
      entered = entered_;
      changed_.notify_all();
    }
    if (entered) {
      peer_->OnOut(std::string(described.message()));
    } else {
      peer_->OnRefused(described);
    }
  });
}

// Sleeps. Returns false if the session ends meanwhile.
bool Session::SleepNs(int64_t ns) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(ns), [this] { return stopped_ || out_; });
  return !stopped_ && !out_;
}

// Doubles from the minimum to the maximum, with a jitter of half of that, so that the clients of
// one scheduler do not all come back together.
int64_t Session::BackoffNs(int attempt) {
  const std::lock_guard lock(mutex_);
  const int64_t whole_ns =
      std::min(options_.backoff_max_ns, options_.backoff_min_ns << std::min(attempt, 20));
  return whole_ns / 2 +
         static_cast<int64_t>(random_.Below(static_cast<uint64_t>(whole_ns) / 2 + 1));
}

// Makes a call on the watching thread. `timeout_ns` 0: without a deadline.
grpc::Status Session::CallWatching(int64_t timeout_ns, const Word& made) {
  Call call(this, &watch_call_);
  if (timeout_ns > 0) SetDeadline(call.context, std::min(timeout_ns, options_.call_timeout_ns));
  return Heard(made(call.context), call.context);
}

grpc::Status Session::Greet(int64_t timeout_ns) {
  const grpc::Status status = CallWatching(
      timeout_ns, [this](grpc::ClientContext& context) { return peer_->Greet(context); });
  if (status.ok() || IsTransient(status) || !entered()) return status;
  // Somebody else has the scheduler's address for now.
  return {grpc::StatusCode::UNAVAILABLE, status.error_message()};
}

bool Session::EnterOrGiveUp() {
  const int64_t end_ns = SteadyNs() + options_.join_timeout_ns;
  grpc::Status reason;
  std::string delayed_text;
  for (int attempt = 0;; ++attempt) {
    const int64_t left_ns = std::max<int64_t>(end_ns - SteadyNs(), 1'000'000);
    grpc::Status status = Greet(left_ns);
    if (status.ok()) {
      status = CallWatching(left_ns,
                            [this](grpc::ClientContext& context) { return peer_->Enter(context); });
    }
    const bool not_yet = status.error_code() == grpc::StatusCode::ABORTED;
    // The scheduler answers, and the member may wait.
    NoteAnswer(not_yet ? grpc::Status::OK : status);
    if (not_yet && status.error_message() != delayed_text) {
      delayed_text = status.error_message();
      Deliver([&] { peer_->OnDelayed(delayed_text); });
    }
    if (status.ok()) {
      const std::lock_guard lock(mutex_);
      entered_ = true;
      return !stopped_;
    }
    const int64_t pause_ns = BackoffNs(attempt);
    // After it has entered once there is no hurry: running steps do not need the scheduler.
    const bool late = !entered() && SteadyNs() + pause_ns >= end_ns;
    // The last try may have been cut short. The earlier errors say more.
    const bool cut_short = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (!cut_short || reason.ok()) reason = status;
    // A member that is told to ask again does so until its owner stops it.
    if (!not_yet && (!IsTransient(status) || late)) {
      GoOut(reason);
      return false;
    }
    if (!SleepNs(pause_ns)) return false;
  }
}

void Session::Watching() {
  if (!EnterOrGiveUp()) return;
  for (int attempt = 0;; ++attempt) {
    grpc::Status status = Greet(options_.call_timeout_ns);
    if (status.ok()) {
      // Without a deadline. The other thread ends the call if no first message comes.
      status =
          CallWatching(0, [this](grpc::ClientContext& context) { return peer_->Watch(context); });
    }
    bool was_attached = false;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_ || out_) return;
      was_attached = std::exchange(attached_, false);
    }
    if (was_attached) attempt = 0;
    if (status.ok()) {
      // The scheduler ends a stream with OK only for a reason. The next call returns it.
      status = grpc::Status(grpc::StatusCode::UNAVAILABLE, "it has ended the stream");
    }
    if (status.error_code() == grpc::StatusCode::NOT_FOUND && peer_->EntersAgain()) {
      if (!EnterOrGiveUp()) return;
      continue;
    }
    if (!IsTransient(status)) {
      GoOut(status);
      return;
    }
    NoteAnswer(status);
    if (!SleepNs(BackoffNs(attempt))) return;
  }
}

int64_t Session::RenewalNs(int64_t lease_ns) const {
  return options_.renew_ns > 0 ? std::min(options_.renew_ns, lease_ns / 2) : lease_ns / 5;
}

void Session::Renewing() {
  int64_t renewed_ns = SteadyNs();
  int64_t detached_since_ns = SteadyNs();
  while (true) {
    bool words = false;
    bool entered = false;
    int64_t lease_ns = 0;
    {
      std::unique_lock lock(mutex_);
      lease_ns = lease_ns_;
      const auto wake_ns = renewed_ns + RenewalNs(lease_ns);
      changed_.wait_for(
          lock, std::chrono::nanoseconds(std::max<int64_t>(wake_ns - SteadyNs(), 0)), [&] {
            return stopped_ || out_ || lease_ns_ != lease_ns || (entered_ && !words_.empty());
          });
      if (stopped_ || out_) return;
      entered = entered_;
      words = entered_ && !words_.empty();
      lease_ns = lease_ns_;
      const int64_t now_ns = SteadyNs();
      if (attached_ || watch_call_ == nullptr || !entered_) {
        detached_since_ns = now_ns;
      } else if (now_ns - detached_since_ns > options_.call_timeout_ns) {
        watch_call_->context.TryCancel();
        detached_since_ns = now_ns;
      }
    }
    if (words) SendWords();
    if (SteadyNs() - renewed_ns >= RenewalNs(lease_ns)) {
      if (entered) RenewOnce();
      renewed_ns = SteadyNs();
    }
  }
}

void Session::RenewOnce() {
  grpc::Status status;
  {
    Call call(this, &renew_call_);
    SetDeadline(call.context, options_.call_timeout_ns);
    status = Heard(peer_->Renew(call.context), call.context);
  }
  {
    const std::lock_guard lock(mutex_);
    if (stopped_ || out_) return;
    if (status.error_code() == grpc::StatusCode::NOT_FOUND && peer_->EntersAgain()) {
      // The other thread enters again.
      if (watch_call_ != nullptr) watch_call_->context.TryCancel();
      return;
    }
  }
  if (status.ok() || IsTransient(status)) {
    NoteAnswer(status);
  } else {
    GoOut(status);
  }
}

void Session::SendWords() {
  while (true) {
    Word word;
    {
      const std::lock_guard lock(mutex_);
      if (stopped_ || out_ || words_.empty()) return;
      word = words_.front();
    }
    grpc::Status status;
    {
      Call call(this, &renew_call_);
      SetDeadline(call.context, options_.call_timeout_ns);
      status = Heard(word(call.context), call.context);
    }
    NoteAnswer(status);
    if (IsTransient(status)) {
      SleepNs(BackoffNs(3));
      return;
    }
    // If a word is refused, for example because this incarnation is out, the stream reports why.
    const std::lock_guard lock(mutex_);
    words_.pop_front();
  }
}

}  // namespace talweg::rpc
