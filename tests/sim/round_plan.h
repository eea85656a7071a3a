// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_ROUND_PLAN_H_
#define TALWEG_TESTS_SIM_ROUND_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libs/base/collective.h"
#include "libs/base/ids.h"
#include "libs/view/participation.h"
#include "tests/sim/profile.h"

namespace talweg::sim {

// The plan of what a job's trainers do with one tensor, round after round. All trainers and the
// ledger know it in advance. A value type.
class RoundPlan {
 public:
  RoundPlan() = default;
  // `group`: empty, all ranks. `tensor` and `profile` outlive it.
  RoundPlan(const Profile& profile, size_t tensor, view::Group group,
            std::optional<view::Place> root);

  const std::string& name() const { return name_; }
  const view::Group& group() const { return group_; }
  std::optional<view::Place> root() const { return root_; }
  const TensorProfile& tensor() const { return *tensor_; }
  Collective collective() const { return tensor_->collective(); }
  uint32_t part_count() const {
    return collective().part_count(group_.empty() ? 1 : static_cast<uint32_t>(group_.size()));
  }
  // Returns the place's number in the group, or nullopt if it is not in it. `number_of_all`: its
  // number among all ranks.
  std::optional<uint32_t> NumberOf(const view::Place& place, uint32_t number_of_all) const;

  // The signature and the lengths of parts that the rank at `place` gives.
  RoundSignature Signature(Round round, const view::Place& place) const;
  uint64_t LengthBytes(Round round, uint32_t part, const view::Place& place) const;
  // Returns the rank that makes another call in this round.
  std::optional<view::Place> Odd(Round round) const;

 private:
  uint64_t Draw(Round round, uint64_t what) const;

  const TensorProfile* tensor_ = nullptr;
  std::string name_;
  uint64_t seed_ = 0;
  view::Group group_;
  std::optional<view::Place> root_;
  std::vector<view::Place> places_;  // All places: of the group, or of the job.
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_ROUND_PLAN_H_
