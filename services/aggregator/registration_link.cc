// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/registration_link.h"

#include <chrono>
#include <string>
#include <utility>

namespace talweg::aggregator {
namespace {

class RegistrationLink final : public SchedulerLink {
 public:
  RegistrationLink(rpc::SchedulerLinkOptions options,
                   std::function<void(std::function<void()>)> post, BlockingCalls* calls,
                   OnEvent on_event)
      : post_(std::move(post)),
        calls_(calls),
        on_event_(std::make_shared<OnEvent>(std::move(on_event))),
        registration_(std::move(options), [post = post_, hears = std::weak_ptr<OnEvent>(on_event_)](
                                              rpc::AggregatorEvent event) {
          post([hears, event = std::move(event)] {
            if (const auto on_event = hears.lock()) (*on_event)(event);
          });
        }) {}

  void Register(view::ViewAggregator self) override { registration_.Register(std::move(self)); }

  void Drain(std::string text, int64_t timeout_ns,
             std::function<void(absl::StatusOr<uint32_t>)> done) override {
    calls_->Post([this, text = std::move(text), timeout_ns, done = std::move(done)] {
      Answer(done, registration_.Drain(text, timeout_ns));
    });
  }

  void Deregister(std::string text, int64_t timeout_ns,
                  std::function<void(absl::Status)> done) override {
    calls_->Post([this, text = std::move(text), timeout_ns, done = std::move(done)] {
      Answer(done, registration_.Deregister(text, timeout_ns));
    });
  }

 private:
  template <typename Result>
  void Answer(std::function<void(Result)> done, Result result) {
    post_([hears = std::weak_ptr<OnEvent>(on_event_), done = std::move(done),
           result = std::move(result)] {
      if (hears.lock()) done(result);
    });
  }

  const std::function<void(std::function<void()>)> post_;
  BlockingCalls* const calls_;
  // Destroyed with the link, so closures that were posted before are not run after it.
  const std::shared_ptr<OnEvent> on_event_;
  rpc::AggregatorRegistration registration_;
};

}  // namespace

void BlockingCalls::Post(std::function<void()> call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
  changed_.notify_all();
}

bool BlockingCalls::RunNext(int64_t timeout_ns) {
  std::function<void()> call;
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                      [this] { return closed_ || !calls_.empty(); });
    if (closed_ || calls_.empty()) return false;
    call = std::move(calls_.front());
    calls_.pop_front();
  }
  call();
  return true;
}

void BlockingCalls::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::unique_ptr<SchedulerLink> NewRegistrationLink(rpc::SchedulerLinkOptions options,
                                                   std::function<void(std::function<void()>)> post,
                                                   BlockingCalls* calls,
                                                   SchedulerLink::OnEvent on_event) {
  return std::make_unique<RegistrationLink>(std::move(options), std::move(post), calls,
                                            std::move(on_event));
}

}  // namespace talweg::aggregator
