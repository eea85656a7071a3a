// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGENT_BYTE_WORK_H_
#define TALWEG_SERVICES_AGENT_BYTE_WORK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <variant>
#include <vector>

#include "libs/encoding/codec.h"
#include "libs/pipeline/agent_core.h"
#include "libs/runtime/clock.h"
#include "libs/wire/frames.h"
#include "services/agent/core_runner.h"
#include "services/agent/device_rounds.h"
#include "services/agent/tensor_memory.h"
#include "services/agent/timeline.h"

namespace talweg::agent {

// Combines what the ranks of a node push, in rank order (combine.h).
class RankCombiner {
 public:
  virtual ~RankCombiner() = default;
  // The output stands for `rank_count` ranks: for more than there are inputs, if ranks are late.
  virtual void Combine(const pipeline::TensorSpec& spec, bool is_final, uint32_t rank_count,
                       std::span<const std::byte* const> inputs,
                       std::span<std::byte> output) const = 0;
};

// Performs the core's effects that touch bytes. Copies run at once, reductions and decoding a few
// at a time. Owned by the data thread.
class ByteWork {
 public:
  // All are valid until the last call.
  struct Parts {
    const runtime::Clock* clock = nullptr;
    const RankCombiner* combiner = nullptr;
    const encoding::Codec* codec = nullptr;
    NodeRank node;  // This member's.
    TensorMemory* memory = nullptr;
    Timeline* timeline = nullptr;
    CoreRunner* runner = nullptr;
  };
  explicit ByteWork(const Parts& parts) : parts_(parts) {}

  // Null: the GPUs are gone.
  void SetDevices(DeviceRounds* devices) { devices_ = devices; }
  // Sets the frame that the core is handling, which CopyInline copies from; null: none.
  void SetFrame(const wire::Frame* frame) { frame_ = frame; }

  void Do(const pipeline::CopyInline& effect);
  void Do(const pipeline::CopyOwn& effect);
  void Do(pipeline::ReduceSlice& effect);
  void Do(const pipeline::DecodeSlice& effect) { queued_.emplace_back(effect); }

  // Reduces and decodes queued slices until it has done `bytes_max` bytes. Returns how many slices
  // it took from the queue, those that are no longer wanted included.
  int WorkSome(uint64_t bytes_max);
  bool AnyQueued() const { return !queued_.empty(); }
  void Abandon() { queued_.clear(); }
  // The reduction with this ticket is done, by this object or on GPUs.
  void OnReduced(uint64_t ticket, uint64_t bytes);
  uint64_t bytes_reduced() const { return bytes_reduced_; }

 private:
  // Each returns how many bytes of work it was.
  uint64_t Work(const pipeline::ReduceSlice& reduce);
  uint64_t Work(const pipeline::DecodeSlice& decode);
  // Combines the ranks' bytes to `output`.
  void Combine(const pipeline::ReduceSlice& reduce, std::span<std::byte> output);
  void Encode(const pipeline::ReduceSlice& reduce);

  const Parts parts_;
  DeviceRounds* devices_ = nullptr;
  const wire::Frame* frame_ = nullptr;
  std::deque<std::variant<pipeline::ReduceSlice, pipeline::DecodeSlice>> queued_;
  std::vector<std::byte> scratch_;  // A slice before it is encoded.
  uint64_t bytes_reduced_ = 0;
};

}  // namespace talweg::agent

#endif  // TALWEG_SERVICES_AGENT_BYTE_WORK_H_
