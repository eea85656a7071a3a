// SPDX-License-Identifier: Apache-2.0
#include "clients/jax/rounds.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "clients/jax/comparison.h"

namespace talweg::jax {
namespace {

constexpr int64_t kNoLimit = -1;
// So many numbers come before the ranks, and before the lengths that are given and got.
constexpr size_t kFixedNumbers = 12;

uint64_t Sum(const std::vector<uint64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), uint64_t{0});
}

bool IsSameDeclaration(const Call& one, const Call& other) {
  return one.dtype == other.dtype && one.op == other.op && one.gives == other.gives &&
         one.gets == other.gets && one.root_rank == other.root_rank &&
         one.element_count == other.element_count && one.ranks == other.ranks;
}

// The place of a name is its number in talweg.h.
constexpr std::array<const char*, 14> kDTypeNames = {
    "?", "f32", "f64", "f16", "bf16", "i8", "u8", "i32", "i64", "i16", "u16", "u32", "u64", "bool"};
constexpr std::array<const char*, 10> kOpNames = {
    "?", "sum", "average", "min", "max", "product", "copy", "bit_and", "bit_or", "bit_xor"};

template <size_t kCount>
std::string NameIn(const std::array<const char*, kCount>& names, int number) {
  const bool is_known = number > 0 && static_cast<size_t>(number) < kCount;
  return is_known ? names[static_cast<size_t>(number)] : std::to_string(number);
}

// Returns the name of the call's collective, with its root if it has one.
std::string CollectiveText(const Call& call) {
  const std::string root = " with root " + std::to_string(call.root_rank);
  switch (call.gives) {
    case TALWEG_SHARE_ROOT:
      return (call.gets == TALWEG_SHARE_WHOLE ? "broadcast" : "scatter") + root;
    case TALWEG_SHARE_OWN: return call.gets == TALWEG_SHARE_WHOLE ? "all_gather" : "gather" + root;
    case TALWEG_SHARE_ROW: return "all_to_all";
    default: break;
  }
  const std::string op = " " + NameIn(kOpNames, call.op);
  if (call.gets == TALWEG_SHARE_WHOLE) return "all_reduce" + op;
  return call.gets == TALWEG_SHARE_ROOT ? "reduce" + op + root : "reduce_scatter" + op;
}

// Describes a call in talweg_last_error()'s words, for errors that this library finds itself.
std::string Described(const Call& call) {
  return NameIn(kDTypeNames, call.dtype) + "[" + std::to_string(call.element_count) + "] " +
         CollectiveText(call) + " of " +
         (call.ranks.empty() ? "all" : std::to_string(call.ranks.size())) + " ranks";
}

// What a rank signs a round with that uses the name for another call than the ranks have agreed on.
// A signature of a shape is never equal to one of a collective (SignatureOf in
// libs/base/collective.h).
uint64_t SignatureInsteadOf(const Call& agreed, const Call& call) {
  const bool is_like = agreed.dtype == call.dtype && agreed.op == call.op &&
                       agreed.gives == call.gives && agreed.gets == call.gets &&
                       agreed.root_rank == call.root_rank;
  if (is_like && call.signature != 0 && call.signature != agreed.signature) {
    return call.signature;
  }
  constexpr uint64_t kElementsMax = (uint64_t{1} << 40) - 1;
  return static_cast<uint64_t>(call.dtype) << 56 | static_cast<uint64_t>(call.op) << 48 |
         static_cast<uint64_t>(call.gives) << 44 | static_cast<uint64_t>(call.gets) << 40 |
         (call.element_count & kElementsMax);
}

Outcome Scale(const Call& call, double factor, const void* in, void* out, uint64_t bytes) {
  if (bytes == 0) {
    return {};
  }
  if (factor == 1) {  // talweg_scale() takes no bools.
    std::memmove(out, in, bytes);
    return {};
  }
  return Outcome::Of(talweg_scale(call.dtype, factor, in, out,
                                  bytes / std::max<size_t>(talweg_dtype_bytes(call.dtype), 1)));
}

}  // namespace

uint64_t Call::GivenBytes() const { return Sum(given); }
uint64_t Call::GotBytes() const { return Sum(got); }

std::optional<Call> Call::From(std::string_view name, std::span<const int64_t> numbers,
                               std::span<const double> factors) {
  if (numbers.size() < kFixedNumbers || factors.size() != 2) {
    return std::nullopt;
  }
  const auto lists = numbers.subspan(kFixedNumbers);
  const auto rank_count = static_cast<size_t>(numbers[7]);
  const auto given_count = static_cast<size_t>(numbers[8]);
  const auto got_count = static_cast<size_t>(numbers[9]);
  if (rank_count > lists.size() || given_count > lists.size() || got_count > lists.size() ||
      rank_count + given_count + got_count != lists.size()) {
    return std::nullopt;
  }
  Call call;
  call.name = name;
  call.dtype = static_cast<talweg_dtype>(numbers[0]);
  call.op = static_cast<talweg_op>(numbers[1]);
  call.gives = static_cast<talweg_share>(numbers[2]);
  call.gets = static_cast<talweg_share>(numbers[3]);
  call.root_rank = static_cast<uint32_t>(numbers[4]);
  call.priority = static_cast<int32_t>(numbers[5]);
  call.element_count = static_cast<uint64_t>(numbers[6]);
  call.signature = static_cast<uint64_t>(numbers[10]);
  call.compares = numbers[11] != 0;
  const auto ranks = lists.first(rank_count);
  const auto given = lists.subspan(rank_count, given_count);
  const auto got = lists.last(got_count);
  call.ranks.assign(ranks.begin(), ranks.end());
  call.given.assign(given.begin(), given.end());
  call.got.assign(got.begin(), got.end());
  call.prescale = factors[0];
  call.postscale = factors[1];
  return call;
}

Outcome Outcome::Of(talweg_status status) {
  return {.status = status, .text = status == TALWEG_OK ? "" : talweg_last_error()};
}

Outcome Outcome::Untold(talweg_status status, const Call& call) {
  return {
      .status = status,
      .text = "tensor '" + call.name + "': nothing tells when its round is over (" +
              talweg_status_name(status) +
              "): raise the limit of open files and threads, or do not fork after talweg.init()"};
}

void Rounds::Use(talweg_client* client, bool alone) {
  const std::scoped_lock lock(mutex_);
  client_ = client;
  loop_ = client == nullptr ? nullptr : new c::CompletionLoop(client);
  alone_ = alone;
  declared_.clear();
  disagreements_.clear();
}

uint64_t Rounds::Start(Call call, const void* data) {
  OpenRound round;
  round.call = std::move(call);
  round.rounds = this;
  bool alone = false;
  {
    const std::scoped_lock lock(mutex_);
    round.client = client_;
    round.loop = loop_;
    alone = alone_;
  }
  if (round.client != nullptr) {
    round.start = Declare(round);
    if (round.start.ok() && round.misuse.ok()) {
      round.start = Push(round, data);
    }
    if (round.call.compares) {
      const auto* const bytes = static_cast<const unsigned char*>(data);
      round.given.assign(bytes, bytes + round.call.GivenBytes());
    }
  } else if (alone) {
    round.given.resize(round.call.GivenBytes());
    round.start =
        Scale(round.call, round.call.prescale, data, round.given.data(), round.given.size());
  } else {
    round.start = {.status = TALWEG_CLOSED,
                   .text = "'" + round.call.name +
                           "': Talweg is not initialized in this process: call "
                           "talweg.jax.init() first"};
  }
  const std::scoped_lock lock(mutex_);
  const uint64_t ticket = ++last_ticket_;
  if (round.client != nullptr && round.start.ok()) {
    declared_[round.call.name].open_ticket = ticket;
  }
  open_.emplace(ticket, std::move(round));
  return ticket;
}

std::optional<OpenRound> Rounds::Take(uint64_t ticket) {
  const std::scoped_lock lock(mutex_);
  const auto found = open_.find(ticket);
  if (found == open_.end()) {
    return std::nullopt;
  }
  OpenRound round = std::move(found->second);
  open_.erase(found);
  return round;
}

Outcome Rounds::Declare(OpenRound& round) {
  const Call& call = round.call;
  uint64_t left_open = 0;
  bool is_new = true;
  std::optional<Call> agreed;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = declared_.find(call.name);
    if (found != declared_.end()) {
      if (!IsSameDeclaration(found->second.call, call)) {
        round.misuse = {.status = TALWEG_INVALID_ARGUMENT,
                        .text = "tensor '" + call.name + "' was declared as " +
                                Described(found->second.call) + " and is now used as " +
                                Described(call) + ": give the second use a name of its own"};
        agreed = found->second.call;
      }
      round.tensor = found->second.tensor;
      left_open = found->second.open_ticket;
      is_new = false;
    }
  }
  if (!is_new) {
    Forsake(left_open);
    return agreed ? TellMisuse(*agreed, round) : Outcome();
  }
  const talweg_collective collective{.struct_bytes = sizeof(collective),
                                     .dtype = call.dtype,
                                     .op = call.op,
                                     .gives = call.gives,
                                     .gets = call.gets,
                                     .root_rank = call.root_rank,
                                     .rank_count = static_cast<uint32_t>(call.ranks.size()),
                                     .ranks = call.ranks.empty() ? nullptr : call.ranks.data(),
                                     .element_count = call.element_count};
  const Outcome outcome =
      Outcome::Of(talweg_declare_collective(round.client, NameNow(call.name).c_str(), &collective,
                                            call.priority, kNoLimit, &round.tensor));
  const std::scoped_lock lock(mutex_);
  if (outcome.ok()) {
    declared_[call.name] = {.call = call, .tensor = round.tensor};
  } else if (outcome.status == TALWEG_MISMATCH) {
    ++disagreements_[call.name];
  }
  return outcome;
}

Outcome Rounds::TellMisuse(const Call& agreed, OpenRound& round) {
  const std::vector<uint64_t> nothing(agreed.given.size());
  const unsigned char none = 0;
  return Outcome::Of(talweg_push_parts(
      round.client, round.tensor, nothing.empty() ? nullptr : &none,
      nothing.empty() ? nullptr : nothing.data(), SignatureInsteadOf(agreed, round.call),
      agreed.priority, kNoLimit, &round.round));
}

std::string Rounds::NameNow(const std::string& name) {
  const std::scoped_lock lock(mutex_);
  const auto found = disagreements_.find(name);
  if (found == disagreements_.end()) {
    return name;
  }
  return name + " (again " + std::to_string(found->second) + ")";
}

void Rounds::Free(const std::string& name, talweg_tensor tensor) {
  const std::scoped_lock lock(mutex_);
  const auto found = declared_.find(name);
  if (found == declared_.end() || found->second.tensor != tensor) {
    return;
  }
  declared_.erase(found);
  ++disagreements_[name];
}

void Rounds::Forsake(uint64_t ticket) {
  talweg_client* client = nullptr;
  talweg_tensor tensor = 0;
  talweg_round number = 0;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = open_.find(ticket);
    if (found == open_.end()) {
      return;
    }
    OpenRound& round = found->second;
    client = round.client;
    tensor = round.tensor;
    number = round.round;
    round.start = {.status = TALWEG_BUSY,
                   .text = "tensor '" + round.call.name +
                           "' was pushed again before its result was collected: two threads use "
                           "the name at once; give each a name of its own"};
  }
  // The program has failed between start and collection. The other ranks need this one's part, so
  // this waits.
  talweg_wait(client, tensor, number, nullptr, kNoLimit);
}

Outcome Rounds::Push(OpenRound& round, const void* data) {
  const Call& call = round.call;
  const uint64_t full = call.element_count * talweg_dtype_bytes(call.dtype);
  std::vector<unsigned char> scaled;
  if (call.prescale != 1 && call.GivenBytes() > 0) {
    // A single part is written where it is pushed from.
    void* target =
        call.given.size() == 1 ? talweg_contribution(round.client, round.tensor) : nullptr;
    const bool in_place = target != nullptr;
    if (!in_place) {
      scaled.resize(call.GivenBytes());
      target = scaled.data();
    }
    const Outcome outcome = Scale(call, call.prescale, data, target, call.GivenBytes());
    if (!outcome.ok()) {
      return outcome;
    }
    data = in_place ? nullptr : target;
  }
  const bool all_full = std::all_of(call.given.begin(), call.given.end(),
                                    [full](uint64_t length) { return length == full; });
  return Outcome::Of(talweg_push_parts(round.client, round.tensor,
                                       call.given.empty() ? nullptr : data,
                                       all_full ? nullptr : call.given.data(), call.signature,
                                       call.priority, kNoLimit, &round.round));
}

bool OpenRound::IsOver() const {
  return !start.ok() || client == nullptr || talweg_poll(client, tensor, round) != TALWEG_PENDING;
}

Outcome OpenRound::Lengths() {
  if (call.got.size() < 2) {  // A single part has its declared length, or the round is a mismatch.
    return {};
  }
  std::vector<uint64_t> come(call.got.size());
  Outcome outcome = Told(talweg_wait_lengths(client, tensor, round, come.data(), kNoLimit));
  if (!outcome.ok() || come == call.got) {
    return outcome;
  }
  const auto differing = std::mismatch(come.begin(), come.end(), call.got.begin());
  outcome = {.status = TALWEG_MISMATCH,
             .text = "tensor '" + call.name + "': the group's rank " +
                     std::to_string(differing.first - come.begin()) + " gives " +
                     std::to_string(*differing.first) + " bytes, where rank " +
                     std::to_string(talweg_rank(client)) + " expects " +
                     std::to_string(*differing.second) +
                     ": give all ranks the same shape, or say the rows of each"};
  talweg_wait(client, tensor, round, nullptr, kNoLimit);
  return outcome;
}

Outcome OpenRound::Told(talweg_status status) {
  Outcome outcome = Outcome::Of(status);
  if (status == TALWEG_MISMATCH) {
    rounds->Free(call.name, tensor);
    outcome.text += "; this rank calls " + Described(call) +
                    ": all ranks must use a name for the same in the same call";
  }
  return outcome;
}

Outcome OpenRound::Compare(void* out) {
  const uint64_t bytes = call.GotBytes();
  const talweg_status status = talweg_wait_parts(client, tensor, round, out, bytes, kNoLimit);
  if (status != TALWEG_OK) {
    return Told(status);
  }
  const std::string text =
      Differences(given, {static_cast<const unsigned char*>(out), static_cast<size_t>(bytes)});
  if (text.empty()) {
    return {};
  }
  return {.status = TALWEG_MISMATCH, .text = text};
}

Outcome OpenRound::Collect(void* out) {
  if (!start.ok()) {
    return start;
  }
  if (!misuse.ok()) {
    const Outcome told = Told(talweg_wait(client, tensor, round, nullptr, kNoLimit));
    return told.ok() ? misuse : told;
  }
  const uint64_t bytes = call.GotBytes();
  Outcome outcome;
  if (client == nullptr) {
    std::copy_n(given.begin(), std::min<uint64_t>(bytes, given.size()),
                static_cast<unsigned char*>(out));
  } else if (call.compares) {
    outcome = Compare(out);
  } else {
    outcome = Lengths();
    if (outcome.ok()) {
      outcome = Told(talweg_wait_parts(client, tensor, round, out, bytes, kNoLimit));
    }
  }
  if (outcome.ok() && call.postscale != 1) {
    outcome = Scale(call, call.postscale, out, out, bytes);
  }
  return outcome;
}

}  // namespace talweg::jax
