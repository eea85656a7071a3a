// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_PIPELINE_VIEW_STATE_H_
#define TALWEG_LIBS_PIPELINE_VIEW_STATE_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "libs/base/ids.h"
#include "libs/view/view.h"

namespace talweg::pipeline {

enum class Phase : uint8_t {
  kForming = 1,    // No view yet.
  kFencing = 2,    // In a new view: not all its aggregators have answered.
  kReporting = 3,  // Reports are sent; some tensors wait for their decision.
  kActive = 4,
  kFailed = 5,
};
const char* PhaseName(Phase phase);

bool IsStandbyIn(const view::View& view, const view::MemberIdentity& member);

// The views that one member has had, and how far the member has come in the newest.
//
//   kForming --Enter--> kFencing --Freeze--> kReporting --Activate--> kActive
//                          ^                     |                       |
//                          +-------- Enter ------+-----------------------+
//   any --Fail--> kFailed
//
// While kFencing there are two views: the newest, and the one before it, whose data still counts.
class ViewState {
 public:
  ViewState(const view::MemberIdentity& self_id, uint32_t rank_count)
      : self_id_(self_id), rank_count_(rank_count) {}

  // --- Transitions.

  // Returns why the member cannot use `view`, or "".
  std::string Problem(const view::View& view) const;
  bool IsNewer(const view::View& view) const;
  // Enters a newer view, which has this member and no problem.
  void Enter(const view::View& view);
  // All aggregators of the view have answered: nothing of an older view can come any more.
  void Freeze();
  // Ignored unless kReporting.
  void Activate();
  void Fail(const std::string& text);

  // --- The phase.

  Phase phase() const { return phase_; }
  bool has_failed() const { return phase_ == Phase::kFailed; }
  // Whether the present view's aggregators have answered: slices may travel.
  bool is_past_fences() const { return phase_ == Phase::kReporting || phase_ == Phase::kActive; }
  const std::string& failed_text() const { return failed_text_; }

  // --- Views.

  // The view whose data counts. Null: none yet.
  const view::View* present() const { return view_ ? &*view_ : nullptr; }
  const view::View* newest() const { return next_view_ ? &*next_view_ : present(); }
  // Returns the view if it is among this member's latest, or null.
  const view::View* Find(Epoch epoch) const;
  const view::MemberIdentity& self_id() const { return self_id_; }
  // This member's place in present().
  MemberIndex self() const { return self_; }
  // Whether present() has this member alone and no aggregators: the local reduction is the result.
  bool standalone() const;
  // Whether `ranks` (empty: all) are all ranks that take part in steps.
  bool IsEveryRank(const std::vector<Rank>& ranks) const;

  // --- The numbers of ranks.

  // The view whose numbers the ranks here use: the first view, until they follow another.
  const view::View* numbers() const { return numbers_ ? &*numbers_ : nullptr; }
  void Follow(const view::View& view) { numbers_ = view; }
  // Whether numbers() has this node as a standby.
  bool IsStandby() const { return numbers_ && IsStandbyIn(*numbers_, self_id_); }
  // The global number of a local rank; the local number while there is no view.
  Rank GlobalRank(LocalRank rank) const;
  // Translates `root_rank`, a number of the ranks here, to the number in present(). Returns kNoRank
  // if that rank is gone.
  uint32_t RootInView(uint32_t root_rank) const;
  // How many steps the job's ranks had ended when this member joined the steps. This member's ranks
  // count their own steps from there.
  uint64_t steps_base() const { return steps_base_; }

 private:
  const view::MemberIdentity self_id_;
  const uint32_t rank_count_;
  Phase phase_ = Phase::kForming;
  std::string failed_text_;
  std::optional<view::View> view_;
  std::optional<view::View> next_view_;  // While kFencing.
  MemberIndex self_;
  std::deque<view::View> recent_views_;
  std::optional<view::View> numbers_;
  uint64_t steps_base_ = 0;
};

}  // namespace talweg::pipeline

#endif  // TALWEG_LIBS_PIPELINE_VIEW_STATE_H_
