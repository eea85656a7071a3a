// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_CALL_GATE_H_
#define TALWEG_LIBS_RPC_CALL_GATE_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "libs/rpc/call_limits.h"

namespace talweg::rpc {

// Counts the calls of a daemon's port, and refuses those of a peer that makes too many
// (docs/quotas.md, "Calls"). A Server and its services share one. Callers of Unix sockets are not
// counted: the directory's mode decides who they are.
//
// Any thread.
class CallGate {
 public:
  explicit CallGate(const CallLimitOptions& options);
  ~CallGate();

  // The process with this session secret is no member any more. Ignores "".
  void Forget(std::string_view session_secret);
  uint64_t refused_count() const;

  // A caller's question. It is open until both its call and the thread that answers it have
  // released it.
  class Question {
   public:
    virtual ~Question() = default;
    // Charges the caller for `answer_bytes` of its answer, whether or not it reads them.
    virtual void Charge(uint64_t answer_bytes) = 0;
  };

 private:
  friend class CallGateAccess;  // For sources that include gRPC.
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CALL_GATE_H_
