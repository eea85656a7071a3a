// SPDX-License-Identifier: Apache-2.0
#include "clients/c/talweg_exchange.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "clients/c/abi.h"
#include "libs/reduce/reduce.h"

namespace {

using talweg::DType;
using talweg::Op;
using talweg::c::FromC;
using talweg::c::Invalid;
using talweg::c::LastError;
using talweg::c::NumberIn;
using talweg::c::ToC;
using talweg::shm::RankStatus;

constexpr uint32_t kRanksMax = talweg::shm::kSummingRanksMax;

bool Combines(const talweg_exchange_call& call) { return NumberIn(call.op) != TALWEG_BROADCAST; }

DType DTypeOf(const talweg_exchange_call& call) {
  const uint32_t number = NumberIn(call.dtype);
  return number > 0xff ? DType::kUnspecified : static_cast<DType>(number);
}

Op OpOf(const talweg_exchange_call& call) {
  const uint32_t number = NumberIn(call.op);
  return number > 0xff ? Op::kUnspecified : static_cast<Op>(number);
}

// Returns what is wrong with the call, or null.
const char* Problem(talweg_client* client, talweg_tensor tensor, const talweg_exchange_call& call) {
  if (call.word_bytes > TALWEG_EXCHANGE_BYTES_MAX ||
      call.data_bytes > TALWEG_EXCHANGE_BYTES_MAX - call.word_bytes) {
    return "talweg_exchange: more than TALWEG_EXCHANGE_BYTES_MAX in one call; push the data by "
           "itself";
  }
  if ((call.word_bytes > 0 && call.words == nullptr) || call.all == nullptr ||
      (call.bytes > 0 && call.out == nullptr)) {
    return "talweg_exchange: `words`, `all` or `out` is NULL";
  }
  if (call.bytes > call.data_bytes || call.offset > call.data_bytes - call.bytes) {
    return "talweg_exchange: `offset` and `bytes` lie outside of the data";
  }
  const uint32_t ranks = FromC(client)->PartsGot(tensor);
  if (FromC(client)->PartsGiven(tensor) != 1 || ranks == 0) {
    return "talweg_exchange: the tensor is not one of an all_gather";
  }
  if (!Combines(call)) return nullptr;
  if (FromC(client)->PartsHeld(tensor) != 1 || ranks > kRanksMax) {
    return "talweg_exchange: only the ranks of one node may combine what they have given";
  }
  const uint32_t element_bytes = static_cast<uint32_t>(DTypeSize(DTypeOf(call)));
  if (!talweg::reduce::IsReduction(DTypeOf(call), OpOf(call)) || call.bytes % element_bytes != 0) {
    return "talweg_exchange: there is no such reduction, or it is not of whole elements";
  }
  return nullptr;
}

// Returns whether the words of all `ranks` are equal. Equal words mean equally long data, so the
// next rank's words can be found. No words are a prefix of others.
bool AreAlike(const talweg_exchange_call& call, uint32_t ranks) {
  const uint64_t stride = call.word_bytes + call.data_bytes;
  if (stride > call.all_bytes / ranks) return false;
  for (uint32_t i = 0; i < ranks && call.word_bytes > 0; ++i) {
    const auto* const words = static_cast<const std::byte*>(call.all) + i * stride;
    if (std::memcmp(words, call.words, call.word_bytes) != 0) return false;
  }
  return true;
}

// Copies or combines the data of all `ranks` into `out`, after their words were found equal.
void Finish(const talweg_exchange_call& call, uint32_t ranks) {
  const auto* const first = static_cast<const std::byte*>(call.all) + call.word_bytes + call.offset;
  const uint64_t stride = call.word_bytes + call.data_bytes;
  if (call.bytes == 0) return;
  if (!Combines(call)) {
    for (uint32_t i = 0; i < ranks; ++i) {
      std::memcpy(static_cast<std::byte*>(call.out) + i * call.bytes, first + i * stride,
                  call.bytes);
    }
    return;
  }
  const std::byte* inputs[kRanksMax];
  for (uint32_t i = 0; i < ranks; ++i) inputs[i] = first + i * stride;
  const auto spec = talweg::reduce::OnlyHop(DTypeOf(call), OpOf(call), ranks);
  talweg::reduce::Reduce(spec, {inputs, ranks}, static_cast<std::byte*>(call.out),
                         call.bytes / DTypeSize(DTypeOf(call)));
}

}  // namespace

uint32_t talweg_parts_held(talweg_client* client, talweg_tensor tensor) {
  return client == nullptr ? 0 : FromC(client)->PartsHeld(tensor);
}

talweg_status talweg_push_places(talweg_client* client, talweg_tensor tensor,
                                 const void* const* places, const uint64_t* lengths, void* own,
                                 uint64_t signature, int32_t priority, int64_t timeout_ns,
                                 talweg_round* round) {
  if (client == nullptr) return Invalid("talweg_push_places: `client` is NULL");
  uint64_t pushed = 0;
  const RankStatus status = FromC(client)->Push(
      tensor, nullptr, {.lengths = lengths, .signature = signature, .places = places, .own = own},
      priority == TALWEG_DECLARED_PRIORITY, priority, timeout_ns, &pushed, LastError());
  if (round != nullptr) *round = pushed;
  return ToC(status);
}

talweg_status talweg_wait_places(talweg_client* client, talweg_tensor tensor, talweg_round round,
                                 void* const* places, const uint64_t* rooms, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_wait_places: `client` is NULL");
  const uint32_t parts = FromC(client)->PartsGot(tensor);
  if (parts > 0 && (places == nullptr || rooms == nullptr)) {
    return Invalid("talweg_wait_places: `places` or `rooms` is NULL, and this rank gets something");
  }
  // One part lies as talweg_wait_parts copies it. Reductions have only one part.
  if (parts <= 1) {
    void* const out = parts == 0 ? nullptr : places[0];
    return talweg_wait_parts(client, tensor, round, out, out == nullptr ? 0 : rooms[0], timeout_ns);
  }
  return ToC(FromC(client)->Wait(tensor, round, {.places = places, .rooms = rooms}, timeout_ns,
                                 LastError()));
}

talweg_status talweg_exchange(talweg_client* client, talweg_tensor tensor,
                              const talweg_exchange_call* call, int64_t timeout_ns,
                              talweg_round* round, int* alike) {
  if (client == nullptr) return Invalid("talweg_exchange: `client` is NULL");
  if (call == nullptr || call->struct_bytes < sizeof(talweg_exchange_call) || round == nullptr ||
      alike == nullptr) {
    return Invalid(
        "talweg_exchange: `call`, `round` or `alike` is NULL, or struct_bytes is not set");
  }
  *round = 0;
  *alike = 0;
  if (const char* problem = Problem(client, tensor, *call)) return Invalid(problem);
  if (call->data_bytes > 0 && call->data == nullptr) {
    return Invalid("talweg_exchange: `data` is NULL");
  }
  std::byte given[TALWEG_EXCHANGE_BYTES_MAX];
  if (call->word_bytes > 0) std::memcpy(given, call->words, call->word_bytes);
  if (call->data_bytes > 0) std::memcpy(given + call->word_bytes, call->data, call->data_bytes);
  const uint64_t length = call->word_bytes + call->data_bytes;
  const talweg_status pushed = talweg_push_parts(client, tensor, given, &length, 0,
                                                 TALWEG_DECLARED_PRIORITY, timeout_ns, round);
  if (pushed != TALWEG_OK) return pushed;
  const talweg_status status =
      talweg_wait_parts(client, tensor, *round, call->all, call->all_bytes, timeout_ns);
  if (status == TALWEG_OK && AreAlike(*call, FromC(client)->PartsGot(tensor))) {
    Finish(*call, FromC(client)->PartsGot(tensor));
    *alike = 1;
  }
  return status;
}

talweg_status talweg_finish_exchange(talweg_client* client, talweg_tensor tensor,
                                     const talweg_exchange_call* call, int* alike) {
  if (client == nullptr) return Invalid("talweg_finish_exchange: `client` is NULL");
  if (call == nullptr || call->struct_bytes < sizeof(talweg_exchange_call) || alike == nullptr) {
    return Invalid("talweg_finish_exchange: `call` or `alike` is NULL, or struct_bytes is not set");
  }
  *alike = 0;
  if (const char* problem = Problem(client, tensor, *call)) return Invalid(problem);
  const uint32_t ranks = FromC(client)->PartsGot(tensor);
  if (!AreAlike(*call, ranks)) return TALWEG_OK;
  Finish(*call, ranks);
  *alike = 1;
  return TALWEG_OK;
}

uint64_t talweg_left_out_count(talweg_client* client, talweg_tensor tensor) {
  return client == nullptr ? 0 : FromC(client)->LeftOutCount(tensor);
}
