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

// One for every process that ever was place; a restarted process keeps it.
using HostIndex = uint32_t;

// Memory is one number for every 64 bytes: enough to see what was summed, twice, or not at all,
// and whether it lies where it belongs.
using Cells = std::vector<uint64_t>;
inline constexpr uint64_t kCellBytes = 64;
inline uint64_t CellCount(uint64_t bytes) { return (bytes + kCellBytes - 1) / kCellBytes; }

// Where the cells of a write go: one in so many numbers. Null where nobody has registered that.
struct CellTarget {
  uint64_t* first = nullptr;
  size_t stride = 1;
};

// What a process is to the network.
class Process {
 public:
  virtual ~Process() = default;
  virtual void OnFrameBytes(ConnectionId connection, std::span<const std::byte> bytes) = 0;
  // Why somebody who shows this token is not let in; "": OnLinkAccepted follows.
  virtual std::string WhyRefused(ConnectionId, const transport::TokenClaim&) { return ""; }
  virtual void OnLinkAccepted(ConnectionId) {}
  virtual void OnLinkOpen(ConnectionId connection) = 0;
  virtual void OnLinkLost(ConnectionId connection, const std::string& reason) = 0;
  virtual void OnWriteLanded(ConnectionId connection, uint64_t context) = 0;  // At the writer.
  // Where a peer's write of so many cells goes.
  virtual CellTarget Target(ConnectionId connection, wire::RemoteRef ref, uint64_t cells) = 0;
};

// A process that may be stopped, and whose events wait meanwhile; gone events are dropped.
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
  // Runs `event` now, or when the process goes on; never if this life of it is over.
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

  // From `from`, which has named its end; the other end's name is drawn here. With a claim it is
  // asked whether it lets its maker in.
  void Connect(HostIndex from, ConnectionId name, HostIndex to,
               const std::optional<transport::TokenClaim>& claim = std::nullopt);
  // Nothing lands at, and nothing is told to, `at` from now on.
  void Close(HostIndex at, ConnectionId name);
  void SendFrame(HostIndex at, ConnectionId name, std::vector<std::byte> bytes);
  // `source` is read when the bytes arrive, as late as a device may read them, or when the writer's
  // end is closed. It must not change before that; with a `context` (then OnWriteLanded is told),
  // before that has been told.
  void Write(HostIndex at, ConnectionId name, std::function<Cells()> source, wire::RemoteRef target,
             uint64_t context);
  // The process at `host` is gone: its connections end, now or a little later, at the others.
  void EndHost(HostIndex host);

  // Life is over: what is still under way goes nowhere.
  void Forget() { links_.clear(); }

  // Breaks one connection that both ends believe in; whether there was one. `half`: one end notices
  // soon, the other one perhaps much later, and what is in flight to that one goes on arriving.
  bool BreakSomeLink(bool half);
  // One direction of a connection delivers nothing for so long.
  bool StallSomeLink(int64_t stall_ns);
  void Partition(HostIndex a, HostIndex b, int64_t until_ns);
  bool Reachable(HostIndex a, HostIndex b) const;
  // Whether both ends of it believe in it.
  bool BothEndsOpen(HostIndex at, ConnectionId name);
  // Whether bytes may yet land at `at` through a connection of it that `counts`.
  bool WritesUnderWayTo(HostIndex at, const std::function<bool(ConnectionId)>& counts) const;
  // Whether `at` still listens to an older connection of the peer of `name`, of those that count.
  bool HearsOlder(HostIndex at, ConnectionId name,
                  const std::function<bool(ConnectionId)>& counts) const;

  // When the frame was sent that was delivered last.
  int64_t frame_sent_ns() const { return frame_sent_ns_; }

 private:
  struct Message {
    std::vector<std::byte> frame;
    int64_t sent_ns = 0;            // A frame.
    std::function<Cells()> source;  // A write, if set.
    Cells posted;                   // What it was then.
    wire::RemoteRef target;
    uint64_t context = 0;
  };
  struct End {
    HostIndex host = 0;
    uint64_t life = 0;
    ConnectionId name;
    bool open = false;
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
  void Land(Link& link, int to, const Message& message, bool torn);
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
};

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_NETWORK_H_
