// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_SCALE_MEMBERS_H_
#define TALWEG_TESTS_SIM_SCALE_MEMBERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "libs/runtime/clock.h"
#include "libs/view/view.h"
#include "libs/wire/frames.h"
#include "tests/sim/scale.h"

// The members of a job with thousands of them.
namespace talweg::sim {

inline constexpr char kScaleJobName[] = "job";

// A frame on its way: its bytes as they travel, and what they parse to.
class FrameInFlight {
 public:
  explicit FrameInFlight(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  size_t size() const { return bytes_.size(); }
  wire::Frame Parse() const { return std::get<wire::Frame>(wire::ParseFrame(bytes_)); }

 private:
  std::vector<std::byte> bytes_;
};

// Receives what a member sends to aggregators.
class Peers {
 public:
  virtual ~Peers() = default;
  virtual void ToAggregator(uint32_t member, uint32_t aggregator,
                            std::shared_ptr<FrameInFlight> frame) = 0;
  virtual void Quiesced(uint32_t member, uint64_t id, uint64_t step) = 0;
};

// A node of the job: its core, or a stand-in.
class Participant {
 public:
  virtual ~Participant() = default;
  virtual void OnView(std::shared_ptr<const view::View> view) = 0;
  virtual void OnQuiesce(uint64_t id, uint64_t step) = 0;
  virtual void OnFrame(uint32_t aggregator, const wire::Frame& frame) = 0;
  // Contributes to the next round of every tensor.
  virtual void Push() = 0;
  // Returns how many rounds of every tensor it holds; nullopt while it must not push.
  virtual std::optional<uint64_t> held() const = 0;
  virtual Epoch epoch() const = 0;
};

// A member's core, as its agent drives it.
std::unique_ptr<Participant> MakeCoreMember(uint32_t index, const view::ViewMember& self,
                                            const ScaleOptions& options,
                                            const Collective& collective,
                                            const runtime::Clock* clock, Peers* peers);

// Returns a member that sends what a core in its place sends, as long as nothing else goes wrong.
std::unique_ptr<Participant> MakeStandIn(uint32_t index, const view::ViewMember& self,
                                         const ScaleOptions& options, const Collective& collective,
                                         Peers* peers);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_SCALE_MEMBERS_H_
