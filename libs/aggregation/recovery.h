// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_RECOVERY_H_
#define TALWEG_LIBS_AGGREGATION_RECOVERY_H_

#include <cstddef>
#include <map>
#include <vector>

#include "libs/aggregation/aggregator_tensor.h"
#include "libs/aggregation/attendance.h"
#include "libs/aggregation/declarations.h"
#include "libs/aggregation/effects.h"
#include "libs/aggregation/present_view.h"
#include "libs/aggregation/status.h"
#include "libs/base/ids.h"
#include "libs/wire/frames.h"

namespace talweg::aggregation {

// Decides what becomes of open rounds in a new view (docs/protocol.md, section 6). Each member
// reports what it holds. When all have, this aggregator decides on each tensor that it is the
// primary owner of, and declarations are answered. Only this class writes the tensors' decisions,
// and the round from which joiners continue.
//
// A pure class. One owner thread. The constructor's arguments outlive it.
class Recovery {
 public:
  Recovery(const PresentView* view, const Attendance* attendance, Declarations* declarations,
           Tensors* tensors, Counters* counters)
      : view_(view),
        attendance_(attendance),
        declarations_(declarations),
        tensors_(tensors),
        counters_(counters) {}

  // A new view: nobody has reported.
  void OnView();
  // The member has sent a Report frame; its report may take several.
  void OnReport(ConnectionId connection, MemberIndex member, const wire::Frame& frame,
                Effects& out);
  // The member's connection is over. An incomplete report is forgotten.
  void OnLost(MemberIndex member);

  // Whether all members of the view have reported.
  bool is_complete() const { return is_complete_; }
  bool HasReported(MemberIndex member) const { return members_[member.value()].has_reported; }

 private:
  struct MemberReports {
    bool has_reported = false;
    std::map<TensorKey, wire::Report> reports;  // Until decided.
  };

  void OnReportAgain(ConnectionId connection, MemberIndex member, const wire::Report& entry,
                     Effects& out);
  void OnReportsComplete(Effects& out);
  void DecideTensor(AggregatorTensor& tensor, Effects& out);

  const PresentView* const view_;
  const Attendance* const attendance_;
  Declarations* const declarations_;
  Tensors* const tensors_;
  Counters* const counters_;
  std::vector<MemberReports> members_;  // By member index.
  size_t missing_ = 0;                  // How many members have not reported.
  bool is_complete_ = false;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_RECOVERY_H_
