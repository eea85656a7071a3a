// SPDX-License-Identifier: Apache-2.0
// For programs: opens /dev/null in the place of each standard descriptor (0, 1, 2) that the process
// was started without. Otherwise the next file or socket gets the number, and what is logged or
// printed goes into it. Linking this file is enough.
//
// Libraries open descriptors before main(), when they are loaded (those of libfabric do). So the
// loader calls this before any code of theirs. That is too early for a sanitizer's runtime.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <fcntl.h>
#include <unistd.h>

namespace {

using Hook = void (*)();

void OpenStandardDescriptors() {
  // The kernel gives the lowest number that is free. The process's children inherit them.
  int descriptor = ::open("/dev/null", O_RDWR);
  while (descriptor >= 0 && descriptor <= STDERR_FILENO) descriptor = ::open("/dev/null", O_RDWR);
  if (descriptor > STDERR_FILENO) ::close(descriptor);
}

[[gnu::section(".preinit_array"), gnu::used]] const Hook kFirst = OpenStandardDescriptors;

}  // namespace
#endif
