// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_TLS_PEERS_ARGUMENT_H_
#define TALWEG_LIBS_RPC_TLS_PEERS_ARGUMENT_H_

#include <grpcpp/support/channel_arguments.h>

#include <memory>

#include "libs/rpc/tls_peers.h"

// The argument by which guarded_reads.cc finds the TlsPeers of a gRPC connection.
namespace talweg::rpc {

inline constexpr char kTlsPeersArgument[] = "talweg.tls_peers";

// The argument's value is a pointer to one.
using TlsPeersHolder = std::shared_ptr<TlsPeers>;

// The connections of the server or channel that is made with `arguments` are added to `peers`.
inline void SetTlsPeers(TlsPeersHolder peers, grpc::ChannelArguments* arguments) {
  static constexpr grpc_arg_pointer_vtable kCalls = {
      .copy = [](void* holder) -> void* {
        return new TlsPeersHolder(*static_cast<TlsPeersHolder*>(holder));
      },
      .destroy = [](void* holder) { delete static_cast<TlsPeersHolder*>(holder); },
      .cmp = [](void* left, void* right) -> int {
        const auto* const first = static_cast<TlsPeersHolder*>(left)->get();
        const auto* const second = static_cast<TlsPeersHolder*>(right)->get();
        return static_cast<int>(first > second) - static_cast<int>(first < second);
      },
  };
  arguments->SetPointerWithVtable(kTlsPeersArgument, &peers, &kCalls);
}

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_TLS_PEERS_ARGUMENT_H_
