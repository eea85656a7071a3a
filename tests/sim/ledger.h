// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_LEDGER_H_
#define TALWEG_TESTS_SIM_LEDGER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "libs/base/ids.h"
#include "libs/view/view.h"
#include "tests/sim/network.h"
#include "tests/sim/round_plan.h"

namespace talweg::sim {

// A life has broken an invariant. The text says which, and what was seen.
struct Violation {
  std::string text;
};

// A rank's contribution. Cell i of (rank's life, tensor, round) is a unique base plus i times a
// constant. So a sum shows who is in it, in which order, and whether it lies in its place.
uint64_t ContributionBase(const view::MemberIdentity& member, LocalRank rank, TensorKey tensor,
                          Round round);
inline constexpr uint64_t kCellStep = 0x9e3779b97f4a7c15u;
// Stands for a sum: linear, so that the result can be predicted, and different for another order
// (invariant 2).
inline uint64_t Combine(uint64_t so_far, uint64_t next) {
  return so_far * 0xd1342543de82ef95u + next;
}
// The value where a rank gives nothing.
inline constexpr uint64_t kNothing = 0xbadbadbadbadbad0u;
// A rank writes it over an average that it has taken.
inline constexpr uint64_t kScribbled = 0x5c71bb1e00000000u;
// What a rank writes into its contribution to an open round is its contribution to a round so much
// later, which no tensor reaches.
inline constexpr uint64_t kEarlyRounds = 1'000'000'000;
inline uint64_t EarlyBase(const view::MemberIdentity& member, LocalRank rank, TensorKey tensor,
                          Round round) {
  return ContributionBase(member, rank, tensor, Round{round.value() + kEarlyRounds});
}

// Knows what all ranks of one job should see, and throws Violation when one does not.
class Ledger {
 public:
  // Call it with every view that is sent (invariant 3, rule 15). Epochs only rise, except after an
  // older store was put in place.
  void OnView(const view::View& view, bool store_is_older = false);

  struct RankOfMember {
    view::MemberIdentity member;
    LocalRank local_rank;

    friend bool operator==(const RankOfMember&, const RankOfMember&) = default;
  };

  // A rank's call to gather what all ranks of a group give, of which some may be lost, is over:
  // `found` are the ranks whose parts it has. All ranks find the same ones.
  void OnGathered(const std::string& who, TensorKey tensor, uint64_t call, const RankOfMember& rank,
                  Epoch epoch, const std::vector<RankOfMember>& found);
  // Returns the ranks in a sum, in their order.
  std::vector<RankOfMember> RanksIn(const RoundPlan& plan, Epoch sum_epoch) const;

  // How a round is over for a rank.
  enum class End : uint8_t {
    kDone = 1,
    kAborted = 2,   // A member is gone that the round needs.
    kMismatch = 3,  // The ranks gave data that does not fit together.
  };
  struct Outcome {
    TensorKey tensor;
    const RoundPlan* plan = nullptr;  // Lives as long as the ledger.
    Round round;
    End end = End::kDone;
    std::string text;  // Why it has no result, or "".
    Epoch sum_epoch;
    uint32_t ranks_summed = 0;
    std::vector<uint64_t> lengths;  // By part.
    bool left_out = false;          // The rank was told that the result is without it.
    // The result lies where the rank contributes.
    bool in_place = false;
    view::MemberIdentity member;  // The member whose rank has taken it.
    LocalRank local_rank;
    Epoch epoch;                       // Its view's when the round was over there.
    std::optional<RankOfMember> root;  // The rank that it knows by the root's number.
    // The members whose ranks take part, as that rank knows them, the root's first.
    std::vector<view::MemberIdentity> needed;
  };
  // All ranks of a node have pushed a round. A round cannot begin in any other way.
  void OnContributed(TensorKey tensor, Round round) { contributed_.emplace(tensor, round); }
  // A rank pushes a round of a tensor that leaves late ranks out. `rounds`: those whose
  // contributions it gives, the earlier ones because it was left out.
  void OnPushed(TensorKey tensor, Round round, const RankOfMember& rank,
                std::vector<Round> rounds) {
    pushed_[{tensor, round, rank.member, rank.local_rank}] = std::move(rounds);
  }
  // A node combines its contribution to such a round. The same ranks are in all its slices, however
  // often they are combined.
  void OnCombined(const std::string& who, TensorKey tensor, Round round,
                  const view::MemberIdentity& member, const std::vector<LocalRank>& ranks);
  // A rank writes other cells into its contribution while the round is open. Each cell of that
  // round's sum then has what stood there before, or what stands there now; but all ranks get the
  // same sum. Returns false if the rank must not: another one has done so in this round.
  bool OnWrittenEarly(TensorKey tensor, Round round, const RankOfMember& rank) {
    return early_.emplace(std::pair(tensor, round), rank).second;
  }
  // A rank has taken the result of a round (invariants 1 to 3), or was told of its abortion.
  void OnOutcome(const std::string& who, const Outcome& outcome, const Cells& result);

  // A member was told that ranks disagree on a tensor.
  struct Disagreement {
    Epoch epoch;
    int64_t since_ns = 0;
  };
  void OnDisagreement(TensorKey tensor, Epoch epoch, int64_t now_ns) {
    Disagreement& known = disagreements_[tensor];
    if (known.epoch < epoch) known = {epoch, now_ns};
  }
  // Returns the plan that all ranks use: the one of the first rank that declares the tensor.
  const RoundPlan& AgreedPlan(TensorKey tensor, const RoundPlan& plan) {
    return plans_.emplace(tensor, plan).first->second;
  }
  // A member was told that a tensor can have no round after `last`.
  struct Death {
    Round last;
    view::MemberIdentity member;
    Epoch epoch;  // That member's view's at that time.
    // The members that its ranks know by the tensor's ranks.
    std::vector<view::MemberIdentity> needed;
  };
  void OnDead(TensorKey tensor, const Death& death);

  // A rank has named a tensor's ranks by the numbers of a view that its node no longer follows.
  void OnOlderNumbers(const std::string& tensor) { named_by_older_numbers_.insert(tensor); }
  bool NamedByOlderNumbers(const std::string& tensor) const {
    return named_by_older_numbers_.contains(tensor);
  }

  // A tensor has failed, and has no further rounds.
  void OnTensorFailed() { tensor_failed_ = true; }
  bool tensor_failed() const { return tensor_failed_; }
  const std::map<TensorKey, Disagreement>& disagreements() const { return disagreements_; }

  // Returns whether a member of the view of `epoch` was in the job before `joiner`.
  bool SurvivorIn(Epoch epoch, const view::MemberIdentity& joiner) const;

  // Returns whether some view lost two or more members of the view before it.
  bool LostSeveralAtOnce() const;

  uint64_t outcomes() const { return outcomes_; }
  const std::map<Epoch, view::View>& views() const { return views_; }

 private:
  // One result of a round. There may be others: nobody needs to agree with a result that only
  // members saw that have left the view since.
  struct Settled {
    Outcome outcome;
    std::map<view::MemberIdentity, Epoch> takers;  // With the epoch in which each took it.
  };

  // A rank that is in a round of a view.
  struct Participant {
    view::MemberIdentity member;
    view::Place place;
    uint32_t number = 0;
    uint32_t member_place = 0;  // In the view.
  };

  static std::vector<Participant> Participants(const view::View& view, const RoundPlan& plan);
  static bool Agree(const std::vector<Participant>& ranks, const Outcome& outcome);
  const RankOfMember* WriterOf(const Outcome& outcome) const;
  void CheckSameBits(const std::string& what, const Outcome& outcome, const Cells& result);
  void CheckAgreement(const std::string& what, const Outcome& outcome);
  void CheckNotDead(const std::string& what, const Outcome& outcome) const;
  // Returns whether `member`, which took a result in `epoch`, and the member of `outcome` were in
  // one view since.
  bool SawBoth(const view::MemberIdentity& member, Epoch epoch, const Outcome& outcome) const;
  void CheckAborted(const std::string& what, const Outcome& outcome) const;
  void CheckPart(const std::string& what, const Outcome& outcome,
                 const std::vector<Participant>& ranks, uint32_t part, uint32_t root,
                 const Cells& result) const;
  bool InView(Epoch epoch, const view::MemberIdentity& member) const;
  // Returns nullopt if the member has not combined its contribution to the round.
  std::optional<bool> IsIn(TensorKey tensor, Round round, const RankOfMember& rank) const;
  // Returns the first cell of what the rank gives to the round, and how much each next cell adds.
  std::pair<uint64_t, uint64_t> Given(TensorKey tensor, Round round, const RankOfMember& rank,
                                      uint64_t first_cell) const;

  std::map<Epoch, view::View> views_;
  std::map<std::pair<TensorKey, Round>, std::vector<Settled>> settled_;
  std::map<TensorKey, Disagreement> disagreements_;
  std::set<std::pair<TensorKey, Round>> contributed_;
  std::map<std::tuple<TensorKey, Round, view::MemberIdentity, LocalRank>, std::vector<Round>>
      pushed_;
  std::map<std::tuple<TensorKey, Round, view::MemberIdentity>, std::vector<LocalRank>> combined_;
  std::map<std::pair<TensorKey, Round>, RankOfMember> early_;
  std::map<std::tuple<TensorKey, Round, Epoch>, Cells> early_sums_;  // By the sum's epoch.
  struct Found {
    view::MemberIdentity member;
    Epoch epoch;
    std::vector<RankOfMember> ranks;
  };
  std::map<std::pair<TensorKey, uint64_t>, std::vector<Found>> gathered_;
  std::map<TensorKey, RoundPlan> plans_;
  std::map<std::pair<TensorKey, std::vector<view::MemberIdentity>>, std::vector<Death>> deaths_;
  bool tensor_failed_ = false;
  std::set<std::string> named_by_older_numbers_;
  uint64_t outcomes_ = 0;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_LEDGER_H_
