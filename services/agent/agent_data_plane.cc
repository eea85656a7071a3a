// SPDX-License-Identifier: Apache-2.0
#include "services/agent/agent_data_plane.h"

#include <algorithm>
#include <type_traits>
#include <variant>

#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/base/shown_address.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"

namespace talweg::agent {

AgentDataPlane::AgentDataPlane(const Options& options, transport::Transport* transport,
                               const TensorMemory* memory, Timeline* timeline,
                               const runtime::Clock* clock, PeerEvents* events)
    : options_(options),
      transport_(transport),
      memory_(memory),
      timeline_(timeline),
      clock_(clock),
      events_(events) {}

int AgentDataPlane::Poll(int events_max) {
  int work = 0;
  if (!failed_connects_.empty()) {
    for (const auto& [connection, reason] : std::exchange(failed_connects_, {})) {
      events_->OnPeerDisconnected(connection, reason);
      ++work;
    }
  }
  return work + transport_->Poll(*this, events_max);
}

void AgentDataPlane::Do(const pipeline::Connect& effect) {
  const bool same_host = options_.local_transport && !network_only_ && !options_.host_id.empty() &&
                         effect.host_id == options_.host_id;
  const std::string address = transport::SelectAddress(effect.data_address, same_host);
  if (address.empty()) {
    failed_connects_.emplace_back(effect.connection, "aggregator '" + effect.name +
                                                         "' offers no address that this agent can "
                                                         "connect to: '" +
                                                         ShownAddress(effect.data_address) + "'");
    return;
  }
  const std::string host = transport::HostOf(address);
  if (host.empty() || runtime::IsLiteralAddress(host)) {
    ConnectTo(effect.connection, address);
    return;
  }
  looked_up_[effect.connection] = address;
  lookup_.Start(host, [this, connection = effect.connection](absl::StatusOr<std::string> literal) {
    options_.host_found(connection, std::move(literal));
  });
}

void AgentDataPlane::OnHostFound(ConnectionId connection,
                                 const absl::StatusOr<std::string>& literal) {
  const auto wanted = looked_up_.find(connection);
  if (wanted == looked_up_.end()) return;  // Closed meanwhile.
  const std::string address = std::move(wanted->second);
  looked_up_.erase(wanted);
  if (literal.ok()) {
    ConnectTo(connection, transport::WithHost(address, *literal));
  } else {
    events_->OnPeerDisconnected(connection, std::string(literal.status().message()));
  }
}

void AgentDataPlane::ConnectTo(ConnectionId connection, const std::string& address) {
  const absl::StatusOr<ConnectionId> transport_id = transport_->Connect(address);
  if (!transport_id.ok()) {
    failed_connects_.emplace_back(connection, status::StatusText(transport_id.status()));
    return;
  }
  Peer peer{.transport_id = *transport_id};
  peer.traffic.transport = address.substr(0, address.find("://"));
  if (address.starts_with("local")) peer.traffic.transport = "local";
  peers_[connection] = peer;
  core_names_[*transport_id] = connection;
}

void AgentDataPlane::Do(const pipeline::Close& effect) {
  if (looked_up_.erase(effect.connection) > 0) return;
  const auto it = peers_.find(effect.connection);
  if (it == peers_.end()) {
    std::erase_if(failed_connects_,
                  [&](const auto& failed) { return failed.first == effect.connection; });
    return;
  }
  const ConnectionId transport_id = it->second.transport_id;
  transport_->Close(transport_id);
  Forget(effect.connection, transport_id);
}

bool AgentDataPlane::AnyLocal() const {
  return std::any_of(peers_.begin(), peers_.end(),
                     [](const auto& peer) { return peer.second.traffic.transport == "local"; });
}

void AgentDataPlane::Forget(ConnectionId core_id, ConnectionId transport_id) {
  peers_.erase(core_id);
  core_names_.erase(transport_id);
}

void AgentDataPlane::CloseAll() {
  for (const auto& [name, peer] : peers_) transport_->Close(peer.transport_id);
  peers_.clear();
  core_names_.clear();
  looked_up_.clear();
}

bool AgentDataPlane::Drained() const {
  for (const auto& [name, peer] : peers_) {
    if (transport_->PendingBytes(peer.transport_id) > 0) return false;
  }
  return true;
}

void AgentDataPlane::PostFrame(ConnectionId connection, std::vector<std::byte> frame) {
  const auto it = peers_.find(connection);
  if (it == peers_.end()) return;  // The core is being told that the connection has ended.
  bytes_sent_ += frame.size();
  it->second.traffic.bytes_sent += frame.size();
  transport_->PostFrame(it->second.transport_id, std::move(frame));
}

template <typename Entry>
void AgentDataPlane::PostEntries(const pipeline::Send& send, std::vector<Entry>& entries) {
  // Each frame of a report, except for the last, says that more follows.
  const bool is_report = std::is_same_v<Entry, wire::Report>;
  size_t first = 0;
  while (first < entries.size()) {
    wire::FrameWriter writer(send.type, send.job, send.epoch,
                             send.more_wait ? wire::kFlagMore : uint8_t{0});
    size_t next = first;
    while (next < entries.size() && writer.Add(entries[next])) ++next;
    TALWEG_CHECK(next > first);
    if (is_report && next < entries.size()) {
      writer = wire::FrameWriter(send.type, send.job, send.epoch, wire::kFlagMore);
      for (size_t i = first; i < next; ++i) TALWEG_CHECK(writer.Add(entries[i]));
    }
    first = next;
    PostFrame(send.connection, writer.Take());
  }
}

absl::StatusOr<std::span<const std::byte>> AgentDataPlane::InlineBytes(
    const pipeline::SliceBytes& slice, std::deque<std::vector<std::byte>>& fetched) const {
  if (!memory_->OnNic(slice)) return memory_->Readable(slice);
  std::vector<std::byte>& bytes = fetched.emplace_back(slice.length_bytes);
  TALWEG_RETURN_IF_ERROR(options_.fetch_result(slice, bytes));
  return std::span<const std::byte>(bytes);
}

void AgentDataPlane::Do(pipeline::Send& send) {
  std::deque<std::vector<std::byte>> fetched;
  if (auto* declares = std::get_if<std::vector<wire::Declare>>(&send.entries)) {
    for (size_t i = 0; i < declares->size(); ++i) {
      (*declares)[i].result = memory_->ResultRefs(send.tensors[i]);
    }
  } else if (auto* contributions = std::get_if<std::vector<wire::Contribute>>(&send.entries)) {
    const int64_t now_ns = clock_->NowNs();
    for (size_t i = 0; i < contributions->size(); ++i) {
      wire::Contribute& entry = (*contributions)[i];
      if (entry.form == wire::Form::kInline) {
        const auto bytes = InlineBytes(send.sources[i], fetched);
        if (!bytes.ok()) return;  // The GPU is lost, and this agent ends.
        entry.bytes = *bytes;
      } else if (entry.form == wire::Form::kDisagreement) {
        entry.bytes = std::as_bytes(std::span(send.texts[i]));
      }
      if (timeline_->Wants(entry.round)) {
        timeline_->OnSent(send.sources[i].tensor, entry.round, now_ns);
      }
    }
  }
  telemetry::Log(telemetry::LogLevel::kDebug, "sends ", wire::FrameTypeName(send.type),
                 " of epoch ", send.epoch, " to connection ", send.connection);
  std::visit(
      [&](auto& entries) {
        if constexpr (std::is_same_v<std::decay_t<decltype(entries)>, std::monostate>) {
          PostFrame(send.connection, wire::FrameWriter(send.type, send.job, send.epoch).Take());
        } else {
          PostEntries(send, entries);
        }
      },
      send.entries);
}

void AgentDataPlane::Do(const pipeline::WriteSlice& effect) {
  const auto it = peers_.find(effect.connection);
  if (it == peers_.end()) return;
  const uint64_t context =
      timeline_->Wants(effect.source.round) ? uint64_t{effect.source.tensor.value()} + 1 : 0;
  bytes_sent_ += effect.source.length_bytes;
  it->second.traffic.bytes_sent += effect.source.length_bytes;
  transport_->PostWrite(it->second.transport_id, memory_->RegionOf(effect.source), effect.target,
                        context);
}

AgentDataPlane::Traffic AgentDataPlane::TrafficOf(ConnectionId connection) const {
  const auto it = peers_.find(connection);
  return it == peers_.end() ? Traffic{} : it->second.traffic;
}

std::optional<ConnectionId> AgentDataPlane::TransportNameOf(ConnectionId connection) const {
  const auto it = peers_.find(connection);
  if (it == peers_.end()) return std::nullopt;
  return it->second.transport_id;
}

void AgentDataPlane::OnAccepted(ConnectionId connection) {
  // Agents do not listen, so nobody may connect to one.
  transport_->Close(connection);
}

void AgentDataPlane::OnConnected(ConnectionId connection) {
  const auto it = core_names_.find(connection);
  if (it != core_names_.end()) events_->OnPeerConnected(it->second);
}

void AgentDataPlane::OnDisconnected(ConnectionId connection, const std::string& reason) {
  const auto it = core_names_.find(connection);
  if (it == core_names_.end()) return;
  const ConnectionId name = it->second;
  Forget(name, connection);
  events_->OnPeerDisconnected(name, reason);
}

void AgentDataPlane::OnFrame(ConnectionId connection, std::span<const std::byte> bytes) {
  const auto it = core_names_.find(connection);
  if (it == core_names_.end()) return;
  const ConnectionId name = it->second;
  Traffic& traffic = peers_.at(name).traffic;
  traffic.bytes_received += bytes.size();
  bytes_received_ += bytes.size();
  const auto parsed = wire::ParseFrame(bytes);
  if (const auto* error = std::get_if<wire::ParseError>(&parsed)) {
    ++bad_frames_;
    transport_->Close(connection);
    Forget(name, connection);
    events_->OnPeerDisconnected(name, "it sent bytes that are not a frame: " + error->text);
    return;
  }
  const wire::Frame& frame = std::get<wire::Frame>(parsed);
  telemetry::Log(telemetry::LogLevel::kDebug, "received ", wire::FrameTypeName(frame.header.type),
                 " of ", Counted(bytes.size(), "byte"), ", with ", frame.header.entry_count,
                 " entries, from connection ", name);
  events_->OnPeerFrame(name, frame);
}

void AgentDataPlane::OnWriteDone(ConnectionId /*connection*/, uint64_t context) {
  if (context == 0) return;
  timeline_->OnWriteDone(pipeline::TensorIndex{static_cast<uint32_t>(context - 1)},
                         clock_->NowNs());
}

}  // namespace talweg::agent
