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

// The owners of the open watch streams. A member or an aggregator keeps the id of its stream.
class Streams {
 public:
  struct MemberOfJob {
    JobId job;
    view::MemberIdentity id;
  };
  using Owner = std::variant<MemberOfJob, Incarnation>;  // An incarnation: an aggregator.

  // `stream` is new, and belongs to the owner from now on.
  void Open(StreamId stream, const Owner& owner, std::optional<StreamId>& owned);
  // Ends the owner's stream, if it has one, and tells its peer why.
  void End(std::optional<StreamId>& owned, const Answer& why, Turn& turn);
  // The peer's end is gone. Returns the stream's owner; nullopt if the stream is unknown, or was
  // replaced.
  std::optional<Owner> Break(StreamId stream);

 private:
  std::map<StreamId, Owner> owners_;
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_STREAMS_H_
