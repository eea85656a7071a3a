// SPDX-License-Identifier: Apache-2.0
//
// Shows TSan that gRPC hands things from one thread to another in order.
//
// TSan knows pthread's mutexes. But absl::Mutex is a futex of its own in a library that is not
// instrumented, and atomics in other such libraries order gRPC's calls and their callbacks. So what
// our code writes before Finish() and reads in OnDone() looks like a race.
//
// The dynamic linker finds the functions below, in the program, before the libraries'. Each does
// what the library's does. All of gRPC's locks and queues count as one: a thread that unlocks any,
// or starts a call, comes before a thread that locks any afterwards, or is told of a completion. So
// TSan finds a race of our code unless both of its threads happened to pass through gRPC between
// the two accesses.
//
// Names are mangled (`absl::debian3::Mutex::Lock`, ...). They are members, and `this` comes first.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <sanitizer/tsan_interface.h>

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

#define TALWEG_REAL(symbol) \
  static const auto real = reinterpret_cast<decltype(&symbol)>(dlsym(RTLD_NEXT, #symbol))

namespace {

char order;

void EnterInOrder() { __tsan_acquire(&order); }
void LeaveInOrder() { __tsan_release(&order); }

}  // namespace

extern "C" {

void _ZN4absl7debian35Mutex4LockEv(void* mutex) {
  TALWEG_REAL(_ZN4absl7debian35Mutex4LockEv);
  real(mutex);
  EnterInOrder();
}

void _ZN4absl7debian35Mutex10ReaderLockEv(void* mutex) {
  TALWEG_REAL(_ZN4absl7debian35Mutex10ReaderLockEv);
  real(mutex);
  EnterInOrder();
}

bool _ZN4absl7debian35Mutex7TryLockEv(void* mutex) {
  TALWEG_REAL(_ZN4absl7debian35Mutex7TryLockEv);
  const bool locked = real(mutex);
  if (locked) EnterInOrder();
  return locked;
}

void _ZN4absl7debian35Mutex6UnlockEv(void* mutex) {
  TALWEG_REAL(_ZN4absl7debian35Mutex6UnlockEv);
  LeaveInOrder();
  real(mutex);
}

void _ZN4absl7debian35Mutex12ReaderUnlockEv(void* mutex) {
  TALWEG_REAL(_ZN4absl7debian35Mutex12ReaderUnlockEv);
  LeaveInOrder();
  real(mutex);
}

// CondVar's waits unlock the mutex and lock it again by themselves.

void _ZN4absl7debian37CondVar4WaitEPNS0_5MutexE(void* condition, void* mutex) {
  TALWEG_REAL(_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE);
  LeaveInOrder();
  real(condition, mutex);
  EnterInOrder();
}

bool _ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE(void* condition,
                                                                          void* mutex,
                                                                          absl::Duration timeout) {
  TALWEG_REAL(_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE);
  LeaveInOrder();
  const bool timed_out = real(condition, mutex, timeout);
  EnterInOrder();
  return timed_out;
}

bool _ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE(void* condition, void* mutex,
                                                                       absl::Time deadline) {
  TALWEG_REAL(_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE);
  LeaveInOrder();
  const bool timed_out = real(condition, mutex, deadline);
  EnterInOrder();
  return timed_out;
}

// absl::Status's count of those who share a text. The last one deletes the text, and comes after
// the others.
void _ZN4absl7debian36Status15UnrefNonInlinedEm(uintptr_t shared) {
  TALWEG_REAL(_ZN4absl7debian36Status15UnrefNonInlinedEm);
  void* const count = reinterpret_cast<void*>(shared);
  __tsan_release(count);
  __tsan_acquire(count);
  real(shared);
}

// Every message, status and metadata that our code hands to gRPC goes through this, and comes back
// through the two functions below. A thread of gRPC's that runs our callbacks waits in the first of
// these.
grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t count, void* tag,
                                      void* reserved) {
  TALWEG_REAL(grpc_call_start_batch);
  LeaveInOrder();
  return real(call, ops, count, tag, reserved);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                      void* reserved) {
  TALWEG_REAL(grpc_completion_queue_next);
  LeaveInOrder();
  const grpc_event event = real(queue, deadline, reserved);
  EnterInOrder();
  return event;
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                       gpr_timespec deadline, void* reserved) {
  TALWEG_REAL(grpc_completion_queue_pluck);
  LeaveInOrder();
  const grpc_event event = real(queue, tag, deadline, reserved);
  EnterInOrder();
  return event;
}

}  // extern "C"
