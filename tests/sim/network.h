// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_NETWORK_H_
#define TALWEG_TESTS_SIM_NETWORK_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libs/base/ids.h"
#include "libs/transport/proof/token_book.h"
#include "libs/wire/frames.h"
#include "tests/sim/timeline.h"

// Connections between simulated processes: ordered, delayed, broken at any moment; and memory
// that a peer writes without asking.
namespace talweg::sim {

// Each process has one. A restarted process keeps it.
using HostIndex = uint32_t;

// Memory is one number for every 64 bytes: enough to see what was summed, twice, or not at all,
// and whether it lies where it belongs.
using Cells = std::vector<uint64_t>;
inline constexpr uint64_t kCellBytes = 64;
inline uint64_t CellCount(uint64_t bytes) { return (bytes + kCellBytes - 1) / kCellBytes; }

// Where the cells of a write go, and the distance between two cells. `first` is null if no region
// is registered there.
struct CellTarget {
  uint64_t* first = nullptr;
  size_t stride = 1;
};

// Where a connection is severed: in the conversation of all processes, a frame is one step, because
// a part of it means nothing to its reader, and each cell of a write is one.
struct Severing {
  uint64_t step = 0;
  // Which ends notice a while later. The others notice at once.
  bool connector_is_late = false;
  bool listener_is_late = false;
};

// The network's view of a process.
class Process {
 public:
  virtual ~Process() = default;
  virtual void OnFrameBytes(ConnectionId connection, std::span<const std::byte> bytes) = 0;
  // Returns why a peer with this token is not let in, or "" if it is; OnLinkAccepted then follows.
  virtual std::string WhyRefused(ConnectionId, const transport::TokenClaim&) { return ""; }
  virtual void OnLinkAccepted(ConnectionId) {}
  virtual void OnLinkOpen(ConnectionId connection) = 0;
  virtual void OnLinkLost(ConnectionId connection, const std::string& reason) = 0;
  virtual void OnWriteLanded(ConnectionId connection, uint64_t context) = 0;  // At the writer.
  // Returns where a peer's write of so many cells goes.
  virtual CellTarget Target(ConnectionId connection, wire::RemoteRef ref, uint64_t cells) = 0;
};

// A process that may be stopped. Events wait meanwhile; those of an earlier life are dropped.
class Host {
 public:
  explicit Host(HostIndex index) : index_(index) {}

  HostIndex index() const { return index_; }
  // Counts the lives of the process.
  uint64_t life() const { return life_; }
  bool alive() const { return process_ != nullptr; }
  bool stopped() const { return stopped_; }
  Process* process() const { return process_; }

  void Start(Process* process) {
    process_ = process;
    ++life_;
  }
  void End() {
    process_ = nullptr;
    stopped_ = false;
    ++life_;
    waiting_.clear();
  }
  void Stop() { stopped_ = true; }
  void Continue();
  // Runs `event` now, or when the process goes on; never if this life is over.
  void Deliver(uint64_t life, std::function<void()> event);

 private:
  HostIndex index_;
  uint64_t life_ = 0;
  Process* process_ = nullptr;
  bool stopped_ = false;
  std::deque<std::function<void()>> waiting_;
};

class Network {
 public:
  Network(Timeline* timeline, int64_t delay_max_ns)
      : timeline_(timeline), delay_max_ns_(delay_max_ns) {}

  Host& AddHost();
  Host& host(HostIndex index) { return *hosts_[index]; }
  size_t host_count() const { return hosts_.size(); }
  int64_t Delay();

  // Connects `from`, whose end is named `name`, to `to`; draws the other end's name. With a claim,
  // asks `to` whether it lets the claim's maker in.
  void Connect(HostIndex from, ConnectionId name, HostIndex to,
               const std::optional<transport::TokenClaim>& claim = std::nullopt);
  // From now on nothing lands at `at`, and it gets no events.
  void Close(HostIndex at, ConnectionId name);
  void SendFrame(HostIndex at, ConnectionId name, std::vector<std::byte> bytes);
  // Reads `source` when the bytes arrive, as late as a device may read them, or when the writer's
  // end is closed. The source must not change before that or, with a `context`, before
  // OnWriteLanded.
  void Write(HostIndex at, ConnectionId name, std::function<Cells()> source, wire::RemoteRef target,
             uint64_t context);
  // The owner of the memory at `host` has changed it while writes may read it. It knows that they
  // send what stands there when they read it.
  void MemoryChanged(HostIndex host);
  // The process at `host` is gone. Its peers' ends of connections end now or a little later.
  void EndHost(HostIndex host);

  // The life is over. Drops everything that is under way.
  void Forget() { links_.clear(); }

  // Severs the connection on which this step arrives. The steps before it have arrived, and nothing
  // follows in that direction.
  void SeverAt(const Severing& severing) { severing_ = severing; }
  bool has_severed() const { return has_severed_; }
  // Breaks a connection that is open at both ends. Returns whether there was one. `half`: one end
  // notices soon, the other perhaps much later, and messages in flight to that end still arrive.
  bool BreakSomeLink(bool half);
  // Makes one direction of a connection deliver nothing for `stall_ns`.
  bool StallSomeLink(int64_t stall_ns);
  void Partition(HostIndex a, HostIndex b, int64_t until_ns);
  bool Reachable(HostIndex a, HostIndex b) const;
  // Returns whether the connection is open at both ends.
  bool BothEndsOpen(HostIndex at, ConnectionId name);
  // Returns whether bytes may still land at `at` through one of its connections that `counts`.
  bool WritesUnderWayTo(HostIndex at, const std::function<bool(ConnectionId)>& counts) const;
  // Returns whether an older connection from the peer of `name` is still open at `at`, among those
  // that count.
  bool HearsOlder(HostIndex at, ConnectionId name,
                  const std::function<bool(ConnectionId)>& counts) const;

  // When the last delivered frame was sent.
  int64_t frame_sent_ns() const { return frame_sent_ns_; }

 private:
  struct Message {
    std::vector<std::byte> frame;
    int64_t sent_ns = 0;            // A frame.
    std::function<Cells()> source;  // A write, if set.
    Cells posted;                   // The source's value at the post.
    wire::RemoteRef target;
    uint64_t context = 0;
  };
  struct End {
    HostIndex host = 0;
    uint64_t life = 0;
    ConnectionId name;
    bool open = false;
    bool severed = false;  // Nothing arrives any more.
    int64_t last_arrival_ns = 0;
    int64_t stalled_until_ns = 0;
    std::deque<Message> arriving;  // Towards this end, in order.
  };
  struct Link {
    std::array<End, 2> ends;
    bool broken = false;
  };

  std::pair<std::shared_ptr<Link>, int> Find(HostIndex at, ConnectionId name);
  void Post(const std::shared_ptr<Link>& link, int to, Message message);
  void Arrive(const std::shared_ptr<Link>& link, int to);
  void Accept(const std::shared_ptr<Link>& link, const std::optional<transport::TokenClaim>& claim);
  // Lands the first `cells_max` cells of a write.
  void Land(Link& link, int to, const Message& message, size_t cells_max);
  // Lands the first half of what arrives next, if that is a write.
  void LandHalf(Link& link, int to);
  // Returns whether the connection is severed in this message.
  bool Severs(const std::shared_ptr<Link>& link, int to, const Message& message);
  void CheckSource(const Link& link, int from, const Message& message) const;
  void Stall(const std::shared_ptr<Link>& link, int to, int64_t until_ns);
  static void StopReading(Link& link, int from);
  void TellOfEnd(const std::shared_ptr<Link>& link, int which, const std::string& reason);
  void Break(const std::shared_ptr<Link>& link, const std::string& reason);
  void BreakHalf(const std::shared_ptr<Link>& link);
  std::vector<std::shared_ptr<Link>> OpenLinks() const;
  std::shared_ptr<Link> SomeLink();
  void Lose(const std::shared_ptr<Link>& link, int end, const std::string& reason);

  Timeline* timeline_;
  int64_t delay_max_ns_;
  int64_t frame_sent_ns_ = 0;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::shared_ptr<Link>> links_;
  std::set<std::pair<HostIndex, HostIndex>> partitions_;
  uint64_t next_name_ = 1'000'000;
  std::optional<Severing> severing_;
  uint64_t steps_ = 0;  // Those that have arrived.
  bool has_severed_ = false;
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_NETWORK_H_
