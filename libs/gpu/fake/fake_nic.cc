// SPDX-License-Identifier: Apache-2.0
//
// A NIC of the fake machine, which reads and writes GPUs' memory beside their streams.
#include <absl/strings/str_cat.h>

#include <cstring>

#include "libs/base/check.h"
#include "libs/gpu/fake/fake_device.h"
#include "libs/gpu/fake/fake_machine.h"
#include "libs/gpu/fake/world.h"
#include "libs/status/status.h"

namespace talweg::gpu::fake {

absl::StatusOr<NicMemory> FakeDevice::OpenToNic(DeviceSpan span) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_ASSIGN_OR_RETURN(const auto holder, HolderForNic(memory_.map(), span));
  if (!world_.options.opens_to_nics) {
    return absl::UnimplementedError(
        absl::StrCat(Describe(info()), " lets no NIC reach its memory"));
  }
  holder.second->value.memory->open_to_nics = true;
  return NicMemory{.address = span.address, .bytes = span.bytes, .device = static_cast<int>(gpu_)};
}

absl::Status FakeDevice::FlushNicWrites() {
  TALWEG_RETURN_IF_ERROR(Ready());
  world_.host_clock.Merge(world_.nic_writes);
  return absl::OkStatus();
}

absl::Status FakeDevice::ReadNow(std::span<std::byte> target, DeviceSpan source) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.size(), source.bytes));
  TALWEG_ASSIGN_OR_RETURN(const Place from, memory_.Resolve(source));
  world_.host_clock.Tick(kHost);
  world_.Touch(*from.memory, from.offset, from.bytes, AccessKind::kRead, kHost, world_.host_clock,
               "the host");
  std::memcpy(target.data(), from.data(), target.size());
  return absl::OkStatus();
}

absl::Status FakeDevice::WriteNow(DeviceSpan target, std::span<const std::byte> source) {
  TALWEG_RETURN_IF_ERROR(Ready());
  TALWEG_RETURN_IF_ERROR(CheckCopy(target.bytes, source.size()));
  TALWEG_ASSIGN_OR_RETURN(const Place to, memory_.Resolve(target));
  world_.host_clock.Tick(kHost);
  world_.Touch(*to.memory, to.offset, to.bytes, AccessKind::kWrite, kHost, world_.host_clock,
               "the host");
  std::memcpy(to.data(), source.data(), source.size());
  return absl::OkStatus();
}

// Returns the place of a span that was opened with OpenToNic(), or of a part of one.
Place FakeMachine::NicPlace(Device& device, DeviceSpan span) const {
  world_->Advance();
  const auto place = dynamic_cast<FakeDevice&>(device).memory().Resolve(span);
  TALWEG_CHECK(place.ok());
  if (!place->memory->open_to_nics) {
    world_->Violate(absl::StrCat("a NIC is at ", place->memory->name, ", which nobody opened"));
  }
  return *place;
}

void FakeMachine::NicReads(Device& device, DeviceSpan span, std::span<std::byte> target) {
  const Place place = NicPlace(device, span);
  // The read comes after the NIC's own writes, because a read on PCIe pushes earlier writes. The
  // host knows that the read was made, and knows nothing of the writes.
  world_->nic_reads.Tick(kNicReads);
  VectorClock clock = world_->host_clock;
  clock.Merge(world_->nic_reads);
  clock.Merge(world_->nic_writes);
  world_->Touch(*place.memory, place.offset, place.bytes, AccessKind::kRead, kNicReads, clock,
                "a NIC");
  world_->host_clock.Merge(world_->nic_reads);
  TALWEG_CHECK(target.size() == place.bytes);
  std::memcpy(target.data(), place.data(), place.bytes);
}

void FakeMachine::NicWrites(Device& device, DeviceSpan span, std::span<const std::byte> source) {
  const Place place = NicPlace(device, span);
  world_->nic_writes.Merge(world_->host_clock);
  world_->nic_writes.Tick(kNicWrites);
  world_->Touch(*place.memory, place.offset, place.bytes, AccessKind::kWrite, kNicWrites,
                world_->nic_writes, "a NIC");
  TALWEG_CHECK(source.size() == place.bytes);
  std::memcpy(place.data(), source.data(), place.bytes);
}

}  // namespace talweg::gpu::fake
