// SPDX-License-Identifier: Apache-2.0
//
// What the sanitizers ask a program for when it starts. The *_OPTIONS variables overrule it.

extern "C" {

const char* __asan_default_options() {
  return "detect_stack_use_after_return=1:strict_init_order=1";
}

const char* __tsan_default_options() { return "second_deadlock_stack=1:halt_on_error=1"; }

const char* __ubsan_default_options() { return "print_stacktrace=1:halt_on_error=1"; }

// Debian's gRPC, protobuf, Abseil and libfabric are not instrumented: TSan sees their threads touch
// memory without seeing the locks (absl::Mutex is a futex of its own) that order the accesses.
const char* __tsan_default_suppressions() {
  return "race:grpc_core\n"
         "race:^grpc_\n"
         "race:^grpc::\n"
         "race:^absl::\n"
         "race:google::protobuf\n"
         "called_from_lib:libfabric.so.1\n";
}

// libfabric 1.17's tcp provider forgets connections whose handshake has not ended when it is
// closed.
const char* __lsan_default_suppressions() { return "leak:libfabric.so.1\n"; }

}  // extern "C"
