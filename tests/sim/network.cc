// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/network.h"

#include <algorithm>

#include "tests/sim/ledger.h"

namespace talweg::sim {

void Trace::Add(int64_t now_ns, const std::string& who, const std::string& what) {
  if (!on_) return;
  char time[32];
  std::snprintf(time, sizeof time, "%12.6f ms  ", static_cast<double>(now_ns) / 1e6);
  lines_.push_back(time + who + ": " + what);
}

void Trace::AddLog(int64_t now_ns, const std::string& text) {
  if (text.find("declarations were refused") != std::string::npos) {
    Reached("a connection closed, as too much of it was refused");
  }
  if (on_) Add(now_ns, speaker_ != nullptr ? *speaker_ : "somebody", text);
}

void Host::Continue() {
  stopped_ = false;
  while (!waiting_.empty() && !stopped_) {
    std::function<void()> event = std::move(waiting_.front());
    waiting_.pop_front();
    event();
  }
}

void Host::Deliver(uint64_t life, std::function<void()> event) {
  if (life != life_ || process_ == nullptr) return;
  if (stopped_) {
    waiting_.push_back([this, life, event = std::move(event)] {
      if (life == life_) event();
    });
    return;
  }
  event();
}

Host& Network::AddHost() {
  hosts_.push_back(std::make_unique<Host>(static_cast<HostIndex>(hosts_.size())));
  return *hosts_.back();
}

int64_t Network::Delay() {
  // Delays are mostly short and now and then long. Frames on different connections overtake each
  // other.
  Random& random = timeline_->random();
  const int64_t most = random.OneIn(8) ? delay_max_ns_ : delay_max_ns_ / 8 + 1;
  return 1 + static_cast<int64_t>(random.Below(static_cast<uint64_t>(most)));
}

bool Network::Reachable(HostIndex a, HostIndex b) const {
  return !partitions_.contains({std::min(a, b), std::max(a, b)});
}

void Network::Partition(HostIndex a, HostIndex b, int64_t until_ns) {
  const std::pair<HostIndex, HostIndex> pair{std::min(a, b), std::max(a, b)};
  partitions_.insert(pair);
  timeline_->At(until_ns, [this, pair] { partitions_.erase(pair); });
}

std::pair<std::shared_ptr<Network::Link>, int> Network::Find(HostIndex at, ConnectionId name) {
  const uint64_t life = hosts_[at]->life();
  for (const std::shared_ptr<Link>& link : links_) {
    for (int i = 0; i < 2; ++i) {
      const End& end = link->ends[i];
      if (end.host == at && end.name == name && end.life == life && end.open) return {link, i};
    }
  }
  return {nullptr, 0};
}

void Network::Accept(const std::shared_ptr<Link>& link,
                     const std::optional<transport::TokenClaim>& claim) {
  End& accepted = link->ends[1];
  if (!accepted.open) return;
  Process* const process = hosts_[accepted.host]->process();
  const std::string why = claim ? process->WhyRefused(accepted.name, *claim) : "";
  if (why.empty()) return process->OnLinkAccepted(accepted.name);
  accepted.open = false;
  accepted.arriving.clear();
  timeline_->After(Delay(), [this, link, why] { Lose(link, 0, "it refused: " + why); });
}

void Network::Connect(HostIndex from, ConnectionId name, HostIndex to,
                      const std::optional<transport::TokenClaim>& claim) {
  auto link = std::make_shared<Link>();
  link->ends[0] = {.host = from, .life = hosts_[from]->life(), .name = name, .open = true};
  link->ends[1] = {.host = to, .name = ConnectionId{next_name_++}};
  links_.push_back(link);
  timeline_->After(Delay(), [this, link, from, to, claim] {
    if (link->broken || !link->ends[0].open) return;
    Host& peer = *hosts_[to];
    if (!peer.alive() || !Reachable(from, to)) {
      Lose(link, 0, "cannot connect");
      return;
    }
    link->ends[1].life = peer.life();
    link->ends[1].open = true;
    peer.Deliver(peer.life(), [this, link, claim] { Accept(link, claim); });
    timeline_->After(Delay(), [this, link, from] {
      if (link->broken || !link->ends[0].open) return;
      Host& host = *hosts_[from];
      host.Deliver(link->ends[0].life, [this, link] {
        if (link->ends[0].open) {
          hosts_[link->ends[0].host]->process()->OnLinkOpen(link->ends[0].name);
        }
      });
    });
  });
}

void Network::Post(const std::shared_ptr<Link>& link, int to, Message message) {
  End& end = link->ends[to];
  if (end.severed) return;
  end.arriving.push_back(std::move(message));
  end.last_arrival_ns = std::max(end.last_arrival_ns + 1, timeline_->now_ns() + Delay());
  timeline_->At(end.last_arrival_ns, [this, link, to] { Arrive(link, to); });
}

void Network::LandHalf(Link& link, int to) {
  if (link.ends[to].arriving.empty() || !link.ends[to].arriving.front().source) return;
  if (severing_ || !timeline_->random().OneIn(2)) return;
  const Message& next = link.ends[to].arriving.front();
  Land(link, to, next, (next.posted.size() + 1) / 2);
}

bool Network::Severs(const std::shared_ptr<Link>& link, int to, const Message& message) {
  if (!severing_ || has_severed_) return false;
  const uint64_t before = steps_;
  steps_ += message.source ? message.posted.size() : 1;
  if (steps_ <= severing_->step) return false;
  has_severed_ = true;
  if (message.source) Land(*link, to, message, severing_->step - before);
  link->ends[to].severed = true;
  link->ends[to].arriving.clear();
  constexpr int64_t kLateNs = 300 * kMillisecond;
  const int64_t late_ns[] = {severing_->connector_is_late ? kLateNs : 0,
                             severing_->listener_is_late ? kLateNs : 0};
  for (int i = 0; i < 2; ++i) {
    timeline_->After(Delay() + late_ns[i],
                     [this, link, i] { Lose(link, i, "the connection was severed"); });
  }
  return true;
}

void Network::Land(Link& link, int to, const Message& message, size_t cells_max) {
  End& end = link.ends[to];
  Process* process = hosts_[end.host]->process();
  if (process == nullptr || hosts_[end.host]->life() != end.life) return;
  CheckSource(link, 1 - to, message);
  const Cells cells = message.source();
  const CellTarget target = process->Target(end.name, message.target, cells.size());
  if (target.first == nullptr) return;
  const size_t count = std::min(cells.size(), cells_max);
  for (size_t i = 0; i < count; ++i) target.first[i * target.stride] = cells[i];
}

// Checks that memory does not change until a write that reads it is over.
void Network::CheckSource(const Link& link, int from, const Message& message) const {
  const End& writer = link.ends[from];
  if (!writer.open || message.source() == message.posted) return;
  throw Violation{"host " + std::to_string(writer.host) +
                  ": memory changed while a write still reads it"};
}

// The writer has closed its end. Whoever holds its posted messages now has read its memory.
void Network::StopReading(Link& link, int from) {
  for (Message& message : link.ends[1 - from].arriving) {
    if (message.source) message.source = [cells = message.source()] { return cells; };
  }
}

void Network::Stall(const std::shared_ptr<Link>& link, int to, int64_t until_ns) {
  link->ends[to].stalled_until_ns = std::max(link->ends[to].stalled_until_ns, until_ns);
}

void Network::Arrive(const std::shared_ptr<Link>& link, int to) {
  End& end = link->ends[to];
  if (link->broken || !end.open || end.arriving.empty()) return;
  if (end.stalled_until_ns > timeline_->now_ns()) {
    timeline_->At(end.stalled_until_ns, [this, link, to] { Arrive(link, to); });
    return;
  }
  if (!Reachable(link->ends[0].host, link->ends[1].host)) {
    timeline_->After(Delay() + kMillisecond, [this, link, to] { Arrive(link, to); });
    return;
  }
  const Message message = std::move(end.arriving.front());
  end.arriving.pop_front();
  if (Severs(link, to, message)) return;
  if (message.source) {
    // A write lands whether the target's process runs or not.
    Land(*link, to, message, message.posted.size());
  }
  LandHalf(*link, to);  // A part of the next write may have landed too.
  if (message.source) {
    if (message.context == 0) return;
    const int from = 1 - to;
    timeline_->After(Delay(), [this, link, from, message] {
      const End& writer = link->ends[from];
      if (link->broken || !writer.open) return;
      hosts_[writer.host]->Deliver(writer.life, [this, link, from, message] {
        CheckSource(*link, from, message);
        const End& open = link->ends[from];
        if (open.open) hosts_[open.host]->process()->OnWriteLanded(open.name, message.context);
      });
    });
    return;
  }
  hosts_[end.host]->Deliver(end.life, [this, link, to, message] {
    const End& reader = link->ends[to];
    if (!reader.open) return;
    frame_sent_ns_ = message.sent_ns;
    hosts_[reader.host]->process()->OnFrameBytes(reader.name, message.frame);
  });
}

void Network::SendFrame(HostIndex at, ConnectionId name, std::vector<std::byte> bytes) {
  auto [link, end] = Find(at, name);
  if (link == nullptr || link->broken) return;
  Post(link, 1 - end, {.frame = std::move(bytes), .sent_ns = timeline_->now_ns()});
}

void Network::Write(HostIndex at, ConnectionId name, std::function<Cells()> source,
                    wire::RemoteRef target, uint64_t context) {
  auto [link, end] = Find(at, name);
  if (link == nullptr || link->broken) return;
  Cells posted = source();
  Post(link, 1 - end,
       {.source = std::move(source),
        .posted = std::move(posted),
        .target = target,
        .context = context});
}

void Network::MemoryChanged(HostIndex host) {
  for (const std::shared_ptr<Link>& link : links_) {
    for (int i = 0; i < 2; ++i) {
      const End& writer = link->ends[i];
      if (writer.host != host || !writer.open) continue;
      for (Message& message : link->ends[1 - i].arriving) {
        if (message.source) message.posted = message.source();
      }
    }
  }
}

void Network::Lose(const std::shared_ptr<Link>& link, int which, const std::string& reason) {
  End& end = link->ends[which];
  if (!end.open) return;
  LandHalf(*link, which);  // The part of a write that arrived before the connection broke.
  end.arriving.clear();
  hosts_[end.host]->Deliver(end.life, [this, link, which, reason] {
    End& lost = link->ends[which];
    if (!lost.open) return;
    StopReading(*link, which);
    lost.open = false;
    hosts_[lost.host]->process()->OnLinkLost(lost.name, reason);
  });
}

// News of the peer's end travels as everything else does.
void Network::TellOfEnd(const std::shared_ptr<Link>& link, int which, const std::string& reason) {
  const End& end = link->ends[which];
  if (!end.open) return;
  const bool reachable = Reachable(link->ends[0].host, link->ends[1].host);
  if (reachable && end.stalled_until_ns <= timeline_->now_ns()) return Lose(link, which, reason);
  const int64_t at_ns =
      std::max(end.stalled_until_ns, timeline_->now_ns() + (reachable ? 0 : 20 * kMillisecond));
  timeline_->At(at_ns, [this, link, which, reason] { TellOfEnd(link, which, reason); });
}

void Network::Break(const std::shared_ptr<Link>& link, const std::string& reason) {
  for (int i = 0; i < 2; ++i) {
    timeline_->After(Delay(), [this, link, i, reason] { Lose(link, i, reason); });
  }
  // Messages in flight may still arrive until each end has noticed.
}

void Network::BreakHalf(const std::shared_ptr<Link>& link) {
  Random& random = timeline_->random();
  // Mostly the side that connects is the first to notice. The other side often notices only after
  // the first may have connected again.
  const int first = random.OneIn(4) ? 1 : 0;
  constexpr int64_t kReconnectNs = 50 * kMillisecond;
  const int64_t most_ns = random.OneIn(4) ? kSecond : kReconnectNs + 60 * delay_max_ns_;
  const auto below = [&random](int64_t ns) {
    return static_cast<int64_t>(random.Below(static_cast<uint64_t>(ns) + 1));
  };
  const int64_t late_ns = kReconnectNs + below(most_ns);
  Stall(link, 1 - first, timeline_->now_ns() + std::max(below(late_ns), below(late_ns)));
  timeline_->After(Delay(), [this, link, first] { Lose(link, first, "the connection broke"); });
  timeline_->After(
      late_ns, [this, link, first] { Lose(link, 1 - first, "the connection broke a while ago"); });
}

void Network::Close(HostIndex at, ConnectionId name) {
  auto [link, end] = Find(at, name);
  if (link == nullptr) return;
  StopReading(*link, end);
  link->ends[end].open = false;
  link->ends[end].arriving.clear();
  const int other = 1 - end;
  timeline_->After(Delay(), [this, link = link, other] {
    // The news comes after everything that was sent before, unless that is lost with the
    // connection.
    const int64_t at_ns = timeline_->random().OneIn(2) ? 0 : link->ends[other].last_arrival_ns + 1;
    timeline_->At(at_ns, [this, link, other] { TellOfEnd(link, other, "closed by the peer"); });
  });
}

void Network::EndHost(HostIndex host) {
  const uint64_t life = hosts_[host]->life();
  for (const std::shared_ptr<Link>& link : links_) {
    for (int i = 0; i < 2; ++i) {
      End& end = link->ends[i];
      if (end.host != host || end.life != life || !end.open) continue;
      StopReading(*link, i);
      end.open = false;
      const int other = 1 - i;
      timeline_->After(Delay(),
                       [this, link, other] { TellOfEnd(link, other, "the peer has ended"); });
    }
  }
  std::erase_if(links_, [](const std::shared_ptr<Link>& link) {
    return !link->ends[0].open && !link->ends[1].open;
  });
}

bool Network::BothEndsOpen(HostIndex at, ConnectionId name) {
  const auto [link, end] = Find(at, name);
  return link != nullptr && !link->broken && link->ends[1 - end].open;
}

std::vector<std::shared_ptr<Network::Link>> Network::OpenLinks() const {
  std::vector<std::shared_ptr<Link>> open;
  for (const std::shared_ptr<Link>& link : links_) {
    if (link->ends[0].open && link->ends[1].open) open.push_back(link);
  }
  return open;
}

// Mostly picks a link with bytes in flight, where a fault does the most harm.
std::shared_ptr<Network::Link> Network::SomeLink() {
  std::vector<std::shared_ptr<Link>> open = OpenLinks();
  if (open.empty()) return nullptr;
  const auto is_idle = [](const std::shared_ptr<Link>& link) {
    for (const End& end : link->ends) {
      for (const Message& message : end.arriving) {
        if (message.source) return false;
      }
    }
    return true;
  };
  if (!timeline_->random().OneIn(4) && !std::all_of(open.begin(), open.end(), is_idle)) {
    std::erase_if(open, is_idle);
  }
  return open[timeline_->random().Below(open.size())];
}

bool Network::BreakSomeLink(bool half) {
  const std::shared_ptr<Link> link = SomeLink();
  if (link == nullptr) return false;
  if (half) {
    BreakHalf(link);
  } else {
    Break(link, "the connection broke");
  }
  return true;
}

bool Network::StallSomeLink(int64_t stall_ns) {
  const std::shared_ptr<Link> link = SomeLink();
  if (link == nullptr) return false;
  Stall(link, static_cast<int>(timeline_->random().Below(2)), timeline_->now_ns() + stall_ns);
  return true;
}

bool Network::WritesUnderWayTo(HostIndex at,
                               const std::function<bool(ConnectionId)>& counts) const {
  for (const std::shared_ptr<Link>& link : links_) {
    for (const End& end : link->ends) {
      if (end.host != at || !end.open || end.life != hosts_[at]->life()) continue;
      const bool is_written = std::any_of(end.arriving.begin(), end.arriving.end(),
                                          [](const Message& m) { return m.source != nullptr; });
      if (is_written && counts(end.name)) return true;
    }
  }
  return false;
}

bool Network::HearsOlder(HostIndex at, ConnectionId name,
                         const std::function<bool(ConnectionId)>& counts) const {
  const Link* newest = nullptr;
  int side = 0;
  for (auto it = links_.rbegin(); it != links_.rend(); ++it) {
    for (int i = 0; i < 2; ++i) {
      const End& end = (*it)->ends[i];
      const End& peer = (*it)->ends[1 - i];
      if (end.host != at || end.life != hosts_[at]->life() || !end.open) continue;
      if (newest == nullptr) {
        if (end.name != name) continue;
        newest = it->get();
        side = i;
      } else if (newest->ends[1 - side].host == peer.host &&
                 newest->ends[1 - side].life == peer.life && counts(end.name)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace talweg::sim
