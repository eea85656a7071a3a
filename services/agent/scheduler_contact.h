// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_SCHEDULER_CONTACT_H_
#define TALWEG_SERVICES_AGENT_SCHEDULER_CONTACT_H_

#include <cstdint>
#include <string>
#include <utility>

namespace talweg::agent {

// Whether the scheduler answers, for messages and status.
class SchedulerContact {
 public:
  // `text`: why the scheduler cannot be reached. Returns whether it answered until now.
  bool OnUnreachable(const std::string& text, int64_t now_ns) {
    text_ = text;
    if (silent_since_ns_ != 0) return false;
    silent_since_ns_ = now_ns;
    return true;
  }
  // Returns whether the scheduler did not answer until now.
  bool OnReachable() {
    text_.clear();
    return std::exchange(silent_since_ns_, 0) != 0;
  }

  bool answers() const { return silent_since_ns_ == 0; }
  const std::string& text() const { return text_; }
  // Returns an error's text, with how long the scheduler has not answered if it does not.
  std::string WithSilence(const std::string& text, int64_t now_ns) const {
    if (answers()) return text;
    const std::string since =
        "for " + std::to_string((now_ns - silent_since_ns_) / 1'000'000'000) + " s";
    constexpr char kRemedy[] = "start it again, and then this job";
    // The text may already say why.
    if (text.find(text_) != std::string::npos) return text + " (" + since + "; " + kRemedy + ")";
    return text + "; " + since + " the " + text_ + " (" + kRemedy + ")";
  }

 private:
  int64_t silent_since_ns_ = 0;  // 0: it answers.
  std::string text_;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_SCHEDULER_CONTACT_H_
