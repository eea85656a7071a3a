// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/stub/stub_machine.h"

#include <cstdlib>
#include <cstring>

namespace talweg::gpu::cuda::stub {

int InjectedResult(const char* function) {
  const char* const told = std::getenv("TALWEG_STUB_FAIL");
  const size_t length = std::strlen(function);
  if (told == nullptr || std::strncmp(told, function, length) != 0 || told[length] != '=') return 0;
  return std::atoi(told + length + 1);
}

Machine& Machine::Get() {
  static Machine* const machine =
      new Machine;  // It is never destroyed: a driver outlives static objects.
  return *machine;
}

bool Machine::Step() {
  for (size_t tried = 0; tried < streams.size(); ++tried) {
    next_ = (next_ + 1) % streams.size();
    Stream& stream = *streams[next_];
    if (stream.works.empty()) continue;
    Work& first = stream.works.front();
    if (first.joint != nullptr) {
      Joint& joint = *first.joint;
      bool all_there = true;
      for (Stream* const each : joint.streams) {
        all_there = all_there && !each->works.empty() && each->works.front().joint == first.joint;
      }
      if (!joint.over && !all_there) continue;
      if (!joint.over) joint.run();
      joint.over = true;
      stream.works.pop_front();
      return true;
    }
    if (first.ready && !first.ready()) continue;
    const Work work = std::move(first);
    stream.works.pop_front();
    if (work.run) work.run();
    return true;
  }
  return false;
}

void Machine::RunAll() {
  while (Step()) {
  }
}

void Machine::DropWork(int gpu) {
  for (const auto& stream : streams) {
    if (stream->gpu == gpu) stream->works.clear();
  }
}

namespace {

bool Holds(uint64_t begin, size_t held, uint64_t address, size_t bytes) {
  return address >= begin && bytes <= held && address - begin <= held - bytes;
}

}  // namespace

bool Machine::IsDeviceMemory(uint64_t address, size_t bytes) const {
  return IsMemoryOf(current_gpu, address, bytes);
}

bool Machine::IsMemoryOf(int gpu, uint64_t address, size_t bytes) const {
  auto at = memory.upper_bound(address);
  if (at == memory.begin()) return false;
  --at;
  return at->second.gpu == gpu && Holds(at->first, at->second.bytes, address, bytes);
}

bool Machine::IsPinned(uint64_t address, size_t bytes) const {
  auto at = pinned.upper_bound(address);
  if (at == pinned.begin()) return false;
  --at;
  return Holds(at->first, at->second, address, bytes);
}

void Machine::FreeIfUnused(uint64_t address) {
  const auto at = memory.find(address);
  if (at == memory.end() || !at->second.freed_by_owner || at->second.mappings > 0) return;
  used_bytes[at->second.gpu] -= at->second.bytes;
  std::free(reinterpret_cast<void*>(address));
  memory.erase(at);
}

}  // namespace talweg::gpu::cuda::stub
