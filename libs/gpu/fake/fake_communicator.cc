// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/fake_communicator.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "libs/base/check.h"
#include "libs/gpu/kernels/reduce_plan.h"
#include "libs/status/status.h"

namespace talweg::gpu::fake {

FakeCommunicator::FakeCommunicator(World& world, std::vector<FakeDevice*> devices)
    : world_(world),
      devices_(std::move(devices)),
      ready_ns_(world.clock.NowNs() + world.options.costs.communicator_start_ns) {
  if (world_.collective_fault == CollectiveFault::kStartFails) {
    world_.collective_fault = CollectiveFault::kNone;
    Fail("the communicator did not start");
  }
}

void FakeCommunicator::Fail(const char* why) {
  shared_->error = absl::UnavailableError(absl::StrCat(why, " (", devices_.size(), " GPUs, first ",
                                                       Describe(devices_[0]->info()), ")"));
}

void FakeCommunicator::Release() {
  for (size_t i = 0; i < reserved_.size(); ++i) devices_[i]->streams().Reserve(reserved_[i], false);
  reserved_.clear();
}

Communicator::State FakeCommunicator::Poll() {
  TALWEG_CHECK(!aborted_);
  world_.Advance();
  for (FakeDevice* const device : devices_) {
    if (!device->Ready().ok() && shared_->error.ok()) Fail("a GPU is lost");
  }
  if (!shared_->error.ok()) return State::kFailed;
  if (world_.timeline.now_ns() < ready_ns_) return State::kBusy;
  Release();
  std::erase_if(posted_, [](const Posted& posted) { return posted.joint->over; });
  return State::kReady;
}

absl::Status FakeCommunicator::Post(const char* what, uint64_t send_bytes, uint64_t receive_bytes,
                                    std::span<const CollectivePart> parts, Effect effect) {
  if (Poll() != State::kReady) {
    return absl::FailedPreconditionError(absl::StrCat(what, ": the communicator is not ready"));
  }
  if (parts.size() != devices_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " of ", parts.size(), " parts among ", devices_.size(), " devices"));
  }
  std::vector<Place> sends;
  std::vector<Place> receives;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!devices_[i]->streams().Has(parts[i].stream)) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": part ", i, " has no such stream"));
    }
    TALWEG_ASSIGN_OR_RETURN(Place send, devices_[i]->memory().Resolve({parts[i].send, send_bytes}));
    TALWEG_ASSIGN_OR_RETURN(Place receive,
                            devices_[i]->memory().Resolve({parts[i].receive, receive_bytes}));
    sends.push_back(std::move(send));
    receives.push_back(std::move(receive));
  }
  if (send_bytes == 0) return absl::OkStatus();
  const CollectiveFault fault = std::exchange(world_.collective_fault, CollectiveFault::kNone);
  if (fault == CollectiveFault::kCallFails) {
    Fail("the collective was refused");
    return shared_->error;
  }
  const FakeCosts& costs = world_.options.costs;
  ready_ns_ = world_.clock.NowNs() + costs.collective_launch_ns;
  const auto joint = std::make_shared<Rendezvous>();
  joint->parties = parts.size();
  joint->not_before_ns = ready_ns_;
  joint->duration_ns = costs.launch_ns + static_cast<int64_t>(std::max(send_bytes, receive_bytes)) *
                                             1000 / costs.collective_bytes_per_us;
  joint->hangs = fault == CollectiveFault::kHang;
  if (fault == CollectiveFault::kError) {
    joint->end = [weak = std::weak_ptr(joint), shared = shared_] {
      shared->error = absl::UnavailableError("a collective failed on the way");
      weak.lock()->over = false;
      weak.lock()->hangs = true;
    };
  } else {
    joint->end = [sends, receives, effect = std::move(effect)] { effect(sends, receives); };
  }
  // All parts happen together: what one stream knows, all streams know.
  VectorClock together;
  for (size_t i = 0; i < parts.size(); ++i)
    together.Merge(devices_[i]->streams().clock_of(parts[i].stream));
  for (size_t i = 0; i < parts.size(); ++i) {
    devices_[i]->streams().clock_of(parts[i].stream).Merge(together);
    Work work;
    work.joint = joint;
    devices_[i]->streams().Post(parts[i].stream, std::move(work),
                                {{sends[i], AccessKind::kRead}, {receives[i], AccessKind::kWrite}},
                                what);
    devices_[i]->streams().Reserve(parts[i].stream, true);
    reserved_.push_back(parts[i].stream);
  }
  posted_.push_back({joint, std::move(receives)});
  return absl::OkStatus();
}

std::vector<std::byte> FakeCommunicator::Combine(DType dtype, Op op, uint64_t element_count,
                                                 const std::vector<Place>& sends, uint64_t offset) {
  const std::byte* const first = sends[0].data() + offset;
  std::vector<std::byte> sum(first, first + element_count * DTypeSize(dtype));
  const auto output = reinterpret_cast<uint64_t>(sum.data());
  for (size_t i = 1; i < sends.size(); ++i) {
    const uint64_t pair[] = {output, reinterpret_cast<uint64_t>(sends[i].data() + offset)};
    const auto plan = kernels::PlanReduce({.dtype = dtype, .op = op}, pair, output, element_count);
    TALWEG_CHECK(plan.ok());
    kernels::RunOnHost(*plan, 7);
  }
  return sum;
}

absl::Status FakeCommunicator::ReduceScatter(DType dtype, Op op, uint64_t shard_elements,
                                             std::span<const CollectivePart> parts) {
  if (!Combines(dtype, op)) return absl::InvalidArgumentError("not combined between GPUs");
  const uint64_t shard_bytes = shard_elements * DTypeSize(dtype);
  return Post("a reduce-scatter", shard_bytes * devices_.size(), shard_bytes, parts,
              [=](const std::vector<Place>& sends, const std::vector<Place>& receives) {
                // Computes all before it stores any, because a part that receives in place sends
                // from there.
                std::vector<std::vector<std::byte>> shards;
                for (size_t i = 0; i < receives.size(); ++i) {
                  shards.push_back(Combine(dtype, op, shard_elements, sends, i * shard_bytes));
                }
                for (size_t i = 0; i < receives.size(); ++i) {
                  std::memcpy(receives[i].data(), shards[i].data(), shard_bytes);
                }
              });
}

absl::Status FakeCommunicator::AllGather(DType dtype, uint64_t shard_elements,
                                         std::span<const CollectivePart> parts) {
  if (!IsValid(dtype)) return absl::InvalidArgumentError("no dtype");
  const uint64_t shard_bytes = shard_elements * DTypeSize(dtype);
  return Post("an all-gather", shard_bytes, shard_bytes * devices_.size(), parts,
              [=](const std::vector<Place>& sends, const std::vector<Place>& receives) {
                std::vector<std::byte> all;
                for (const Place& send : sends) {
                  all.insert(all.end(), send.data(), send.data() + shard_bytes);
                }
                for (const Place& receive : receives) {
                  std::memcpy(receive.data(), all.data(), all.size());
                }
              });
}

absl::Status FakeCommunicator::Reduce(DType dtype, Op op, uint64_t element_count, size_t root,
                                      std::span<const CollectivePart> parts) {
  if (!Combines(dtype, op)) return absl::InvalidArgumentError("not combined between GPUs");
  TALWEG_RETURN_IF_ERROR(CheckRoot(root, devices_.size()));
  const uint64_t bytes = element_count * DTypeSize(dtype);
  return Post("a reduction among GPUs", bytes, bytes, parts,
              [=](const std::vector<Place>& sends, const std::vector<Place>& receives) {
                const std::vector<std::byte> sum = Combine(dtype, op, element_count, sends, 0);
                // Partial sums pass through the others' memory.
                for (const Place& receive : receives) Poison(receive);
                std::memcpy(receives[root].data(), sum.data(), bytes);
              });
}

absl::Status FakeCommunicator::Broadcast(DType dtype, uint64_t element_count, size_t root,
                                         std::span<const CollectivePart> parts) {
  if (!IsValid(dtype)) return absl::InvalidArgumentError("no dtype");
  TALWEG_RETURN_IF_ERROR(CheckRoot(root, devices_.size()));
  const uint64_t bytes = element_count * DTypeSize(dtype);
  return Post("a broadcast", bytes, bytes, parts,
              [=](const std::vector<Place>& sends, const std::vector<Place>& receives) {
                for (const Place& receive : receives) {
                  std::memmove(receive.data(), sends[root].data(), bytes);
                }
              });
}

absl::Status FakeCommunicator::AllReduce(DType dtype, Op op, uint64_t element_count,
                                         std::span<const CollectivePart> parts) {
  if (!Combines(dtype, op)) return absl::InvalidArgumentError("not combined between GPUs");
  const uint64_t bytes = element_count * DTypeSize(dtype);
  return Post("an all-reduce", bytes, bytes, parts,
              [=](const std::vector<Place>& sends, const std::vector<Place>& receives) {
                const std::vector<std::byte> sum = Combine(dtype, op, element_count, sends, 0);
                for (const Place& receive : receives) {
                  std::memcpy(receive.data(), sum.data(), bytes);
                }
              });
}

void FakeCommunicator::Abort() {
  if (aborted_) return;
  aborted_ = true;
  for (const Posted& posted : posted_) {
    if (posted.joint->over) continue;
    posted.joint->over = true;
    posted.joint->ends_ns.reset();
    for (const Place& receive : posted.receives) Poison(receive);
  }
  posted_.clear();
  Release();
  world_.Advance();
}

}  // namespace talweg::gpu::fake
