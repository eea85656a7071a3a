// SPDX-License-Identifier: Apache-2.0
#include "libs/reduce/isa.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace talweg::reduce {

#if defined(__x86_64__)
namespace {

// Whether cpuid reports F16C, because not every compiler's __builtin_cpu_supports knows that name.
// F16C uses the registers of AVX, so a processor with AVX2 needs nothing more from the system.
bool HasF16c() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

}  // namespace
#endif

namespace {

bool Ask(Isa isa) {
  switch (isa) {
    case Isa::kPortable: return true;
#if defined(__x86_64__)
    // The compiler's run-time library asks cpuid, and xgetbv for what the system saves.
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && HasF16c();
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
             __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
#else
    case Isa::kAvx2:
    case Isa::kAvx512: return false;
#endif
  }
  return false;
}

}  // namespace

bool IsSupported(Isa isa) {
  // Cached, because in a virtual machine cpuid goes to the hypervisor, which takes longer than
  // summing 64 KiB. Not a local static, whose guard would need the C++ runtime that the client
  // library does not have. Threads that come at once find the same value.
  static constinit std::atomic<unsigned> known = 0;
  constexpr unsigned kAsked = 1u << 31;
  unsigned supported = known.load(std::memory_order_relaxed);
  if (supported == 0) {
    supported = kAsked;
    for (const Isa each : kAllIsas) supported |= Ask(each) ? 1u << static_cast<unsigned>(each) : 0;
    known.store(supported, std::memory_order_relaxed);
  }
  return (supported >> static_cast<unsigned>(isa) & 1) != 0;
}

Isa BestIsa() {
  return IsSupported(Isa::kAvx512) ? Isa::kAvx512
         : IsSupported(Isa::kAvx2) ? Isa::kAvx2
                                   : Isa::kPortable;
}

std::string_view IsaName(Isa isa) {
  switch (isa) {
    case Isa::kPortable: return "portable";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "invalid";
}

}  // namespace talweg::reduce
