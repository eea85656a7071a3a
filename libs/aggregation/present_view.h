// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_PRESENT_VIEW_H_
#define TALWEG_LIBS_AGGREGATION_PRESENT_VIEW_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "libs/aggregation/departed.h"
#include "libs/base/ids.h"
#include "libs/view/gone.h"
#include "libs/view/view.h"

namespace talweg::aggregation {

// "epoch 7".
std::string EpochText(Epoch epoch);

// A job's newest view, as one aggregator sees it, and who was in the views before; the core's other
// parts read it. Its epoch is 0 before the first view. One owner thread.
class PresentView {
 public:
  // `departed`: from an earlier life of the job here.
  PresentView(JobId job, Incarnation self, Departed departed = {})
      : job_(job), aggregator_(self), departed_(std::move(departed)) {}

  // Whether `view` is of this job, makes sense, and has a later epoch.
  bool IsNext(const view::View& view) const;
  // `gone`: who is out of the job, of views that did not come here.
  void Set(const view::View& view, const view::Gone& gone = {});

  const view::View& view() const { return view_; }
  Epoch epoch() const { return view_.epoch; }
  // This aggregator's place; nullopt if it has none.
  std::optional<AggregatorIndex> self() const { return self_; }
  uint64_t placement_digest() const { return placement_digest_; }

  size_t member_count() const { return view_.members.size(); }
  const view::MemberIdentity& IdOf(MemberIndex member) const {
    return view_.members[member.value()].id;
  }
  std::optional<MemberIndex> IndexOf(const view::MemberIdentity& id) const {
    return view_.IndexOf(id);
  }
  const Departed& departed() const { return departed_; }
  // "node 3 (host-3)".
  std::string MemberText(MemberIndex member) const;
  // Whether this aggregator, which must have a place, decides about the tensor's open round.
  bool Decides(TensorKey key) const;

 private:
  const JobId job_;
  const Incarnation aggregator_;
  view::View view_;
  Departed departed_;
  std::optional<AggregatorIndex> self_;
  uint64_t placement_digest_ = 0;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_PRESENT_VIEW_H_
