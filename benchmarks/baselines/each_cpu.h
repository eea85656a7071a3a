// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_BENCHMARKS_BASELINES_EACH_CPU_H_
#define TALWEG_BENCHMARKS_BASELINES_EACH_CPU_H_

// A function that is compiled for each of these CPUs. The loader takes the one for this machine's.
// Not with ThreadSanitizer: the code that chooses runs before TSan's runtime is there, and would
// crash in it.
#if defined(_GLIBCXX_TSAN)
#define TALWEG_FOR_EACH_CPU __attribute__((optimize("O3")))
#else
#define TALWEG_FOR_EACH_CPU \
  __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#endif

#endif  // TALWEG_BENCHMARKS_BASELINES_EACH_CPU_H_
