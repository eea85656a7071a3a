// SPDX-License-Identifier: Apache-2.0
#include "libs/schedule/slice_queue.h"

#include <algorithm>

namespace talweg::schedule {
namespace {

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

void SliceQueue::Open(AggregatorIndex owner, uint64_t credit_bytes) {
  Lane& lane = lanes_[owner];
  lane.open = true;
  lane.credit_bytes = credit_bytes;
  lane.in_flight_bytes = 0;
  lane.window = SendWindow(credit_bytes);
}

void SliceQueue::Close(AggregatorIndex owner) {
  const auto it = lanes_.find(owner);
  if (it == lanes_.end()) return;
  waiting_count_ -= it->second.heap.size();
  lanes_.erase(it);
}

void SliceQueue::Clear() {
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
  it->second.window.OnReceived(bytes, now_ns);
  it->second.in_flight_bytes -= std::min(bytes, it->second.in_flight_bytes);
}

uint64_t SliceQueue::InFlightBytes(AggregatorIndex owner) const {
  const auto it = lanes_.find(owner);
  return it == lanes_.end() ? 0 : it->second.in_flight_bytes;
}

uint64_t SliceQueue::CreditBytes(AggregatorIndex owner) const {
  const auto it = lanes_.find(owner);
  return it == lanes_.end() ? 0 : it->second.credit_bytes;
}

uint64_t SliceQueue::WindowBytes(AggregatorIndex owner) const {
  const auto it = lanes_.find(owner);
  return it == lanes_.end() ? 0 : it->second.window.bytes();
}

size_t SliceQueue::WaitingCount(AggregatorIndex owner) const {
  const auto it = lanes_.find(owner);
  return it == lanes_.end() ? 0 : it->second.heap.size();
}

SliceQueue::Lane* SliceQueue::MostUrgent() {
  Lane* best = nullptr;
  for (auto& [owner, lane] : lanes_) {
    if (!lane.open || lane.heap.empty()) continue;
    const QueuedSlice& head = lane.heap.front();
    const bool has_credit =
        TALWEG_MUTATION(large_slice_never_leaves, lane.in_flight_bytes == 0, false) ||
        (lane.in_flight_bytes <= lane.window.bytes() &&
         head.cost_bytes <= lane.window.bytes() - lane.in_flight_bytes);
    if (!has_credit) continue;
    if (best == nullptr || MoreUrgent(head, best->heap.front())) best = &lane;
  }
  return best;
}

QueuedSlice SliceQueue::PopFrom(Lane& lane) {
  std::pop_heap(lane.heap.begin(), lane.heap.end(), LessUrgent);
  const QueuedSlice slice = lane.heap.back();
  lane.heap.pop_back();
  --waiting_count_;
  return slice;
}

}  // namespace talweg::schedule
