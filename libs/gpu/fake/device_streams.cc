// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/device_streams.h"

#include <absl/strings/str_cat.h>

#include <utility>

namespace talweg::gpu::fake {

StreamId DeviceStreams::New(size_t gpu, StreamPriority priority) {
  const Actor actor = world_.timeline.NewStream(gpu, priority);
  actors_.insert(actor);
  streams_[StreamId(actor)];
  return StreamId(actor);
}

void DeviceStreams::Destroy(StreamId stream) {
  if (streams_.erase(stream) != 0) world_.timeline.Close(stream.value());
}

absl::Status DeviceStreams::Check(StreamId stream) const {
  if (Has(stream)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("no stream ", stream.value(), " on this device"));
}

void DeviceStreams::Reserve(StreamId stream, bool reserved) {
  const auto at = streams_.find(stream);
  if (at != streams_.end()) at->second.reserved = reserved;
}

void DeviceStreams::Post(StreamId stream, Work work, const std::vector<Access>& accesses,
                         const std::string& what) {
  Stream& on = streams_.at(stream);
  const Actor actor = stream.value();
  if (on.reserved) {
    world_.Violate(absl::StrCat("posts ", what, " to stream ", actor,
                                " before its communicator is ready again"));
  }
  on.clock.Merge(world_.host_clock);
  on.clock.Tick(actor);
  const std::string who = absl::StrCat(what, " (stream ", actor, ")");
  for (const Access& access : accesses) {
    world_.Touch(*access.place.memory, access.place.offset, access.place.bytes, access.kind, actor,
                 on.clock, who);
  }
  world_.timeline.Post(actor, std::move(work));
}

void DeviceStreams::CheckUnused(const Memory& memory, const char* doing) const {
  const auto unfinished = memory.log.Unfinished(
      world_.host_clock, [this](Actor actor) { return actors_.contains(actor); });
  if (unfinished) {
    world_.Violate(
        absl::StrCat(doing, " ", memory.name, " while ", unfinished->what, " may still use it"));
  }
}

void DeviceStreams::CheckEnds(const std::string& doing) const {
  for (const Actor actor : actors_) {
    const char* const why = world_.timeline.MayNeverEnd(actor, actors_);
    if (why != nullptr) {
      world_.Violate(
          absl::StrCat(doing, ", which waits for stream ", actor, ", and that for ", why));
    }
  }
}

void DeviceStreams::Stop() {
  for (const Actor actor : actors_) world_.timeline.Drop(actor);
  for (const auto& [id, stream] : streams_) stopped_.Merge(stream.clock);
  streams_.clear();
}

void DeviceStreams::Drop() {
  for (const Actor actor : actors_) world_.timeline.Drop(actor);
  world_.host_clock.Merge(stopped_);
}

}  // namespace talweg::gpu::fake
