// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_SPARE_DESCRIPTOR_H_
#define TALWEG_LIBS_BASE_SPARE_DESCRIPTOR_H_

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "libs/base/descriptor.h"

namespace talweg {

// A descriptor that a listener's owner keeps for when the process has none left. Without it,
// whoever connects then hears nothing, and the listener stays readable: its owner never sleeps
// again.
//
// Needs libc only. One owner.
class SpareDescriptor {
 public:
  SpareDescriptor() { Open(); }

  // Whether accept has failed, with this errno, for want of a descriptor.
  static bool IsWantOfOne(int error) { return error == EMFILE || error == ENFILE; }

  // Accepts one more, calls `refuse` with his socket, and closes it. False: nobody was there, or
  // another thread has taken the spare one.
  template <typename Refuse>
  bool RefuseNext(int listener, Refuse refuse) {
    spare_.Reset();
    Descriptor unlucky(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const bool was_there = unlucky.valid();
    if (was_there) refuse(unlucky.get());
    unlucky.Reset();
    Open();
    return was_there;
  }

 private:
  void Open() { spare_.Reset(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

  Descriptor spare_;
};

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_SPARE_DESCRIPTOR_H_
