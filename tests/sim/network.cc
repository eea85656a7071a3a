// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/network.h"

#include <algorithm>

namespace talweg::sim {

void Trace::Add(int64_t now_ns, const std::string& who, const std::string& what) {
  if (!on_) return;
  char time[32];
  std::snprintf(time, sizeof time, "%12.6f ms  ", static_cast<double>(now_ns) / 1e6);
  lines_.push_back(time + who + ": " + what);
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
  // Mostly quick, now and then slow: reorders what travels on different connections.
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

void Network::Connect(HostIndex from, ConnectionId name, HostIndex to) {
  auto link = std::make_shared<Link>();
  link->ends[0] = {.host = from, .life = hosts_[from]->life(), .name = name, .open = true};
  link->ends[1] = {.host = to, .name = ConnectionId{next_name_++}};
  links_.push_back(link);
  timeline_->After(Delay(), [this, link, from, to] {
    if (link->broken || !link->ends[0].open) return;
    Host& peer = *hosts_[to];
    if (!peer.alive() || !Reachable(from, to)) {
      Lose(link, 0, "cannot connect");
      return;
    }
    link->ends[1].life = peer.life();
    link->ends[1].open = true;
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
  end.arriving.push_back(std::move(message));
  end.last_arrival_ns = std::max(end.last_arrival_ns + 1, timeline_->now_ns() + Delay());
  timeline_->At(end.last_arrival_ns, [this, link, to] { Arrive(link, to); });
}

void Network::Land(Link& link, int to, Message& message, bool torn) {
  End& end = link.ends[to];
  Process* process = hosts_[end.host]->process();
  if (process == nullptr || hosts_[end.host]->life() != end.life) return;
  const Cells cells = message.source();
  uint64_t* target = process->Target(end.name, message.target, cells.size());
  if (target == nullptr) return;
  std::copy_n(cells.begin(), torn ? (cells.size() + 1) / 2 : cells.size(), target);
}

void Network::Arrive(const std::shared_ptr<Link>& link, int to) {
  End& end = link->ends[to];
  if (link->broken || !end.open || end.arriving.empty()) return;
  if (!Reachable(link->ends[0].host, link->ends[1].host)) {
    timeline_->After(Delay() + kMillisecond, [this, link, to] { Arrive(link, to); });
    return;
  }
  Message message = std::move(end.arriving.front());
  end.arriving.pop_front();
  if (message.source) {
    // Memory is written whether the target's process runs or not.
    Land(*link, to, message, false);
    const int from = 1 - to;
    timeline_->After(Delay(), [this, link, from, context = message.context] {
      End& writer = link->ends[from];
      if (link->broken || !writer.open) return;
      hosts_[writer.host]->Deliver(writer.life, [this, link, from, context] {
        End& open = link->ends[from];
        if (open.open) hosts_[open.host]->process()->OnWriteLanded(open.name, context);
      });
    });
    return;
  }
  hosts_[end.host]->Deliver(end.life, [this, link, to, frame = std::move(message.frame)] {
    const End& reader = link->ends[to];
    if (reader.open) hosts_[reader.host]->process()->OnFrameBytes(reader.name, frame);
  });
}

void Network::SendFrame(HostIndex at, ConnectionId name, std::vector<std::byte> bytes) {
  auto [link, end] = Find(at, name);
  if (link == nullptr || link->broken) return;
  Post(link, 1 - end, {.frame = std::move(bytes)});
}

void Network::Write(HostIndex at, ConnectionId name, std::function<Cells()> source,
                    wire::RemoteRef target, uint64_t context) {
  auto [link, end] = Find(at, name);
  if (link == nullptr || link->broken) return;
  Post(link, 1 - end, {.source = std::move(source), .target = target, .context = context});
}

void Network::Lose(const std::shared_ptr<Link>& link, int which, const std::string& reason) {
  End& end = link->ends[which];
  if (!end.open) return;
  // The part of a write that had arrived when the connection broke has landed.
  if (!end.arriving.empty() && end.arriving.front().source && timeline_->random().OneIn(2)) {
    Land(*link, which, end.arriving.front(), true);
  }
  end.arriving.clear();
  hosts_[end.host]->Deliver(end.life, [this, link, which, reason] {
    End& lost = link->ends[which];
    if (!lost.open) return;
    lost.open = false;
    hosts_[lost.host]->process()->OnLinkLost(lost.name, reason);
  });
}

void Network::Break(const std::shared_ptr<Link>& link, const std::string& reason) {
  for (int i = 0; i < 2; ++i) {
    timeline_->After(Delay(), [this, link, i, reason] { Lose(link, i, reason); });
  }
  // What is in flight may still arrive until each end has noticed.
}

void Network::Close(HostIndex at, ConnectionId name) {
  auto [link, end] = Find(at, name);
  if (link == nullptr) return;
  link->ends[end].open = false;
  link->ends[end].arriving.clear();
  const int other = 1 - end;
  timeline_->After(Delay(), [this, link = link, other] {
    // Behind what had been sent before, unless that is lost with the connection.
    const int64_t at_ns = timeline_->random().OneIn(2) ? 0 : link->ends[other].last_arrival_ns + 1;
    timeline_->At(at_ns, [this, link, other] { Lose(link, other, "closed by the peer"); });
  });
}

void Network::EndHost(HostIndex host) {
  const uint64_t life = hosts_[host]->life();
  for (const std::shared_ptr<Link>& link : links_) {
    for (int i = 0; i < 2; ++i) {
      End& end = link->ends[i];
      if (end.host != host || end.life != life || !end.open) continue;
      end.open = false;
      const int other = 1 - i;
      timeline_->After(Delay(), [this, link, other] { Lose(link, other, "the peer has ended"); });
    }
  }
  std::erase_if(links_, [](const std::shared_ptr<Link>& link) {
    return !link->ends[0].open && !link->ends[1].open;
  });
}

bool Network::BreakSomeLink() {
  std::vector<std::shared_ptr<Link>> open;
  for (const std::shared_ptr<Link>& link : links_) {
    if (link->ends[0].open && link->ends[1].open) open.push_back(link);
  }
  if (open.empty()) return false;
  Break(open[timeline_->random().Below(open.size())], "the connection broke");
  return true;
}

}  // namespace talweg::sim
