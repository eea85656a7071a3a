// SPDX-License-Identifier: Apache-2.0
#include "services/agent/byte_work.h"

#include <cstring>
#include <utility>
#include <variant>
#include <vector>

#include "libs/base/check.h"

namespace talweg::agent {

void ByteWork::Do(const pipeline::CopyInline& effect) {
  TALWEG_CHECK(frame_ != nullptr);
  const auto& results = std::get<std::vector<wire::Result>>(frame_->entries);
  const std::span<const std::byte> bytes = results[effect.entry].bytes;
  if (parts_.memory->OnNic(effect.target)) {
    // If that fails, the GPU is lost, and this member fails.
    devices_->StoreResult(effect.target, bytes).IgnoreError();
    return;
  }
  const std::span<std::byte> target = parts_.memory->Writable(effect.target);
  TALWEG_CHECK(bytes.size() == target.size());
  std::memcpy(target.data(), bytes.data(), bytes.size());
}

void ByteWork::Do(const pipeline::CopyOwn& effect) {
  pipeline::SliceBytes target = effect.source;
  target.memory = pipeline::Memory::kResult;
  const std::span<const std::byte> bytes = parts_.memory->Readable(effect.source);
  const std::span<std::byte> to = parts_.memory->Writable(target);
  if (to.data() != bytes.data()) std::memcpy(to.data(), bytes.data(), bytes.size());
}

void ByteWork::Do(pipeline::ReduceSlice& effect) {
  if (devices_ != nullptr && devices_->TakesPart(effect.target.tensor, effect.target.round)) {
    devices_->Reduce(effect);
  } else {
    queued_.emplace_back(std::move(effect));
  }
}

int ByteWork::WorkSome(uint64_t bytes_max) {
  uint64_t bytes = 0;
  int count = 0;
  while (!queued_.empty() && bytes < bytes_max) {
    const auto next = std::move(queued_.front());
    queued_.pop_front();
    ++count;
    bytes += std::visit([this](const auto& work) { return Work(work); }, next);
  }
  return count;
}

uint64_t ByteWork::Work(const pipeline::ReduceSlice& reduce) {
  if (!parts_.runner->core().Wants(reduce.ticket)) return 0;
  const pipeline::SliceBytes& target = reduce.target;
  if (parts_.memory->Shared(target.tensor)) {
    // The ranks sum. Each does so where it wants the result.
    OnReduced(reduce.ticket, 0);
    return 0;
  }
  if (parts_.memory->spec(target.tensor).collective.encodes() && !reduce.is_final) {
    Encode(reduce);
  } else {
    Combine(reduce, parts_.memory->Writable(target));
    OnReduced(reduce.ticket, target.length_bytes * reduce.inputs.size());
  }
  return target.length_bytes;
}

void ByteWork::Combine(const pipeline::ReduceSlice& reduce, std::span<std::byte> output) {
  const pipeline::SliceBytes& target = reduce.target;
  std::vector<const std::byte*> inputs;
  for (const LocalRank rank : reduce.inputs) {
    inputs.push_back(parts_.memory->Contribution(target, rank).data());
    TALWEG_CHECK(inputs.back() != nullptr);  // It pushed, so it has a buffer.
  }
  const bool traced = parts_.timeline->Wants(target.round);
  const int64_t begin_ns = traced ? parts_.clock->NowNs() : 0;
  if (inputs.empty()) {
    std::memset(output.data(), 0, output.size());
  } else {
    parts_.combiner->Combine(parts_.memory->spec(target.tensor), reduce.is_final, reduce.rank_count,
                             inputs, output);
  }
  if (traced) {
    parts_.timeline->OnReduced(target.tensor, target.round, begin_ns, parts_.clock->NowNs());
  }
}

void ByteWork::Encode(const pipeline::ReduceSlice& reduce) {
  const Collective& collective = parts_.memory->spec(reduce.target.tensor).collective;
  pipeline::SliceBytes target = reduce.target;
  if (scratch_.size() < target.length_bytes) scratch_.resize(target.length_bytes);
  const std::span<std::byte> plain = std::span(scratch_).first(target.length_bytes);
  Combine(reduce, plain);
  target.length_bytes = static_cast<uint32_t>(collective.travel_bytes_max(plain.size()));
  const uint64_t seed = encoding::SeedOf(target.round, target.offset_bytes, parts_.node.value());
  const auto travel_bytes = static_cast<uint32_t>(
      parts_.codec->Encode(collective.encoding, seed, plain, parts_.memory->Writable(target)));
  bytes_reduced_ += plain.size() * reduce.inputs.size();
  parts_.runner->Deliver([this, ticket = reduce.ticket, travel_bytes](pipeline::Effects& out) {
    parts_.runner->core().OnReduced(ticket, travel_bytes, parts_.clock->NowNs(), out);
  });
}

uint64_t ByteWork::Work(const pipeline::DecodeSlice& decode) {
  if (!parts_.runner->core().Wants(decode.ticket)) return 0;
  const bool is_sound =
      parts_.codec->Decode(decode.encoding, parts_.memory->Readable(decode.source),
                           parts_.memory->Writable(decode.target));
  parts_.runner->Deliver([this, ticket = decode.ticket, is_sound](pipeline::Effects& out) {
    parts_.runner->core().OnDecoded(ticket, is_sound, out);
  });
  return decode.target.length_bytes;
}

void ByteWork::OnReduced(uint64_t ticket, uint64_t bytes) {
  bytes_reduced_ += bytes;
  parts_.runner->Deliver([this, ticket](pipeline::Effects& out) {
    parts_.runner->core().OnReduced(ticket, std::nullopt, parts_.clock->NowNs(), out);
  });
}

}  // namespace talweg::agent
