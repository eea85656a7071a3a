// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/timeline.h"

#include <algorithm>
#include <utility>

#include "libs/base/check.h"

namespace talweg::gpu::fake {
namespace {

void Call(const std::function<void()>& effect) {
  if (effect) effect();
}

}  // namespace

Actor Timeline::NewStream(size_t gpu, StreamPriority priority) {
  const Actor stream = next_stream_++;
  streams_.emplace(stream, Stream{.gpu = gpu, .priority = priority});
  return stream;
}

void Timeline::Post(Actor stream, Work work) {
  streams_.at(stream).works.push_back(std::move(work));
  while (Settle()) {
  }
}

void Timeline::Close(Actor stream) {
  const auto at = streams_.find(stream);
  if (at == streams_.end()) return;
  at->second.closed = true;
  if (at->second.works.empty()) streams_.erase(at);
}

void Timeline::Drop(Actor stream) {
  const auto at = streams_.find(stream);
  if (at == streams_.end()) return;
  if (at->second.ends_ns) {
    const Work& work = at->second.works.front();
    engines_[at->second.gpu].taken[static_cast<size_t>(work.engine)] = false;
  }
  streams_.erase(at);
}

void Timeline::Advance(int64_t now_ns) {
  TALWEG_CHECK(now_ns >= now_ns_);
  for (;;) {
    while (Settle()) {
    }
    const std::optional<int64_t> next = NextEndNs();
    if (!next || *next > now_ns) break;
    now_ns_ = std::max(now_ns_, *next);
    EndDue();
  }
  now_ns_ = now_ns;
}

std::optional<int64_t> Timeline::NextEndNs() const {
  std::optional<int64_t> next;
  const auto offer = [&next](const std::optional<int64_t>& ends_ns) {
    if (ends_ns && (!next || *ends_ns < *next)) next = ends_ns;
  };
  for (const auto& [actor, stream] : streams_) {
    offer(stream.ends_ns);
    if (stream.at_rendezvous && !stream.works.front().joint->hangs) {
      offer(stream.works.front().joint->ends_ns);
    }
  }
  return next;
}

bool Timeline::IsIdle(Actor stream) const {
  const auto at = streams_.find(stream);
  return at == streams_.end() || at->second.works.empty();
}

const char* Timeline::MayNeverEnd(Actor stream, const std::set<Actor>& own) const {
  const auto at = streams_.find(stream);
  if (at == streams_.end()) return nullptr;
  for (const Work& work : at->second.works) {
    if (work.waits_for != nullptr && !work.waits_for->done &&
        !own.contains(work.waits_for->recorder)) {
      return "another process";
    }
    if (work.joint != nullptr && work.joint->hangs && !work.joint->over) {
      return "a collective that hangs";
    }
  }
  return nullptr;
}

bool Timeline::Settle() {
  bool progress = false;
  for (auto at = streams_.begin(); at != streams_.end();) {
    while (PassInstant(at->second)) progress = true;
    if (at->second.closed && at->second.works.empty()) {
      at = streams_.erase(at);
    } else {
      ++at;
    }
  }
  return BeginTimed() || progress;
}

// Passes everything that takes no time: marks, waits that are over, arrivals.
bool Timeline::PassInstant(Stream& stream) {
  if (stream.works.empty() || stream.ends_ns) return false;
  Work& work = stream.works.front();
  if (work.marks != nullptr) {
    const std::shared_ptr<Mark> mark = std::move(work.marks);
    stream.works.pop_front();
    mark->done = true;
    for (const auto& on_done : std::exchange(mark->on_done, {})) on_done();
    return true;
  }
  if (work.waits_for != nullptr) {
    if (!work.waits_for->done) return false;
    stream.works.pop_front();
    return true;
  }
  if (work.joint != nullptr) {
    Rendezvous& joint = *work.joint;
    if (joint.over) {
      stream.at_rendezvous = false;
      stream.works.pop_front();
      return true;
    }
    if (stream.at_rendezvous) return false;
    stream.at_rendezvous = true;
    if (++joint.arrived == joint.parties) {
      joint.ends_ns = std::max(now_ns_, joint.not_before_ns) + joint.duration_ns;
      Call(joint.begin);
    }
    return true;
  }
  return false;
}

bool Timeline::BeginTimed() {
  std::vector<Stream*> ready;
  for (auto& [actor, stream] : streams_) {
    if (stream.works.empty() || stream.ends_ns) continue;
    const Work& work = stream.works.front();
    if (work.marks != nullptr || work.waits_for != nullptr || work.joint != nullptr) continue;
    if (!engines_[stream.gpu].taken[static_cast<size_t>(work.engine)]) ready.push_back(&stream);
  }
  if (ready.empty()) return false;
  const bool any_high = std::any_of(ready.begin(), ready.end(), [](const Stream* stream) {
    return stream->priority == StreamPriority::kHigh;
  });
  if (any_high) {
    std::erase_if(ready,
                  [](const Stream* stream) { return stream->priority != StreamPriority::kHigh; });
  }
  Stream& chosen = *ready[random_.Below(ready.size())];
  const Work& work = chosen.works.front();
  if (work.engine != Engine::kNone) {
    engines_[chosen.gpu].taken[static_cast<size_t>(work.engine)] = true;
  }
  chosen.ends_ns = now_ns_ + work.duration_ns;
  Call(work.begin);
  return true;
}

// Ends all work that is due now.
bool Timeline::EndDue() {
  bool progress = false;
  for (auto& [actor, stream] : streams_) {
    if (stream.ends_ns && *stream.ends_ns <= now_ns_) {
      EndFirst(stream);
      progress = true;
    }
    if (!stream.at_rendezvous) continue;
    Rendezvous& joint = *stream.works.front().joint;
    if (!joint.over && !joint.hangs && joint.ends_ns && *joint.ends_ns <= now_ns_) {
      joint.over = true;  // The streams pass it in Settle.
      joint.ends_ns.reset();
      Call(joint.end);
      progress = true;
    }
  }
  return progress;
}

void Timeline::EndFirst(Stream& stream) {
  const Work work = std::move(stream.works.front());
  stream.works.pop_front();
  stream.ends_ns.reset();
  engines_[stream.gpu].taken[static_cast<size_t>(work.engine)] = false;
  Call(work.end);
}

}  // namespace talweg::gpu::fake
