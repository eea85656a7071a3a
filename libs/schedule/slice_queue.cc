// SPDX-License-Identifier: Apache-2.0
#include "libs/schedule/slice_queue.h"

#include <algorithm>

#include "libs/base/check.h"
#include "libs/wire/frames.h"

namespace talweg::schedule {
namespace {

constexpr uint64_t kUnbounded = UINT64_MAX;

// How much an owner may keep back. A large slice does not wait for that credit.
uint64_t KeptBackBytes(uint64_t credit_bytes) {
  return credit_bytes <= wire::kSmallCreditBytes ? 0 : wire::kKeptCreditBytes;
}

bool MoreUrgent(const QueuedSlice& a, const QueuedSlice& b) {
  if (a.priority != b.priority) return a.priority > b.priority;
  if (a.order != b.order) return a.order < b.order;
  if (a.position != b.position) return a.position < b.position;
  if (a.slice != b.slice) return a.slice < b.slice;
  return a.tensor < b.tensor;
}

// std::push_heap keeps the largest in front: "less" is "less urgent".
bool LessUrgent(const QueuedSlice& a, const QueuedSlice& b) { return MoreUrgent(b, a); }

}  // namespace

void SliceQueue::Open(AggregatorIndex owner, uint64_t credit_bytes, Reach reach) {
  Lane& lane = lanes_[owner];
  Forget(lane);
  lane.open = true;
  lane.in_window = reach == Reach::kLink && credit_bytes != kUnbounded;
  if (lane.in_window) window_.Open(lane.way);
  lane.credit_bytes = credit_bytes;
}

void SliceQueue::Close(AggregatorIndex owner) {
  const auto it = lanes_.find(owner);
  if (it == lanes_.end()) return;
  waiting_count_ -= it->second.heap.size();
  Forget(it->second);
  lanes_.erase(it);
}

void SliceQueue::Charge(Lane& lane, uint64_t bytes, int64_t now_ns) {
  lane.in_flight_bytes += bytes;
  if (!lane.in_window) return;
  window_.OnSent(lane.way, bytes, now_ns);
}

void SliceQueue::Reserve(Lane& lane, uint64_t bytes) {
  lane.in_flight_bytes += bytes;
  lane.reserved_bytes += bytes;
  if (lane.in_window) reserved_bytes_ += bytes;
}

void SliceQueue::Unreserve(Lane& lane, uint64_t bytes) {
  lane.in_flight_bytes -= bytes;
  lane.reserved_bytes -= bytes;
  if (lane.in_window) reserved_bytes_ -= bytes;
}

void SliceQueue::Depart(AggregatorIndex owner, uint64_t cost_bytes, uint64_t bytes,
                        int64_t now_ns) {
  const auto it = lanes_.find(owner);
  if (it == lanes_.end()) return;
  TALWEG_CHECK(bytes <= cost_bytes && cost_bytes <= it->second.reserved_bytes);
  Unreserve(it->second, cost_bytes);
  if (bytes > 0) Charge(it->second, bytes, now_ns);
}

// Nothing is in flight any more.
void SliceQueue::Forget(Lane& lane) {
  Unreserve(lane, lane.reserved_bytes);
  lane.in_flight_bytes = 0;
  window_.Close(lane.way);
}

void SliceQueue::Clear() {
  for (auto& [owner, lane] : lanes_) Forget(lane);
  lanes_.clear();
  waiting_count_ = 0;
}

void SliceQueue::Push(const QueuedSlice& slice) {
  std::vector<QueuedSlice>& heap = lanes_[slice.owner].heap;
  heap.push_back(slice);
  std::push_heap(heap.begin(), heap.end(), LessUrgent);
  ++waiting_count_;
}

void SliceQueue::ReturnCredit(AggregatorIndex owner, uint64_t bytes, int64_t now_ns) {
  const auto it = lanes_.find(owner);
  if (it == lanes_.end()) return;
  Lane& lane = it->second;
  bytes = std::min(bytes, lane.in_flight_bytes - lane.reserved_bytes);
  lane.in_flight_bytes -= bytes;
  if (!lane.in_window) return;
  window_.OnReceived(lane.way, bytes, now_ns);
}

uint64_t SliceQueue::InFlightBytes(AggregatorIndex owner) const {
  const auto it = lanes_.find(owner);
  return it == lanes_.end() ? 0 : it->second.in_flight_bytes;
}

uint64_t SliceQueue::CreditBytes(AggregatorIndex owner) const {
  const auto it = lanes_.find(owner);
  return it == lanes_.end() ? 0 : it->second.credit_bytes;
}

size_t SliceQueue::WaitingCount(AggregatorIndex owner) const {
  const auto it = lanes_.find(owner);
  return it == lanes_.end() ? 0 : it->second.heap.size();
}

SliceQueue::Lane* SliceQueue::MostUrgent() {
  Lane* over_link = nullptr;
  Lane* in_memory = nullptr;
  for (auto& [owner, lane] : lanes_) {
    if (!lane.open || lane.heap.empty()) continue;
    const QueuedSlice& head = lane.heap.front();
    const bool has_credit = lane.in_flight_bytes <= KeptBackBytes(lane.credit_bytes) ||
                            (lane.in_flight_bytes <= lane.credit_bytes &&
                             head.cost_bytes <= lane.credit_bytes - lane.in_flight_bytes);
    if (!has_credit) continue;
    Lane*& best = lane.in_window ? over_link : in_memory;
    if (best == nullptr || MoreUrgent(head, best->heap.front())) best = &lane;
  }
  if (over_link != nullptr && !HasRoom(over_link->heap.front())) over_link = nullptr;
  if (over_link == nullptr || in_memory == nullptr) return over_link ? over_link : in_memory;
  return MoreUrgent(in_memory->heap.front(), over_link->heap.front()) ? in_memory : over_link;
}

bool SliceQueue::HasRoom(const QueuedSlice& slice) const {
  const uint64_t taken_bytes = window_.InFlightBytes() + reserved_bytes_;
  return taken_bytes <= window_.way_count() * wire::kKeptCreditBytes ||
         taken_bytes + slice.cost_bytes <= WindowBytes();
}

QueuedSlice SliceQueue::PopFrom(Lane& lane) {
  std::pop_heap(lane.heap.begin(), lane.heap.end(), LessUrgent);
  const QueuedSlice slice = lane.heap.back();
  lane.heap.pop_back();
  --waiting_count_;
  return slice;
}

}  // namespace talweg::schedule
