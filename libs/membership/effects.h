// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_EFFECTS_H_
#define TALWEG_LIBS_MEMBERSHIP_EFFECTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libs/base/ids.h"
#include "libs/membership/records.h"
#include "libs/membership/requests.h"
#include "libs/view/gone.h"
#include "libs/view/job_quota.h"
#include "libs/view/view.h"

// What the scheduler's core asks its caller to do.
namespace talweg::membership {

// Syncs this to the store. The first effect of an event.
struct Persist {
  StoreWrite write;
  friend bool operator==(const Persist&, const Persist&) = default;
};

// Messages on a member's stream.
struct Attached {
  QuiesceId quiesce;  // The quiesce under way; 0: none.
  friend bool operator==(const Attached&, const Attached&) = default;
};
struct Quiesce {
  QuiesceId id;
  std::vector<NodeRank> joining;
  uint64_t step = 0;  // Stop when all ranks have ended this step. 0: say which step they are in.
  friend bool operator==(const Quiesce&, const Quiesce&) = default;
};
struct QuiesceCancelled {
  QuiesceId id;
  friend bool operator==(const QuiesceCancelled&, const QuiesceCancelled&) = default;
};
struct JobFailed {
  std::string text;
  friend bool operator==(const JobFailed&, const JobFailed&) = default;
};
struct MemberLeft {
  view::MemberIdentity id;
  std::string text;
  friend bool operator==(const MemberLeft&, const MemberLeft&) = default;
};
// A view that many members and aggregators get: they share it.
class SharedView {
 public:
  explicit SharedView(std::shared_ptr<const view::View> view) : view_(std::move(view)) {}

  const view::View& operator*() const { return *view_; }
  const view::View* operator->() const { return view_.get(); }
  const std::shared_ptr<const view::View>& pointer() const { return view_; }

  friend bool operator==(const SharedView& a, const SharedView& b) {
    return a.view_ == b.view_ || *a.view_ == *b.view_;
  }

 private:
  std::shared_ptr<const view::View> view_;  // Never null.
};
using MemberMessage =
    std::variant<Attached, SharedView, Quiesce, QuiesceCancelled, JobFailed, MemberLeft>;

// Messages on an aggregator's stream.
struct JobView {
  std::string job_name;
  SharedView view;
  view::JobQuota quota = {};
  view::Gone gone = {};
  friend bool operator==(const JobView&, const JobView&) = default;
};
// The rules have changed for a job that runs.
struct JobQuotaChanged {
  JobId job;
  view::JobQuota quota;
  friend bool operator==(const JobQuotaChanged&, const JobQuotaChanged&) = default;
};
struct JobClosed {
  JobId job;
  std::string text;
  friend bool operator==(const JobClosed&, const JobClosed&) = default;
};
using AggregatorMessage = std::variant<Attached, JobView, JobClosed, JobQuotaChanged>;

struct TellMember {
  StreamId stream;
  MemberMessage message;
  friend bool operator==(const TellMember&, const TellMember&) = default;
};
struct TellAggregator {
  StreamId stream;
  AggregatorMessage message;
  friend bool operator==(const TellAggregator&, const TellAggregator&) = default;
};
// Ends the stream with `why`; no OnStreamBroken follows for it.
struct CloseStream {
  StreamId stream;
  Answer why;
  friend bool operator==(const CloseStream&, const CloseStream&) = default;
};
// For the log.
struct Note {
  std::string text;
  friend bool operator==(const Note&, const Note&) = default;
};
using Effect = std::variant<Persist, TellMember, TellAggregator, CloseStream, Note>;

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_EFFECTS_H_
