// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/rings.h"

#include <algorithm>
#include <atomic>
#include <limits>

#include "libs/base/counted.h"
#include "libs/shm/layout/rank_sums.h"

namespace talweg::shm {
namespace {

constexpr int kPushesMax = 256;  // How many pushes one rank may make in one turn.

std::string OpenRoundText(uint32_t tensor, uint64_t round) {
  return "a push of tensor " + std::to_string(tensor) + " while its round " +
         std::to_string(round) + " is open";
}

std::string CheckRound(const TensorOfRank& tensor, const RingEntry& entry) {
  const bool again = (entry.flags & kPushAgain) != 0;
  if (!again && tensor.completed < tensor.pushed) {
    return OpenRoundText(entry.tensor, tensor.pushed);
  }
  const uint64_t round = again ? tensor.pushed : tensor.pushed + 1;
  if (entry.round == round && round > 0) return "";
  return "a push of round " + std::to_string(entry.round) + " of tensor " +
         std::to_string(entry.tensor) + ", whose " + (again ? "last" : "next") + " round is " +
         std::to_string(round);
}

}  // namespace

int Rings::Poll(RankEventSink& sink) {
  if ((sleep_sequence_ & 1) != 0) {
    ++sleep_sequence_;
    for (Connection* connection : connections_->active()) {
      if (connection->is_active()) connection->control->PublishSleepSequence(sleep_sequence_);
    }
  }
  int pushes = 0;
  // By index, because the sink may welcome ranks. Ranks that end stay in the list until Sweep.
  const std::vector<Connection*>& active = connections_->active();
  for (size_t i = 0; i < active.size(); ++i) {
    if (active[i]->is_active()) pushes += Drain(*active[i], kPushesMax, sink);
  }
  if (pushes == 0) CheckEarlyPushes(sink);
  for (size_t i = 0; i < active.size(); ++i) {
    Connection& connection = *active[i];
    if (connection.is_active() && connection.said_goodbye && connection.control->RingEmpty()) {
      connections_->SayGoodbye(connection, sink);
    }
  }
  connections_->Sweep();
  return pushes;
}

bool Rings::PrepareToSleep(RankServer::Until until) {
  if ((sleep_sequence_ & 1) == 0) ++sleep_sequence_;
  const bool until_awaited = until == RankServer::Until::kAwaited && !AnybodyAwaits();
  bool idle = true;
  for (Connection* connection : connections_->active()) {
    if (!connection->is_active()) continue;
    connection->control->PublishSleepSequence(sleep_sequence_, until_awaited);
    // After the store, in the one order of all sequentially consistent operations: a push that is
    // not seen here sees that the agent sleeps, and rings.
    idle = idle && connection->control->RingEmpty();
  }
  // The same holds for a thread that begins to wait: if it is not seen here, it sees which sleep
  // this is, and rings. All ranks are told before any is looked at, since one rank may wait for
  // another's push.
  return idle && !(until_awaited && AnybodyAwaits());  // If not, the next PollRings publishes that.
}

bool Rings::AnybodyAwaits() const {
  const std::vector<Connection*>& active = connections_->active();
  return std::any_of(active.begin(), active.end(), [](const Connection* connection) {
    return connection->is_active() &&
           (!connection->rings_to_await || connection->control->Awaits());
  });
}

int Rings::Drain(Connection& connection, RankEventSink& sink) {
  return Drain(connection, std::numeric_limits<int>::max(), sink);
}

void Rings::DrainAll(RankEventSink& sink) {
  // By index, because the sink may welcome ranks.
  const std::vector<Connection*>& active = connections_->active();
  for (size_t i = 0; i < active.size(); ++i) {
    if (active[i]->is_active()) Drain(*active[i], sink);
  }
}

int Rings::Drain(Connection& connection, int pushes_max, RankEventSink& sink) {
  int pushes = 0;
  RingEntry entry;
  connection.early.reset();
  while (pushes < pushes_max && connection.is_active()) {
    const RankControl::Next next = connection.control->NextEntry(&entry);
    if (next == RankControl::Next::kEmpty) break;
    if (next == RankControl::Next::kGarbage) {
      connections_->Garbage(connection, "the tail of its ring is beyond the ring", sink);
      break;
    }
    if (IsEarly(connection, entry)) {
      connection.early = entry.tensor;
      break;
    }
    connection.control->TakeEntry();
    ++pushes;
    if (std::string error = TakePush(connection, entry, sink);
        !error.empty() && !connection.over()) {
      connections_->Garbage(connection, error, sink);
    }
  }
  if (pushes > 0 && connection.is_active()) {
    connection.control->PublishConsumed();
    connections_->Wake(connection, RankControl::Waiter::kForRoom);
  }
  return pushes;
}

bool Rings::IsEarly(const Connection& connection, const RingEntry& entry) const {
  if (!connection.HasDeclared(entry.tensor) || connections_->job_failure()) return false;
  if (entry.flags != 0 && entry.flags != kPushInParts) return false;
  const TensorOfRank& tensor = connection.tensors[entry.tensor];
  return tensor.data.shared && tensor.completed < tensor.pushed && entry.round == tensor.pushed + 1;
}

bool Rings::AllHavePushed(uint32_t tensor, uint64_t round) const {
  const std::vector<Connection*>& active = connections_->active();
  return std::all_of(active.begin(), active.end(), [&](const Connection* connection) {
    return !connection->is_active() ||
           (connection->HasDeclared(tensor) && connection->tensors[tensor].pushed >= round);
  });
}

void Rings::CheckEarlyPushes(RankEventSink& sink) {
  Connection* made_up = nullptr;
  for (Connection* connection : connections_->active()) {
    if (!connection->is_active() || connection->control->RingEmpty()) {
      continue;
    }
    // Something else has come since, or the open round is about to be complete.
    if (!connection->early) return;
    const uint64_t open_round = connection->tensors[*connection->early].pushed;
    if (AllHavePushed(*connection->early, open_round)) return;
    if (made_up == nullptr) made_up = connection;
  }
  if (made_up == nullptr) return;
  connections_->Garbage(
      *made_up, OpenRoundText(*made_up->early, made_up->tensors[*made_up->early].pushed), sink);
}

std::string Rings::TakePush(Connection& connection, const RingEntry& entry, RankEventSink& sink) {
  if (!connection.HasDeclared(entry.tensor)) {
    return "a push of tensor " + std::to_string(entry.tensor) + ", which it has not declared";
  }
  const auto flags = static_cast<uint32_t>(entry.flags);
  const bool again = flags == (kPushOnDevice | kPushAgain);
  const bool on_device = (flags == kPushOnDevice || again) && config_->takes_devices;
  const bool in_parts = entry.flags == kPushInParts;
  if (!on_device && !in_parts && entry.flags != 0) {
    return "a push with unknown flags " + std::to_string(entry.flags);
  }
  if (connections_->job_failure()) return "";  // The rank has been told, or is about to see it.
  TensorOfRank& tensor = connection.tensors[entry.tensor];
  if (!on_device && config_->takes_devices && tensor.data.contribution.segment == 0) {
    return "a push from host memory of tensor " + std::to_string(entry.tensor) +
           ", which it has declared on a GPU";
  }
  if (const std::string wrong = CheckRound(tensor, entry); !wrong.empty()) return wrong;
  PushedRound push{.local_rank = connection.local_rank,
                   .tensor = TensorIndex(entry.tensor),
                   .round = Round(entry.round),
                   .priority = entry.priority};
  if (in_parts) {
    if (const std::string wrong = TakeLengths(tensor, entry); !wrong.empty()) return wrong;
    push.lengths = lengths_;
    push.signature = entry.device_offset;
  }
  tensor.pushed = entry.round;
  if (!again) ++counters_->pushes;
  // A round that ended before this rank pushed it (aborted for all) is over for this rank too. If
  // rounds go on without late ranks, the agent waits for the push.
  if (tensor.completed >= entry.round && !tensor.given.may_come_late) return "";
  if (on_device) {
    sink.OnRankPushOnDevice(
        connection.id, connection.local_rank, TensorIndex(entry.tensor), Round(entry.round),
        entry.priority,
        {static_cast<uint32_t>(entry.flags >> kPushBufferShift), entry.device_offset, again});
    return "";
  }
  sink.OnRankPush(connection.id, push);
  return "";
}

std::string Rings::TakeLengths(const TensorOfRank& tensor, const RingEntry& entry) {
  const BufferShape& shape = tensor.given.shape;
  const Parts& parts = tensor.given.parts;
  lengths_.clear();
  if (!shape.has_lengths() || tensor.contribution == nullptr) return "";
  const uint64_t offset = tensor.data.shared ? RankSumShape::Of(shape, config_->local_rank_count,
                                                                tensor.data.shared->in_place)
                                                   .table_offset(entry.round)
                                             : shape.table_offset();
  // The rank can write there at any time, so each word is read once.
  auto* table = reinterpret_cast<uint32_t*>(const_cast<std::byte*>(tensor.contribution + offset));
  lengths_.resize(shape.part_count);
  bool is_full = true;
  for (uint32_t i = 0; i < parts.count; ++i) {
    const uint32_t length =
        std::atomic_ref<uint32_t>(table[parts[i]]).load(std::memory_order_relaxed);
    if (!shape.IsLength(length)) {
      return "a push of tensor " + std::to_string(entry.tensor) + " with " +
             Counted(length, "byte") + " as its part " + std::to_string(parts[i]) +
             ", of which there are at most " + std::to_string(shape.part_bytes) +
             " in elements of " + std::to_string(shape.element_bytes);
    }
    is_full = is_full && length == shape.part_bytes;
    lengths_[parts[i]] = length;
  }
  if (is_full) lengths_.clear();
  return "";
}

bool Rings::EverybodyHasPushed(uint32_t tensor, uint64_t round) const {
  size_t count = 0;
  for (const auto& [id, connection] : connections_->all()) {
    if (connection->released || !connection->HasDeclared(tensor)) continue;
    if (connection->tensors[tensor].pushed >= round) ++count;
  }
  return count >= config_->local_rank_count;
}

}  // namespace talweg::shm
