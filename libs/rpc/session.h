// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_SESSION_H_
#define TALWEG_LIBS_RPC_SESSION_H_

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "libs/base/random.h"
#include "libs/rpc/scheduler_client.h"

namespace talweg::rpc {

// The part of a scheduler link that members and aggregators share: enter, watch, renew, and start
// over when the connection breaks. A Peer has what differs.
//
//   kEntering --ok--> kWatching --stream ends--> (back-off) --> kWatching ... --refused--> kOut
//        +------------ refused, or no answer for join_timeout_ns ---------------------> kOut
//
// Before it enters, and before each watch, it greets: the scheduler proves who it is.
//
// Two threads: one enters and reads the stream, the other renews the lease and sends words. Any
// thread may call Start, Send and Stop.
class Session {
 public:
  class Peer {
   public:
    virtual ~Peer() = default;
    // Calls that block until their context's deadline or cancellation.
    // What a scheduler that fails this says puts nobody out who was let in before.
    virtual grpc::Status Greet(grpc::ClientContext& context) = 0;
    virtual grpc::Status Enter(grpc::ClientContext& context) = 0;
    // Reads the stream to its end; calls Session::OnAttached for its first message.
    virtual grpc::Status Watch(grpc::ClientContext& context) = 0;
    virtual grpc::Status Renew(grpc::ClientContext& context) = 0;

    // Events, one at a time. After OnRefused or OnOut only the last two come.
    virtual void OnRefused(const absl::Status& status) = 0;
    virtual void OnOut(const std::string& text) = 0;
    // The scheduler has told Enter to ask again, and why. Called once for each text.
    virtual void OnDelayed(const std::string& /*text*/) {}
    virtual void OnUnreachable(const std::string& text) = 0;
    virtual void OnReachable(int64_t lease_ns) = 0;
    // Returns whether NOT_FOUND means to enter again, with the same incarnation.
    virtual bool EntersAgain() const = 0;
  };
  // A call that tells the scheduler something. It is retried while the scheduler does not answer.
  using Word = std::function<grpc::Status(grpc::ClientContext& context)>;

  // `peer` outlives the session.
  Session(const SchedulerLinkOptions& options, Peer* peer);
  ~Session();

  void Start();
  void Send(Word word);
  // Ends calls and threads. No event follows.
  void Stop();

  // Makes a call on the calling thread, and retries it for at most `timeout_ns`.
  grpc::Status CallNow(const Word& word, int64_t timeout_ns);

  // Called from within Watch.
  void OnAttached(int64_t lease_ns);
  void SetLease(int64_t lease_ns);
  // Returns whether Enter has succeeded.
  bool entered() const;

  // Runs `deliver`, one at a time, unless the session was stopped or is out.
  void Deliver(const std::function<void()>& deliver);

  absl::Status Describe(const grpc::Status& status) const;
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

 private:
  // A context that Stop cancels, for as long as it lives.
  class Call;

  // Returns what the status of a call says of the scheduler.
  grpc::Status Heard(const grpc::Status& status, const grpc::ClientContext& context) const;
  void Watching();
  void Renewing();
  // Returns how long after a renewal the next one is due.
  int64_t RenewalNs(int64_t lease_ns) const;
  bool EnterOrGiveUp();
  grpc::Status Greet(int64_t timeout_ns);
  grpc::Status CallWatching(int64_t timeout_ns, const Word& made);
  void RenewOnce();
  void SendWords();
  void NoteAnswer(const grpc::Status& status);
  void GoOut(const grpc::Status& status);
  bool SleepNs(int64_t ns);
  int64_t BackoffNs(int attempt);

  const SchedulerLinkOptions options_;
  Peer* const peer_;
  const std::shared_ptr<grpc::Channel> channel_;

  std::mutex deliver_mutex_;  // Taken before mutex_.
  bool reachable_ = true;     // As last delivered. Guarded by deliver_mutex_.

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopped_ = false;
  bool out_ = false;
  bool entered_ = false;
  bool attached_ = false;
  int64_t lease_ns_ = 10'000'000'000;
  std::deque<Word> words_;
  Random random_;
  Call* watch_call_ = nullptr;
  Call* renew_call_ = nullptr;
  Call* now_call_ = nullptr;

  std::thread watching_;
  std::thread renewing_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_SESSION_H_
