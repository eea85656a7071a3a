// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_CLIENT_CPUS_H_
#define TALWEG_LIBS_SHM_CLIENT_CPUS_H_

#include <sched.h>
#include <sys/types.h>

namespace talweg::shm {

// The CPUs that a process may run on; 0: this process.
struct Cpus {
  explicit Cpus(pid_t pid) {
    cpu_set_t cpus[8];  // The kernel refuses a set that is too small.
    if (::sched_getaffinity(pid, sizeof(cpus), cpus) != 0) return;
    count = CPU_COUNT_S(sizeof(cpus), cpus);
    while (first < kCpusMax - 1 && !CPU_ISSET_S(first, sizeof(cpus), cpus)) ++first;
  }
  static constexpr int kCpusMax = 8 * CPU_SETSIZE;
  int count = 1;
  int first = 0;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_CLIENT_CPUS_H_
