// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TESTING_NO_DESCRIPTORS_H_
#define TALWEG_LIBS_TRANSPORT_TESTING_NO_DESCRIPTORS_H_

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"

namespace talweg::transport {

// As long as it lives, this process can open no further descriptor. UBSan needs one for each type
// that it meets first, so a test asserts afterwards.
class NoDescriptors {
 public:
  NoDescriptors() {
    const Descriptor lowest(open("/dev/null", O_RDONLY | O_CLOEXEC));
    TALWEG_CHECK(lowest.valid() && getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit none_left{static_cast<rlim_t>(lowest.get()), before_.rlim_max};
    TALWEG_CHECK(setrlimit(RLIMIT_NOFILE, &none_left) == 0);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { TALWEG_CHECK(setrlimit(RLIMIT_NOFILE, &before_) == 0); }

 private:
  rlimit before_;
};

// Returns whether poll() reports the descriptor readable now.
inline bool IsReadable(int descriptor) {
  pollfd waiting{.fd = descriptor, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, 0) == 1;
}

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TESTING_NO_DESCRIPTORS_H_
