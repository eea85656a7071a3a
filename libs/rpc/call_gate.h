// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_CALL_GATE_H_
#define TALWEG_LIBS_RPC_CALL_GATE_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "libs/rpc/call_limits.h"

namespace talweg::rpc {

// Counts the calls of a daemon's port, and refuses those of a peer that makes too many
// (docs/quotas.md, "Calls"). One for a Server and its services. Callers of Unix sockets are not
// counted: the mode of their directory says who they are.
//
// Any thread.
class CallGate {
 public:
  explicit CallGate(const CallLimitOptions& options);
  ~CallGate();

  // Whoever shows this session secret is counted by itself from now on, and no more with all of
  // its address, user or certificate's name. "" is nobody's.
  void Prove(std::string_view session_secret);
  uint64_t refused_count() const;

  // A caller's question, open until nobody holds it any more: neither its call nor who answers it.
  class Question {
   public:
    virtual ~Question() = default;
    // So much was collected for its answer, whether or not the caller ever reads it.
    virtual void Charge(uint64_t answer_bytes) = 0;
  };

 private:
  friend class CallGateAccess;  // For sources that include gRPC.
  struct Impl;
  const std::shared_ptr<Impl> impl_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_CALL_GATE_H_
