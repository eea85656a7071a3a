// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_VIEW_GONE_H_
#define TALWEG_LIBS_VIEW_GONE_H_

#include <vector>

#include "libs/view/view.h"

namespace talweg::view {

// Who was a member of a job and is none in a view of it. Views may be skipped, so whoever gets this
// one may know of them from nowhere else.
struct Gone {
  std::vector<MemberIdentity> members = {};
  // There may be others. Nobody outside of the view can be told from them.
  bool is_everybody = false;

  friend bool operator==(const Gone&, const Gone&) = default;
};

}  // namespace talweg::view

#endif  // TALWEG_LIBS_VIEW_GONE_H_
