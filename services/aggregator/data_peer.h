// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_SERVICES_AGGREGATOR_DATA_PEER_H_
#define TALWEG_SERVICES_AGGREGATOR_DATA_PEER_H_

#include <optional>
#include <string>

#include "libs/base/ids.h"
#include "libs/transport/transport.h"

namespace talweg::aggregator {

// The peer of a connection: a member, if it has proven to be one, else just an address.
struct DataPeer {
  std::string host;  // The peer's address; "": this machine, through shared memory.
  std::optional<transport::PeerIdentity> member = std::nullopt;

  static DataPeer Of(const transport::Transport& transport, ConnectionId id) {
    DataPeer peer{.host = transport.PeerHost(id), .member = transport.ProvenIdentity(id)};
    // A peer that has the listener's own key is no member of a job.
    if (peer.member && peer.member->job == JobId{0}) peer.member.reset();
    return peer;
  }

  // Returns whether the connections of both peers count together.
  bool IsSame(const DataPeer& other) const {
    if (member && other.member) return member->SameMember(*other.member);
    return member.has_value() == other.member.has_value() && host == other.host;
  }
};

}  // namespace talweg::aggregator

#endif  // TALWEG_SERVICES_AGGREGATOR_DATA_PEER_H_
