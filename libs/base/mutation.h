// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_MUTATION_H_
#define TALWEG_LIBS_BASE_MUTATION_H_

// A deliberate bug in a protocol core that the simulation has to find. TALWEG_MUTATION(name,
// original, mutated) is `original`. Where TALWEG_MUTATIONS is defined, a switch chooses: that is
// the second build of the cores, which tests/sim:mutation_test uses.
#ifdef TALWEG_MUTATIONS

namespace talweg::internal {
// Lives as long as the process; the same for every use of a name.
const bool* MutationSwitch(const char* name);
}  // namespace talweg::internal

#define TALWEG_MUTATION(name, original, mutated)                                \
  (*[] {                                                                        \
    static const bool* const is_on = ::talweg::internal::MutationSwitch(#name); \
    return is_on;                                                               \
  }()                                                                           \
       ? (mutated)                                                              \
       : (original))

#else

#define TALWEG_MUTATION(name, original, mutated) (original)

#endif  // TALWEG_MUTATIONS

#endif  // TALWEG_LIBS_BASE_MUTATION_H_
