// SPDX-License-Identifier: Apache-2.0
//
// The options that sanitizers ask a program for at its start. The *_OPTIONS variables overrule
// them.

extern "C" {

const char* __asan_default_options() {
  return "detect_stack_use_after_return=1:strict_init_order=1:print_suppressions=0";
}

// Signals: libpsm2, which libfabric loads, ends the process on SIGTERM by exit() in a handler, from
// its loading until main(). Anything may then be called in that handler. No program of ours has a
// handler that does anything.
const char* __tsan_default_options() {
  return "second_deadlock_stack=1:halt_on_error=1:atexit_sleep_ms=0:report_signal_unsafe=0";
}

// Debian's libraries are not instrumented. TSan sees what they do to memory through libc (memcpy,
// free, recvmsg), but not the atomics that order it. So each of these was reported against itself,
// or against the owner of a buffer that it had been given. The list leaves out what the library
// itself calls. It keeps our code that the library calls on its threads. TSan sees the order that
// gRPC keeps (tsan_grpc.cc).
const char* __tsan_default_suppressions() {
  return "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n"
         "called_from_lib:libgpr.so\n"
         "called_from_lib:libupb.so\n"
         // What gRPC does with statuses, their payloads and texts, and times.
         "called_from_lib:libabsl_status.so\n"
         "called_from_lib:libabsl_cord.so\n"
         "called_from_lib:libabsl_strings.so\n"
         "called_from_lib:libabsl_time.so\n"
         "called_from_lib:libabsl_time_zone.so\n"
         // The deadlock detector of absl::Mutex, under a spin lock.
         "called_from_lib:libabsl_graphcycles_internal.so\n"
         // gRPC joins its threads when its last object is gone. A program may end before that.
         "thread:grpc_core::Thread::Thread\n";
}

const char* __ubsan_default_options() { return "print_stacktrace=1:halt_on_error=1"; }

// libfabric 1.17's tcp provider forgets connections that are closed before their handshake has
// ended.
const char* __lsan_default_suppressions() { return "leak:libfabric.so.1\n"; }

}  // extern "C"
