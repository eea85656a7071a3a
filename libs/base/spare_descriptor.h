// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_SPARE_DESCRIPTOR_H_
#define TALWEG_LIBS_BASE_SPARE_DESCRIPTOR_H_

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "libs/base/descriptor.h"

namespace talweg {

// A descriptor that a listener's owner keeps for the time when the process has none left. Without
// it a peer that connects then hears nothing, and the listener stays readable, so that its owner
// never sleeps again.
//
// Needs libc only. One owner.
class SpareDescriptor {
 public:
  SpareDescriptor() { Open(); }

  // Whether accept has failed, with this errno, because no descriptor was left.
  static bool IsWantOfOne(int error) { return error == EMFILE || error == ENFILE; }

  // Accepts one more peer, calls `refuse` with its socket, and closes it. Returns false if no peer
  // was there, or another thread has taken the spare descriptor.
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
