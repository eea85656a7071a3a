// SPDX-License-Identifier: Apache-2.0
#include "libs/aggregation/latecomers.h"

namespace talweg::aggregation {

void Latecomers::OnView() {
  newest_.clear();
  next_ = 0;
}

void Latecomers::OnLast(MemberIndex last, int64_t behind_ns) {
  if (newest_.size() < kSumsMax) {
    newest_.push_back({last, behind_ns});
    return;
  }
  newest_[next_] = {last, behind_ns};
  next_ = (next_ + 1) % kSumsMax;
}

std::vector<Latecomers::Lateness> Latecomers::ByMember(size_t member_count) const {
  std::vector<Lateness> members(member_count);
  for (const Sum& sum : newest_) {
    Lateness& member = members.at(sum.last.value());
    ++member.last_count;
    member.behind_ns += sum.behind_ns;
  }
  return members;
}

}  // namespace talweg::aggregation
