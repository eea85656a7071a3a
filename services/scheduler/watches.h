// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_SCHEDULER_WATCHES_H_
#define TALWEG_SERVICES_SCHEDULER_WATCHES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "libs/base/bytes.h"
#include "libs/base/ids.h"
#include "libs/membership/scheduler_core.h"
#include "libs/rpc/version.h"
#include "libs/telemetry/log.h"
#include "proto/talweg/scheduler/v1/membership.pb.h"
#include "proto/talweg/scheduler/v1/pool.pb.h"
#include "services/scheduler/told_views.h"
#include "services/scheduler/unsent.h"

namespace talweg::scheduler {

// The writing end of one watch call.
template <typename Response>
class Stream {
 public:
  virtual ~Stream() = default;
  // SchedulerDriver::OnStreamSent follows when the peer has taken the message.
  virtual void Send(Response response) = 0;
  // Ends the stream after all messages. Send must not be called again.
  virtual void End(const absl::Status& status) = 0;
  // Ends the call at once, and frees what the peer has not taken. `why` is the `shut_out` of the
  // OnStreamBroken that follows, unless End was called before.
  virtual void Cut(const std::string& why) = 0;
};
using MemberStream = Stream<v1::WatchViewsResponse>;
using AggregatorStream = Stream<v1::WatchJobsResponse>;

// How much may wait in memory for streams (docs/quotas.md, "Watches").
struct WatchLimits {
  int64_t lease_ns = 10'000'000'000;  // How long one message may take.
  // How long one message may take while others wait for room.
  int64_t contended_ns = 5'000'000'000;
  size_t small_bytes_max = 16 * kKiB;       // A message that never waits for room.
  uint64_t large_bytes_max = 64 * kMiB;     // Larger messages that are being sent, of all streams.
  uint64_t waiting_bytes_max = 256 * kMiB;  // All that waits for all streams.
  size_t unsent_max = 16'384;               // Messages that wait for one stream.
};

// One stream, and what it has not been told yet; Watches has those of members and of aggregators.
class Watch {
 public:
  virtual ~Watch() = default;
  virtual size_t unsent_count() const = 0;
  // Both need a message that is unsent. The size is an estimate.
  virtual size_t NextBytes(ToldViews& told_views) = 0;
  // Returns how many bytes it sends.
  virtual size_t SendNext(ToldViews& told_views) = 0;
  // The views that the stream's next changes start from.
  virtual std::vector<ViewPointer> Bases() const = 0;
  virtual void End(const absl::Status& status) = 0;
  virtual void Cut(const std::string& why) = 0;
  virtual std::string who() const = 0;  // For the log.
};

// The open watch streams. Sends each its messages one at a time, as fast as the peer takes them.
//
// What waits is kept as the core has said it, and becomes a message when it is sent. So a view
// costs nothing while it waits, and a newer view takes the place of those that were not sent. The
// change that is sent starts from the view that was sent last.
//
// A stream that does not take what it is sent is cut. Its owner can open another one, and is told
// the present state.
//
// One owner thread.
class Watches {
 public:
  Watches(const WatchLimits& limits, const rpc::Version& version);
  ~Watches();

  // `group`: large messages take turns by group, and then by stream.
  void Open(membership::StreamId id, std::shared_ptr<MemberStream> stream, const MemberTold& told,
            uint64_t group);
  void Open(membership::StreamId id, std::shared_ptr<AggregatorStream> stream,
            const AggregatorTold& told);
  // These do nothing if the stream is gone.
  void Tell(const membership::TellMember& tell, int64_t now_ns);
  void Tell(const membership::TellAggregator& tell, int64_t now_ns);
  // Ends the stream after what it has been told.
  void Close(membership::StreamId id, const absl::Status& status, int64_t now_ns);
  void Forget(membership::StreamId id, int64_t now_ns);
  void OnSent(membership::StreamId id, int64_t now_ns);
  void OnTick(int64_t now_ns);
  // Gives all streams what they have not been sent, and ends them.
  void EndAll(const absl::Status& status);

  // What waits in memory, in bytes.
  uint64_t waiting_bytes() const { return unsent_bytes_ + sent_bytes_ + base_bytes_; }
  uint64_t cut_count() const { return cut_count_; }

 private:
  template <typename Told>
  class WatchOf;
  using MemberWatch = WatchOf<MemberTold>;
  using AggregatorWatch = WatchOf<AggregatorTold>;

  struct Entry {
    std::unique_ptr<Watch> watch;
    uint64_t group = 0;
    bool in_line = false;
    std::optional<absl::Status> ending = {};
    // Since when something has waited without a pause; nullopt: nothing waits.
    std::optional<int64_t> busy_since_ns = {};
    // The message that is being sent.
    std::optional<int64_t> sent_ns = {};
    size_t sent_bytes = 0;
    std::vector<ViewPointer> bases = {};  // Counted in bases_.
  };
  using Entries = std::map<membership::StreamId, Entry>;
  // A view from which changes start. Streams share it.
  struct Base {
    size_t holders = 0;
    uint64_t bytes = 0;
  };

  void OnTold(Entries::iterator at, int64_t now_ns);
  void Advance(Entries::iterator at, int64_t now_ns);
  void SendNext(Entries::iterator at, int64_t now_ns);
  bool HasRoom(size_t bytes) const;
  void ServeLine(int64_t now_ns);
  void Release(Entry& entry, membership::StreamId id);
  void Remove(Entries::iterator at);
  void Cut(membership::StreamId id, int64_t now_ns);

  const WatchLimits limits_;
  const rpc::Version version_;
  ToldViews told_views_;
  uint64_t unsent_bytes_ = 0;  // Messages that streams share count once. Outlives entries_.
  uint64_t sent_bytes_ = 0;
  uint64_t large_bytes_ = 0;  // A part of sent_bytes_.
  uint64_t base_bytes_ = 0;
  uint64_t cut_count_ = 0;
  Keeper<membership::MemberMessage> member_keeper_;
  Keeper<membership::AggregatorMessage> aggregator_keeper_;
  Entries entries_;
  std::map<const view::View*, Base> bases_;  // Those of streams that are being sent a message.
  // Streams whose next message waits for room, by group. May name streams that are gone.
  std::map<uint64_t, std::deque<membership::StreamId>> line_;
  uint64_t last_group_ = 0;
  std::set<std::pair<int64_t, membership::StreamId>> sending_;  // By sent_ns.
  std::set<std::pair<int64_t, membership::StreamId>> busy_;     // By busy_since_ns.
  telemetry::BoundedLog cuts_;
};

}  // namespace talweg::scheduler

#endif  // TALWEG_SERVICES_SCHEDULER_WATCHES_H_
