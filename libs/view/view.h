// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_VIEW_VIEW_H_
#define TALWEG_LIBS_VIEW_VIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "libs/base/bytes.h"
#include "libs/base/dealing.h"
#include "libs/base/ids.h"

namespace talweg::view {

// One run of one node's agent in a job. An agent that is started again is another member.
struct MemberIdentity {
  NodeRank node;
  Incarnation incarnation;

  friend auto operator<=>(const MemberIdentity&, const MemberIdentity&) = default;
};

// Returns the last hexadecimal digits of an incarnation: enough to tell a process's lives apart,
// and too few to pass for it. For texts.
std::string HexText(Incarnation incarnation);

struct ViewMember {
  MemberIdentity id;
  uint32_t rank_count = 0;    // Ranks of the job on this node; at least 1.
  std::string name;           // For people: the host's name, say.
  std::string admin_address;  // Where its agent answers admin calls; may be empty.
  std::string host_id;        // The host that it runs on; "": unknown.
  // In the view, but its ranks take part in no steps yet (docs/protocol.md, sections 2 and 4).
  bool standby = false;

  friend bool operator==(const ViewMember&, const ViewMember&) = default;
};

struct ViewAggregator {
  Incarnation incarnation;
  std::string name;          // Stable over restarts; placement depends on it.
  uint32_t weight = 1;       // Its share of the bytes; at least 1.
  std::string data_address;  // "host:port", what the transport connects to.
  std::string host_id;       // Equal to a member's: they can use shared memory.
  std::string admin_address;

  friend bool operator==(const ViewAggregator&, const ViewAggregator&) = default;
};

// The members and aggregators of one epoch of one job. A value: processes that hold the same view
// compute the same placement, order of sums and ranks.
struct View {
  JobId job;
  Epoch epoch;
  uint64_t slice_bytes_max = kMiB;
  Dealing dealing;  // How slices are dealt to aggregators.
  // How many steps the ranks had ended when members last entered; 0: none has since the job began.
  uint64_t steps = 0;
  std::vector<ViewMember> members;          // By node rank, ascending, without repetition.
  std::vector<ViewAggregator> aggregators;  // By name, ascending, without repetition.

  // The ranks of full members, which are all that take part in steps.
  uint32_t RankCount() const;
  // The same with standbys' ranks, which have the numbers after the others.
  uint32_t NumberCount() const;
  // The first global rank of a member's ranks.
  Rank RankBase(MemberIndex member) const;
  // The member that holds a global rank, even a standby's; nullopt past the last one.
  std::optional<MemberIndex> MemberOfRank(Rank rank) const;
  bool HasStandby() const;
  std::optional<MemberIndex> IndexOf(const MemberIdentity& id) const;
  std::optional<MemberIndex> IndexOf(NodeRank node) const;
  std::optional<AggregatorIndex> IndexOfAggregator(Incarnation incarnation) const;

  // A fingerprint of everything that placement and sums depend on. Two processes with one epoch and
  // different digests must not exchange data.
  uint64_t Digest() const;

  // Returns why this is not a view (members out of order, a count of zero, no epoch), or "".
  std::string Problem() const;

  friend bool operator==(const View&, const View&) = default;
};

}  // namespace talweg::view

#endif  // TALWEG_LIBS_VIEW_VIEW_H_
