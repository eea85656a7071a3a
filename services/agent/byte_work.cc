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
    reduces_.push_back(std::move(effect));
  }
}

int ByteWork::ReduceSome(uint64_t bytes_max) {
  uint64_t bytes = 0;
  int count = 0;
  while (!reduces_.empty() && bytes < bytes_max) {
    const pipeline::ReduceSlice reduce = std::move(reduces_.front());
    reduces_.pop_front();
    ++count;
    if (!parts_.runner->core().ReduceWanted(reduce.ticket)) continue;
    if (!parts_.memory->Shared(reduce.target.tensor)) bytes += reduce.target.length_bytes;
    Reduce(reduce);
  }
  return count;
}

void ByteWork::Reduce(const pipeline::ReduceSlice& reduce) {
  const pipeline::SliceBytes& target = reduce.target;
  if (parts_.memory->Shared(target.tensor)) {
    // The ranks sum. Each does so where it wants the result.
    return OnReduced(reduce.ticket, 0);
  }
  const pipeline::TensorSpec& spec = parts_.memory->spec(target.tensor);
  std::vector<const std::byte*> inputs;
  for (const LocalRank rank : reduce.inputs) {
    inputs.push_back(parts_.memory->Contribution(target, rank).data());
    TALWEG_CHECK(inputs.back() != nullptr);  // It pushed, so it has a buffer.
  }
  const std::span<std::byte> output = parts_.memory->Writable(target);
  const bool traced = parts_.timeline->Wants(target.round);
  const int64_t begin_ns = traced ? parts_.clock->NowNs() : 0;
  parts_.combiner->Combine(spec, reduce.is_final, inputs, output);
  if (traced) {
    parts_.timeline->OnReduced(target.tensor, target.round, begin_ns, parts_.clock->NowNs());
  }
  OnReduced(reduce.ticket, target.length_bytes * inputs.size());
}

void ByteWork::OnReduced(uint64_t ticket, uint64_t bytes) {
  bytes_reduced_ += bytes;
  parts_.runner->Deliver([this, ticket](pipeline::Effects& out) {
    parts_.runner->core().OnReduced(ticket, parts_.clock->NowNs(), out);
  });
}

}  // namespace talweg::agent
