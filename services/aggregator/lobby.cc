// SPDX-License-Identifier: Apache-2.0
#include "services/aggregator/lobby.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "libs/base/counted.h"
#include "libs/telemetry/log.h"

namespace talweg::aggregator {
namespace {

// Returns whether these bytes begin like a frame of any version.
bool LooksLikeFrame(std::span<const std::byte> bytes) {
  return bytes.size() >= wire::kHeaderBytes &&
         std::memcmp(bytes.data(), &wire::kMagic, sizeof wire::kMagic) == 0;
}

}  // namespace

std::string Lobby::WhyOverLimit(const DataPeer& peer) const {
  const std::string bound =
      " has the peer_connections_max=" + std::to_string(options_->peer_connections_max) +
      " connections that one ";
  const std::string place = " may have to aggregator '" + options_->name + "': ";
  if (peer.member) {
    return "node " + std::to_string(peer.member->node.value()) + " of job " +
           std::to_string(peer.member->job.value()) + bound + "member" + place +
           "an agent needs one, and one more where that breaks";
  }
  return (peer.host.empty() ? std::string("this machine") : peer.host) + bound +
         "address without a member's key" + place +
         "raise that option there, if so many agents run on one host";
}

void Lobby::OnAccepted(ConnectionId id, const DataPeer& peer, size_t others_of_peer) {
  Guest& guest = guests_.try_emplace(id).first->second;
  guest.deadline_ns = clock_->NowNs() + options_->hello_timeout_ns;
  guest.peer = peer;
  size_t of_peer = others_of_peer;
  // The oldest of all, and the oldest of the peer, except for the new one.
  std::optional<ConnectionId> oldest;
  std::optional<ConnectionId> oldest_of_peer;
  for (const auto& [other, record] : guests_) {
    const bool is_of_peer = record.peer.IsSame(peer);
    if (is_of_peer) ++of_peer;
    if (other == id) continue;
    if (!oldest) oldest = other;
    if (is_of_peer && !oldest_of_peer) oldest_of_peer = other;
  }
  const size_t of_peer_max = options_->peer_connections_max;
  // A member may connect again before the lobby knows that its old connection broke.
  if (of_peer_max > 0 && of_peer > of_peer_max && (!peer.member || of_peer > 2)) {
    ++totals_->connections_over_limit;
    const std::string text = WhyOverLimit(peer);
    if (oldest_of_peer) return Close(*oldest_of_peer, text);
    guest.over_limit = text;
    return;
  }
  const size_t unproven_max = options_->unproven_connections_max;
  if (unproven_max == 0 || guests_.size() <= unproven_max || !oldest) return;
  ++totals_->connections_over_limit;
  Close(*oldest, "only " + Counted(unproven_max, "connection") +
                     " may not have said whose they are, and it is the oldest");
}

std::optional<wire::Frame> Lobby::OnFrame(ConnectionId id, std::span<const std::byte> bytes) {
  const auto found = guests_.find(id);
  if (found == guests_.end()) return std::nullopt;
  Guest& guest = found->second;
  guest.received_bytes += bytes.size();
  totals_->received_bytes += bytes.size();
  if (guest.is_refused) return std::nullopt;
  auto parsed = wire::ParseFrame(bytes);
  if (const auto* error = std::get_if<wire::ParseError>(&parsed)) {
    OnUnreadable(id, guest, bytes, error->text);
    return std::nullopt;
  }
  wire::Frame& frame = std::get<wire::Frame>(parsed);
  const auto* hellos = std::get_if<std::vector<wire::Hello>>(&frame.entries);
  if (hellos == nullptr || hellos->size() != 1 || !guest.held_hello.empty()) {
    Close(id, std::string("it began with a ") + wire::FrameTypeName(frame.header.type) +
                  ", or went on before its Hello was answered");
    return std::nullopt;
  }
  if (const std::string why = ImpostureOf(id, frame.header, hellos->front()); !why.empty()) {
    ++totals_->impostors;
    Close(id, why);
    return std::nullopt;
  }
  if (!guest.over_limit.empty()) {
    Refuse(id, guest, frame.header.job, frame.header.epoch, wire::WelcomeStatus::kUnknownJob,
           guest.over_limit);
    return std::nullopt;
  }
  return std::move(frame);
}

void Lobby::OnUnreadable(ConnectionId id, Guest& guest, std::span<const std::byte> bytes,
                         const std::string& text) {
  ++totals_->unreadable_frames;
  telemetry::Log(telemetry::LogLevel::kWarning, "connection ", id,
                 " sent bytes that are not a frame: ", text);
  if (LooksLikeFrame(bytes)) {
    Refuse(id, guest, JobId{0}, Epoch{0}, wire::WelcomeStatus::kVersion, text);
  } else {
    Close(id, text);
  }
}

std::string Lobby::ImpostureOf(ConnectionId id, const wire::Header& header,
                               const wire::Hello& hello) const {
  const std::optional<transport::PeerIdentity> proven = transport_->ProvenIdentity(id);
  const transport::PeerIdentity said = {.job = header.job,
                                        .epoch = header.epoch,
                                        .node = hello.member.node,
                                        .incarnation = hello.member.incarnation};
  if (!proven || *proven == said) return "";
  const auto text = [](const transport::PeerIdentity& identity) {
    return "node " + std::to_string(identity.node.value()) + " of job " +
           std::to_string(identity.job.value()) + " in epoch " +
           std::to_string(identity.epoch.value());
  };
  return "it says that it is " + text(said) + ", and its key is of " + text(*proven) +
         (text(said) == text(*proven) ? ", of another incarnation" : "");
}

void Lobby::Hold(ConnectionId id, JobId job, const view::MemberIdentity& member,
                 std::span<const std::byte> hello) {
  const auto other = std::find_if(guests_.begin(), guests_.end(), [&](const auto& entry) {
    const Guest& waits = entry.second;
    return entry.first != id && !waits.held_hello.empty() && waits.held_job == job &&
           waits.held_member == member;
  });
  if (other != guests_.end()) {
    const bool is_newest = other->first < id;
    Close(is_newest ? other->first : id, "the agent has opened a newer connection");
    if (!is_newest) return;
  }
  Guest& guest = guests_.at(id);
  guest.held_hello.assign(hello.begin(), hello.end());
  guest.held_job = job;
  guest.held_member = member;
  guest.deadline_ns = clock_->NowNs() + options_->unknown_job_hold_ns;
}

std::vector<Lobby::Arrival> Lobby::TakeHeld(JobId job) {
  std::vector<Arrival> arrivals;
  for (auto& [id, guest] : guests_) {
    if (guest.held_hello.empty() || guest.held_job != job) continue;
    arrivals.push_back({id, std::exchange(guest.held_hello, {})});
  }
  return arrivals;
}

Lobby::Guest Lobby::Leave(ConnectionId id) {
  const auto found = guests_.find(id);
  Guest guest = std::move(found->second);
  guests_.erase(found);
  return guest;
}

void Lobby::OnTick(int64_t now_ns) {
  std::vector<ConnectionId> late;
  for (const auto& [id, guest] : guests_) {
    if (now_ns >= guest.deadline_ns) late.push_back(id);
  }
  for (const ConnectionId id : late) {
    Guest& guest = guests_.at(id);
    if (guest.is_refused) {
      Close(id, "it was refused");
    } else if (guest.held_hello.empty()) {
      Close(id, "it has not said Hello");
    } else {
      ++totals_->hellos_for_unknown_jobs;
      Refuse(id, guest, guest.held_job, Epoch{0}, wire::WelcomeStatus::kUnknownJob,
             ended_->WhyUnknown(guest.held_job));
    }
  }
}

void Lobby::Refuse(ConnectionId id, Guest& guest, JobId job, Epoch epoch,
                   wire::WelcomeStatus status, std::string text) {
  telemetry::Log(telemetry::LogLevel::kWarning, "connection ", id, " is refused: ", text);
  text.resize(std::min(text.size(), wire::kTextBytesMax));
  wire::FrameWriter writer(wire::FrameType::kWelcome, job, epoch);
  writer.Add(wire::Welcome{
      .status = status, .aggregator = options_->incarnation, .text = std::move(text)});
  transport_->PostFrame(id, writer.Take());
  guest.is_refused = true;
  guest.held_hello.clear();
  guest.deadline_ns = clock_->NowNs() + options_->unknown_job_hold_ns;
}

void Lobby::Close(ConnectionId id, const std::string& reason) {
  telemetry::Log(telemetry::LogLevel::kInfo, "closing connection ", id, ": ", reason);
  transport_->Close(id);
  guests_.erase(id);
}

uint64_t Lobby::ReceivedBytes(ConnectionId id) const {
  const auto found = guests_.find(id);
  return found == guests_.end() ? 0 : found->second.received_bytes;
}

std::vector<ConnectionId> Lobby::ids() const {
  std::vector<ConnectionId> ids;
  for (const auto& [id, guest] : guests_) ids.push_back(id);
  return ids;
}

}  // namespace talweg::aggregator
