// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/round_parts.h"

#include "libs/shm/client/stream_copy.h"

namespace talweg::shm {

RankStatus RoundParts::SayLengths(const RankTensor& tensor, const CompleteRound& complete,
                                  uint64_t* lengths, uint64_t* bytes, ErrorText& error) const {
  *bytes = 0;
  for (uint32_t i = 0; i < tensor.gets.count; ++i) {
    uint64_t length = 0;
    if (!complete.lengths.Get(tensor.gets[i], &length)) return FailLength(tensor, length, error);
    if (lengths != nullptr) lengths[i] = length;
    *bytes += length;
  }
  return RankStatus::kOk;
}

RankStatus RoundParts::CheckRoom(const RankTensor& tensor, const CompleteRound& complete,
                                 const Taking& taking, bool has_own_place, uint64_t bytes,
                                 bool* stays_open, ErrorText& error) const {
  if (bytes > taking.out_bytes && !has_own_place) {
    *stays_open = true;
    return FailRoom(tensor, complete.round, bytes, taking.out_bytes, error);
  }
  for (uint32_t i = 0; taking.places != nullptr && i < tensor.gets.count; ++i) {
    uint64_t length = 0;
    if (!complete.lengths.Get(tensor.gets[i], &length)) return FailLength(tensor, length, error);
    if (length <= taking.rooms[i]) continue;
    *stays_open = true;
    return FailRoom(tensor, complete.round, length, taking.rooms[i], error);
  }
  return RankStatus::kOk;
}

RankStatus RoundParts::Copy(const RankTensor& tensor, const CompleteRound& complete,
                            const Target& target, ErrorText& error) const {
  const Collective& collective = tensor.collective;
  uint64_t copied = 0;
  for (uint32_t i = 0; i < tensor.gets.count; ++i) {
    const uint32_t part = tensor.gets[i];
    uint64_t length = 0;
    // The length may have been changed since the lengths were added up.
    if (!complete.lengths.Get(part, &length) || length > target.bytes - copied ||
        (target.places != nullptr && length > target.rooms[i])) {
      return FailLength(tensor, length, error);
    }
    if (length == 0) continue;
    std::byte* const to =
        target.places == nullptr ? target.out + copied : static_cast<std::byte*>(target.places[i]);
    copied += length;
    const std::byte* from = tensor.result[complete.round & 1] + tensor.buffer.part_offset(part);
    if (tensor.ranks_sum) {
      const uint32_t giver = GiverOf(collective.gives, part, tensor.rank_count, tensor.root);
      from = giver == tensor.rank && complete.own_part != nullptr
                 ? complete.own_part
                 : complete.arenas[giver] + tensor.shape.buffer_offset(complete.round) +
                       tensor.PartOffset(part, giver);
    }
    if (from != to) shm::Copy(to, from, length, streaming_.Streams(length));
  }
  return RankStatus::kOk;
}

RankStatus RoundParts::FailLength(const RankTensor& tensor, uint64_t length,
                                  ErrorText& error) const {
  return error.Fail(RankStatus::kProtocol,
                    "tensor '%s': a part of its round is said to have %llu byte%s, by the agent at "
                    "'%s' or another rank, which it cannot have; please report it",
                    NameOf(tensor), static_cast<unsigned long long>(length), PluralEnd(length),
                    link_.path());
}

RankStatus RoundParts::FailRoom(const RankTensor& tensor, uint64_t round, uint64_t bytes,
                                uint64_t room, ErrorText& error) {
  return error.Fail(RankStatus::kInvalidArgument,
                    "tensor '%s': round %llu has %llu byte%s for this rank, and there is room for "
                    "%llu; the round stays open, wait again with more",
                    NameOf(tensor), static_cast<unsigned long long>(round),
                    static_cast<unsigned long long>(bytes), PluralEnd(bytes),
                    static_cast<unsigned long long>(room));
}

}  // namespace talweg::shm
