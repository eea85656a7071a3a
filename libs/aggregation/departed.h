// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_DEPARTED_H_
#define TALWEG_LIBS_AGGREGATION_DEPARTED_H_

#include <cstddef>
#include <vector>

#include "libs/view/view.h"

namespace talweg::aggregation {

// The members that have been in a job's views here and are in them no more: they have left, or were
// lost. A member keeps the seed of its keys, so its key does not show that it is still a member
// (docs/protocol.md, section 10).
//
// Remembers kMembersMax of them. A job from which more have departed counts everybody outside of
// its newest view as departed: who enters it waits until that view is here. One owner thread.
class Departed {
 public:
  static constexpr size_t kMembersMax = 4096;

  // Counts everybody as departed: those who were there are not known any more.
  static Departed Everybody();

  // These members depart.
  void Add(const std::vector<view::MemberIdentity>& members);
  void Add(const std::vector<view::ViewMember>& members);
  // The members of this view are members, whatever was known of them.
  void Remove(const std::vector<view::ViewMember>& members);

  // `member` is not in the newest view.
  bool Has(const view::MemberIdentity& member) const;
  bool is_everybody() const { return is_everybody_; }
  size_t size() const { return members_.size(); }

 private:
  std::vector<view::MemberIdentity> members_;  // Ascending.
  bool is_everybody_ = false;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_DEPARTED_H_
