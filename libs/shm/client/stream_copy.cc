// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/stream_copy.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "libs/reduce/isa.h"
#endif

namespace talweg::shm {

#if defined(__x86_64__)
namespace {

constexpr size_t kLineBytes = 64;

// Each function copies `lines` lines to an aligned place. A store of a whole line leaves the
// processor directly. Narrower stores are first combined in a buffer, which is a quarter slower
// when memory is busy.

__attribute__((target("avx512f"))) void CopyLines512(std::byte* to, const std::byte* from,
                                                     size_t lines) {
  for (; lines >= 4; lines -= 4, to += 4 * kLineBytes, from += 4 * kLineBytes) {
    const __m512i a = _mm512_loadu_si512(from);
    const __m512i b = _mm512_loadu_si512(from + kLineBytes);
    const __m512i c = _mm512_loadu_si512(from + 2 * kLineBytes);
    const __m512i d = _mm512_loadu_si512(from + 3 * kLineBytes);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + kLineBytes), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 2 * kLineBytes), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + 3 * kLineBytes), d);
  }
  for (; lines > 0; --lines, to += kLineBytes, from += kLineBytes) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
  }
}

__attribute__((target("avx2"))) void CopyLines256(std::byte* to, const std::byte* from,
                                                  size_t lines) {
  for (; lines > 0; --lines, to += kLineBytes, from += kLineBytes) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + 1);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), a);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + 1, b);
  }
}

}  // namespace

void StreamCopy(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<std::byte*>(to);
  const auto* in = static_cast<const std::byte*>(from);
  const size_t head = (-reinterpret_cast<uintptr_t>(out)) % kLineBytes;
  const reduce::Isa isa = reduce::BestIsa();
  if (isa == reduce::Isa::kPortable || bytes < head + kLineBytes) {
    std::memcpy(out, in, bytes);
    return;
  }
  std::memcpy(out, in, head);
  const size_t lines = (bytes - head) / kLineBytes;
  (isa == reduce::Isa::kAvx512 ? CopyLines512 : CopyLines256)(out + head, in + head, lines);
  _mm_sfence();
  const size_t done = head + lines * kLineBytes;
  std::memcpy(out + done, in + done, bytes - done);
}
#else
void StreamCopy(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
#endif

}  // namespace talweg::shm
