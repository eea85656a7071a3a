// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_STREAMS_H_
#define TALWEG_LIBS_MEMBERSHIP_STREAMS_H_

#include <map>
#include <optional>
#include <variant>

#include "libs/base/ids.h"
#include "libs/membership/requests.h"
#include "libs/membership/turn.h"
#include "libs/view/view.h"

namespace talweg::membership {

// Whose the watch streams are that are open. A member or an aggregator keeps the id of its own one.
class Streams {
 public:
  struct MemberOfJob {
    JobId job;
    view::MemberIdentity id;
  };
  using Owner = std::variant<MemberOfJob, Incarnation>;  // An incarnation: an aggregator.

  // `stream` is new, and the owner's from now on.
  void Open(StreamId stream, const Owner& owner, std::optional<StreamId>& owned);
  // Ends the owner's stream, if it has one, and tells its peer why.
  void End(std::optional<StreamId>& owned, const Answer& why, Turn& turn);
  // The peer's end is gone: whose it was. nullopt: it is unknown, or has been replaced.
  std::optional<Owner> Break(StreamId stream);

 private:
  std::map<StreamId, Owner> owners_;
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_STREAMS_H_
