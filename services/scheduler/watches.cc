// SPDX-License-Identifier: Apache-2.0
#include "services/scheduler/watches.h"

#include <algorithm>
#include <variant>

#include "libs/rpc/conversion.h"

namespace talweg::scheduler {
namespace {

using membership::AggregatorMessage;
using membership::MemberMessage;
using membership::StreamId;

// The owner of a stream that was cut reads it if its lease ends.
constexpr char kWhyCut[] = "it did not read what the scheduler sent it";

// What differs between the streams of members and of aggregators.
template <typename Told>
struct Side;
template <>
struct Side<MemberTold> {
  using Message = MemberMessage;
  using Response = v1::WatchViewsResponse;
};
template <>
struct Side<AggregatorTold> {
  using Message = AggregatorMessage;
  using Response = v1::WatchJobsResponse;
};

size_t NextBytesOf(const MemberMessage& message, const MemberTold& told, ToldViews& told_views) {
  const auto* view = std::get_if<membership::SharedView>(&message);
  return view != nullptr ? told_views.BytesOf(view->pointer(), told) : TextBytes(message);
}

size_t NextBytesOf(const AggregatorMessage& message, const AggregatorTold& told,
                   ToldViews& told_views) {
  const auto* job = std::get_if<membership::JobView>(&message);
  return job != nullptr ? told_views.BytesOf(*job, told) : TextBytes(message);
}

void Write(const MemberMessage& message, const rpc::Version& version, int64_t lease_ns,
           ToldViews& told_views, MemberTold& told, v1::WatchViewsResponse& response) {
  if (const auto* attached = std::get_if<membership::Attached>(&message)) {
    *response.mutable_attached()->mutable_version() = rpc::ToProto(version);
    *response.mutable_attached()->mutable_lease_duration() = rpc::DurationFromNs(lease_ns);
    response.mutable_attached()->set_quiesce_id(attached->quiesce.value());
  } else if (const auto* view = std::get_if<membership::SharedView>(&message)) {
    told_views.Write(view->pointer(), told, response);
  } else if (const auto* quiesce = std::get_if<membership::Quiesce>(&message)) {
    response.mutable_quiesce()->set_quiesce_id(quiesce->id.value());
    response.mutable_quiesce()->set_step(quiesce->step);
    for (const NodeRank node : quiesce->joining) {
      response.mutable_quiesce()->add_joining_node_ranks(node.value());
    }
  } else if (const auto* cancelled = std::get_if<membership::QuiesceCancelled>(&message)) {
    response.mutable_quiesce_cancelled()->set_quiesce_id(cancelled->id.value());
  } else if (const auto* failed = std::get_if<membership::JobFailed>(&message)) {
    response.mutable_job_failed()->set_text(failed->text);
  } else {
    const auto& left = std::get<membership::MemberLeft>(message);
    *response.mutable_member_left()->mutable_id() = rpc::ToProto(left.id);
    response.mutable_member_left()->set_text(left.text);
  }
}

void Write(const AggregatorMessage& message, const rpc::Version& version, int64_t lease_ns,
           ToldViews& told_views, AggregatorTold& told, v1::WatchJobsResponse& response) {
  if (std::holds_alternative<membership::Attached>(message)) {
    *response.mutable_attached()->mutable_version() = rpc::ToProto(version);
    *response.mutable_attached()->mutable_lease_duration() = rpc::DurationFromNs(lease_ns);
  } else if (const auto* job = std::get_if<membership::JobView>(&message)) {
    told_views.Write(*job, told, response);
  } else if (const auto* quota = std::get_if<membership::JobQuotaChanged>(&message)) {
    response.mutable_job_quota()->set_job_id(quota->job.value());
    *response.mutable_job_quota()->mutable_quota() = rpc::ToProto(quota->quota);
  } else {
    const auto& closed = std::get<membership::JobClosed>(message);
    response.mutable_job_closed()->set_job_id(closed.job.value());
    response.mutable_job_closed()->set_text(closed.text);
    told.views.erase(closed.job);
  }
}

std::vector<ViewPointer> BasesOf(const MemberTold& told) {
  if (told.view == nullptr) return {};
  return {told.view};
}

std::vector<ViewPointer> BasesOf(const AggregatorTold& told) {
  std::vector<ViewPointer> bases;
  bases.reserve(told.views.size());
  for (const auto& [job, view] : told.views) bases.push_back(view);
  return bases;
}

std::string WhoOf(const MemberTold& told) {
  return "the agent of node " + std::to_string(told.member.node.value()) + " (incarnation " +
         view::HexText(told.member.incarnation) + ")";
}

std::string WhoOf(const AggregatorTold& /*told*/) { return "an aggregator"; }

}  // namespace

template <typename Told>
class Watches::WatchOf final : public Watch {
 public:
  using Message = typename Side<Told>::Message;
  using Response = typename Side<Told>::Response;

  WatchOf(Watches* watches, std::shared_ptr<Stream<Response>> stream, Told told)
      : watches_(watches),
        stream_(std::move(stream)),
        told_(std::move(told)),
        unsent_(&watches->unsent_bytes_) {}

  void Push(std::shared_ptr<const Kept<Message>> kept) { unsent_.Push(std::move(kept)); }

  size_t unsent_count() const override { return unsent_.size(); }
  size_t NextBytes(ToldViews& told_views) override {
    return NextBytesOf(unsent_.front(), told_, told_views);
  }
  size_t SendNext(ToldViews& told_views) override {
    const auto next = unsent_.Pop();
    Response response;
    Write(next->message(), watches_->version_, watches_->limits_.lease_ns, told_views, told_,
          response);
    const size_t bytes = response.ByteSizeLong();
    stream_->Send(std::move(response));
    return bytes;
  }
  std::vector<ViewPointer> Bases() const override { return BasesOf(told_); }
  void End(const absl::Status& status) override { stream_->End(status); }
  void Cut(const std::string& why) override { stream_->Cut(why); }
  std::string who() const override { return WhoOf(told_); }

 private:
  Watches* const watches_;
  const std::shared_ptr<Stream<Response>> stream_;
  Told told_;
  Unsent<Message> unsent_;
};

// -------------------------------------------------------------------------------------------------

Watches::Watches(const WatchLimits& limits, const rpc::Version& version)
    : limits_(limits),
      version_(version),
      member_keeper_(&unsent_bytes_),
      aggregator_keeper_(&unsent_bytes_) {}
Watches::~Watches() = default;

void Watches::Open(StreamId id, std::shared_ptr<MemberStream> stream, const MemberTold& told,
                   uint64_t group) {
  entries_[id] = {.watch = std::make_unique<MemberWatch>(this, std::move(stream), told),
                  .group = group};
}

void Watches::Open(StreamId id, std::shared_ptr<AggregatorStream> stream,
                   const AggregatorTold& told) {
  // Each is a group of its own. These numbers are those of no job.
  entries_[id] = {.watch = std::make_unique<AggregatorWatch>(this, std::move(stream), told),
                  .group = ~id.value()};
}

void Watches::Tell(const membership::TellMember& tell, int64_t now_ns) {
  const auto at = entries_.find(tell.stream);
  if (at == entries_.end()) return;
  static_cast<MemberWatch&>(*at->second.watch).Push(member_keeper_.Keep(tell.message));
  OnTold(at, now_ns);
}

void Watches::Tell(const membership::TellAggregator& tell, int64_t now_ns) {
  const auto at = entries_.find(tell.stream);
  if (at == entries_.end()) return;
  static_cast<AggregatorWatch&>(*at->second.watch).Push(aggregator_keeper_.Keep(tell.message));
  OnTold(at, now_ns);
}

void Watches::Close(StreamId id, const absl::Status& status, int64_t now_ns) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  at->second.ending = status;
  Advance(at, now_ns);
}

void Watches::Forget(StreamId id, int64_t now_ns) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  Remove(at);
  ServeLine(now_ns);
}

void Watches::OnSent(StreamId id, int64_t now_ns) {
  const auto at = entries_.find(id);
  if (at == entries_.end()) return;
  Release(at->second, id);
  Advance(at, now_ns);
  ServeLine(now_ns);
}

void Watches::OnTick(int64_t now_ns) {
  std::vector<StreamId> late;
  for (const auto& [sent_ns, id] : sending_) {
    if (now_ns - sent_ns < std::min(limits_.lease_ns, limits_.contended_ns)) break;
    const bool takes_room = !line_.empty() && entries_.at(id).sent_bytes > limits_.small_bytes_max;
    if (takes_room || now_ns - sent_ns >= limits_.lease_ns) late.push_back(id);
  }
  for (const StreamId id : late) Cut(id, now_ns);
  if (!late.empty()) ServeLine(now_ns);
}

void Watches::EndAll(const absl::Status& status) {
  for (auto& [id, entry] : entries_) {
    while (entry.watch->unsent_count() > 0) entry.watch->SendNext(told_views_);
    entry.watch->End(entry.ending.value_or(status));
  }
  while (!entries_.empty()) Remove(entries_.begin());
}

void Watches::OnTold(Entries::iterator at, int64_t now_ns) {
  const StreamId id = at->first;
  if (at->second.watch->unsent_count() > limits_.unsent_max) return Cut(id, now_ns);
  if (!at->second.busy_since_ns) {
    at->second.busy_since_ns = now_ns;
    busy_.emplace(now_ns, id);
  }
  Advance(at, now_ns);
  if (waiting_bytes() <= limits_.waiting_bytes_max) return;
  while (waiting_bytes() > limits_.waiting_bytes_max && !busy_.empty()) {
    Cut(busy_.begin()->second, now_ns);
  }
  ServeLine(now_ns);
}

// Sends the next message, unless one is being sent, or it has to wait for room.
void Watches::Advance(Entries::iterator at, int64_t now_ns) {
  Entry& entry = at->second;
  if (entry.sent_ns || entry.in_line) return;
  if (entry.watch->unsent_count() > 0) {
    const size_t bytes = entry.watch->NextBytes(told_views_);
    const bool goes_first = line_.empty() || bytes <= limits_.small_bytes_max;
    if (goes_first && HasRoom(bytes)) return SendNext(at, now_ns);
    entry.in_line = true;
    line_[entry.group].push_back(at->first);
    return;
  }
  if (entry.busy_since_ns) busy_.erase({*entry.busy_since_ns, at->first});
  entry.busy_since_ns.reset();
  if (!entry.ending) return;
  entry.watch->End(*entry.ending);
  Remove(at);
}

void Watches::SendNext(Entries::iterator at, int64_t now_ns) {
  Entry& entry = at->second;
  entry.sent_bytes = entry.watch->SendNext(told_views_);
  entry.sent_ns = now_ns;
  sending_.emplace(now_ns, at->first);
  sent_bytes_ += entry.sent_bytes;
  if (entry.sent_bytes > limits_.small_bytes_max) large_bytes_ += entry.sent_bytes;
  entry.bases = entry.watch->Bases();
  for (const ViewPointer& base : entry.bases) {
    Base& held = bases_[base.get()];
    if (held.holders++ > 0) continue;
    held.bytes = ToldViews::BytesOf(*base);
    base_bytes_ += held.bytes;
  }
}

bool Watches::HasRoom(size_t bytes) const {
  return bytes <= limits_.small_bytes_max || large_bytes_ == 0 ||
         large_bytes_ + bytes <= limits_.large_bytes_max;
}

// Lets the first stream of each group send, group after group, while there is room.
void Watches::ServeLine(int64_t now_ns) {
  while (!line_.empty()) {
    auto group = line_.upper_bound(last_group_);
    if (group == line_.end()) group = line_.begin();
    const StreamId id = group->second.front();
    const auto at = entries_.find(id);
    const bool waits = at != entries_.end() && at->second.in_line;
    // What it waits with may have been replaced.
    if (waits && !HasRoom(at->second.watch->NextBytes(told_views_))) return;
    last_group_ = group->first;
    group->second.pop_front();
    if (group->second.empty()) line_.erase(group);
    if (!waits) continue;
    at->second.in_line = false;
    SendNext(at, now_ns);
  }
}

// The message that was being sent waits no longer.
void Watches::Release(Entry& entry, StreamId id) {
  if (!entry.sent_ns) return;
  sending_.erase({*entry.sent_ns, id});
  entry.sent_ns.reset();
  sent_bytes_ -= entry.sent_bytes;
  if (entry.sent_bytes > limits_.small_bytes_max) large_bytes_ -= entry.sent_bytes;
  for (const ViewPointer& base : entry.bases) {
    const auto held = bases_.find(base.get());
    if (--held->second.holders > 0) continue;
    base_bytes_ -= held->second.bytes;
    bases_.erase(held);
  }
  entry.bases.clear();
}

void Watches::Remove(Entries::iterator at) {
  Release(at->second, at->first);
  if (at->second.busy_since_ns) busy_.erase({*at->second.busy_since_ns, at->first});
  entries_.erase(at);
}

void Watches::Cut(StreamId id, int64_t now_ns) {
  const auto at = entries_.find(id);
  ++cut_count_;
  cuts_.Write(now_ns, telemetry::LogLevel::kWarning, "ends the watch of ", at->second.watch->who(),
              ": ", kWhyCut);
  at->second.watch->Cut(kWhyCut);
  Remove(at);
}

}  // namespace talweg::scheduler
