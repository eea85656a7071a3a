// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_VIEW_PARTICIPATION_H_
#define TALWEG_LIBS_VIEW_PARTICIPATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libs/base/collective.h"
#include "libs/base/ids.h"
#include "libs/view/view.h"

namespace talweg::view {

// Where a rank belongs. A place is the same for all processes, and stays the same over views. The
// process that has the place in a view is the rank.
struct Place {
  NodeRank node;
  LocalRank local_rank;

  friend auto operator<=>(const Place&, const Place&) = default;
};

// The ranks that take part in a collective, ascending, without repetition. Empty: all ranks of the
// view's full members.
using Group = std::vector<Place>;

// A short text: "3 ranks (0.0, 0.1, 2.3)". For people there is "ranks 0, 1 and 3 of node 2".
std::string Describe(const Group& group);

// Which member gives and gets which part of a tensor in one view. A value. Agents and aggregators
// that hold the same view compute the same.
class Participation {
 public:
  Participation() = default;
  // `root`: nullopt if there is none, or it is gone. A collective whose parts belong to ranks needs
  // a group that names them. For a tensor that is not a side tensor, ranks of standbys count as
  // gone.
  Participation(const View& view, const Collective& collective, const Group& group,
                std::optional<Place> root);

  // A rank of one member.
  struct LocalPart {
    uint32_t number = 0;  // In the group.
    LocalRank local_rank;
  };

  // Whether no member is gone that the collective cannot do without.
  bool IsPossible() const { return is_possible_; }
  // How many ranks the group has, including those whose place no process has.
  uint32_t rank_count() const { return rank_count_; }
  // Ascending; empty: the member has no part in the tensor.
  const std::vector<LocalPart>& RanksOf(MemberIndex member) const {
    return ranks_of_[member.value()];
  }
  bool Includes(MemberIndex member) const { return !ranks_of_[member.value()].empty(); }

  // How many members have ranks in the group.
  uint32_t member_count() const { return member_count_; }
  // How many of the member's ranks give the part.
  uint32_t GivingRanks(MemberIndex member, uint32_t part) const;
  bool Gets(MemberIndex member, uint32_t part) const;
  // Whether the member gives or gets the part, or keeps pace with those who do. Members of one
  // tensor are never more than a round apart, so all wait even for a part that concerns only a few.
  // Only if each two members share a part of their own (all_to_all), the others stay away.
  bool TakesPart(MemberIndex member, uint32_t part) const;
  uint32_t TakerCount(uint32_t part) const;
  // The member whose rank gives the part, if the collective copies. nullopt: no member of this
  // view.
  std::optional<MemberIndex> Source(uint32_t part) const;
  // Whether the part concerns this member alone.
  bool IsPrivate(MemberIndex member, uint32_t part) const {
    return TakesPart(member, part) && TakerCount(part) == 1;
  }

  bool Gives(const LocalPart& rank, uint32_t part) const {
    return collective_.Gives(part, rank.number, rank_count_, root_);
  }
  bool Gets(const LocalPart& rank, uint32_t part) const {
    return collective_.Gets(part, rank.number, rank_count_, root_);
  }

 private:
  Collective collective_;
  uint32_t rank_count_ = 0;
  uint32_t root_ = 0;
  bool is_possible_ = false;
  uint32_t member_count_ = 0;
  std::vector<std::vector<LocalPart>> ranks_of_;  // By member.
};

}  // namespace talweg::view

#endif  // TALWEG_LIBS_VIEW_PARTICIPATION_H_
