// SPDX-License-Identifier: Apache-2.0
//
// At a process's first call libfabric's verbs provider reads all symbols of the kernel, twice, and
// whichever provider the caller asks for. It looks for what registers GPUs' memory with RDMA
// devices. Where there are no RDMA devices, the daemon's start would take a tenth of a second of
// processor time longer, for nothing.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// A sanitizer has a fopen of its own.
#if !defined(__SANITIZE_ADDRESS__) && !defined(_GLIBCXX_TSAN)

// libfabric calls the program's fopen, where it has one, in place of libc's.
extern "C" FILE* fopen(const char* path, const char* mode) {
  if (strcmp(path, "/proc/kallsyms") == 0 && access("/sys/class/infiniband", F_OK) != 0) {
    errno = ENOENT;
    return nullptr;
  }
  return fopen64(path, mode);  // The same function of libc under its other name.
}

#endif
