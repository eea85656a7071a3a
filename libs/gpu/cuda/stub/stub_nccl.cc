// SPDX-License-Identifier: Apache-2.0
//
// NCCL's functions, under their own names, in the mode that does not block. A communicator is
// ready, and a collective is launched, after a few queries.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "libs/base/dtype.h"
#include "libs/gpu/cuda/nccl_api.h"
#include "libs/gpu/cuda/stub/stub_machine.h"
#include "libs/gpu/device.h"
#include "libs/gpu/kernels/reduce_plan.h"

namespace talweg::gpu::cuda::stub {
namespace {

constexpr NcclResult kInvalidArgument = 4;
constexpr NcclResult kInvalidUsage = 5;
constexpr int kAsksUntilReady = 3;

struct Clique {
  int count = 0;
};

struct Comm {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  int gpu = 0;
  int busy = kAsksUntilReady;
  std::vector<std::shared_ptr<Joint>> joints;
};

enum class Kind { kReduceScatter, kAllGather, kAllReduce, kReduce, kBroadcast };

struct Call {
  Kind kind;
  Comm* comm;
  const std::byte* send;
  std::byte* receive;
  size_t count;
  DType dtype;
  Op op;
  Stream* stream;
  size_t root = 0;
};

int group_depth = 0;
std::vector<Call> calls;
std::map<uint64_t, std::shared_ptr<Clique>>* cliques =
    new std::map<uint64_t, std::shared_ptr<Clique>>;

Comm* Of(NcclComm comm) { return reinterpret_cast<Comm*>(comm); }

DType DTypeOf(NcclDType dtype) {
  for (const DType each : kAllDTypes) {
    if (Communicator::Combines(each, Op::kSum) && NcclDTypeOf(each) == dtype) return each;
  }
  return DType::kUnspecified;
}
Op OpOf(NcclOp op) {
  for (const Op each : {Op::kSum, Op::kProduct, Op::kMin, Op::kMax}) {
    if (NcclOpOf(each) == op) return each;
  }
  return Op::kUnspecified;
}

std::vector<std::byte> Combine(const std::vector<Call>& parts, size_t first_byte, size_t count) {
  const size_t size = DTypeSize(parts[0].dtype);
  std::vector<std::byte> sum(parts[0].send + first_byte, parts[0].send + first_byte + count * size);
  for (size_t i = 1; i < parts.size(); ++i) {
    const uint64_t pair[] = {reinterpret_cast<uint64_t>(sum.data()),
                             reinterpret_cast<uint64_t>(parts[i].send + first_byte)};
    const auto plan = kernels::PlanReduce({.dtype = parts[0].dtype, .op = parts[0].op}, pair,
                                          reinterpret_cast<uint64_t>(sum.data()), count);
    if (plan.ok()) kernels::RunOnHost(*plan, 1);
  }
  return sum;
}

// Runs the calls of all parts, in rank order.
void Run(const std::vector<Call>& parts) {
  const size_t bytes = parts[0].count * DTypeSize(parts[0].dtype);
  std::vector<std::vector<std::byte>> results(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    switch (parts[0].kind) {
      case Kind::kReduceScatter: results[i] = Combine(parts, i * bytes, parts[0].count); break;
      case Kind::kAllReduce: results[i] = Combine(parts, 0, parts[0].count); break;
      case Kind::kReduce:
        if (i == parts[0].root) results[i] = Combine(parts, 0, parts[0].count);
        break;
      case Kind::kBroadcast: {
        const std::byte* const sent = parts[parts[0].root].send;
        results[i].assign(sent, sent + bytes);
        break;
      }
      case Kind::kAllGather:
        for (const Call& part : parts) {
          results[i].insert(results[i].end(), part.send, part.send + bytes);
        }
        break;
    }
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    std::copy(results[i].begin(), results[i].end(), parts[i].receive);
  }
}

NcclResult Add(Kind kind, const void* send, void* receive, size_t count, NcclDType dtype, Op op,
               NcclComm comm, CuStream stream, int root = 0) {
  if (group_depth == 0 || Of(comm)->busy > 0) return kInvalidUsage;
  if (Machine::Get().current_gpu != Of(comm)->gpu) return kInvalidArgument;
  if (DTypeOf(dtype) == DType::kUnspecified || op == Op::kUnspecified) return kInvalidArgument;
  if (root < 0 || root >= Of(comm)->clique->count) return kInvalidArgument;
  calls.push_back({kind, Of(comm), static_cast<const std::byte*>(send),
                   static_cast<std::byte*>(receive), count, DTypeOf(dtype), op,
                   reinterpret_cast<Stream*>(stream), static_cast<size_t>(root)});
  return kNcclSuccess;
}

}  // namespace
}  // namespace talweg::gpu::cuda::stub

using namespace talweg::gpu::cuda;        // NOLINT(google-build-using-namespace)
using namespace talweg::gpu::cuda::stub;  // NOLINT(google-build-using-namespace)

extern "C" {

NcclResult ncclGetVersion(int* version) {
  *version = 22803;
  return kNcclSuccess;
}
NcclResult ncclGetUniqueId(NcclUniqueId* id) {
  static uint64_t next = 1;
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->internal, &next, sizeof(next));
  ++next;
  return kNcclSuccess;
}
const char* ncclGetErrorString(NcclResult) { return "the stub's NCCL error"; }
const char* ncclGetLastError(NcclComm) { return ""; }

NcclResult ncclCommInitRankConfig(NcclComm* comm, int count, NcclUniqueId id, int rank,
                                  NcclConfig* config) {
  if (const int injected = InjectedResult("ncclCommInitRankConfig")) return injected;
  if (group_depth == 0 || config->magic != 0xcafebeef || config->blocking != 0) {
    return kInvalidUsage;
  }
  uint64_t key = 0;
  std::memcpy(&key, id.internal, sizeof(key));
  std::shared_ptr<Clique>& clique = (*cliques)[key];
  if (clique == nullptr) clique = std::make_shared<Clique>(Clique{count});
  auto* const made = new Comm{.clique = clique, .rank = rank, .gpu = Machine::Get().current_gpu};
  *comm = reinterpret_cast<NcclComm>(made);
  return kNcclSuccess;
}
NcclResult ncclCommGetAsyncError(NcclComm comm, NcclResult* result) {
  int& busy = Of(comm)->busy;
  if (const int injected = InjectedResult("ncclCommGetAsyncError")) {
    *result = injected;
    return kNcclSuccess;
  }
  *result = busy > 0 ? kNcclInProgress : kNcclSuccess;
  if (busy > 0) --busy;
  return kNcclSuccess;
}
NcclResult ncclCommAbort(NcclComm comm) {
  for (const auto& joint : Of(comm)->joints) joint->over = true;
  delete Of(comm);
  return kNcclSuccess;
}

NcclResult ncclGroupStart() {
  ++group_depth;
  return kNcclSuccess;
}
NcclResult ncclGroupEnd() {
  if (--group_depth > 0) return kNcclSuccess;
  const std::vector<Call> parts = std::exchange(calls, {});
  if (parts.empty()) return kNcclInProgress;
  if (static_cast<int>(parts.size()) != parts[0].comm->clique->count) return kInvalidUsage;
  const auto joint = std::make_shared<Joint>();
  joint->run = [parts] { Run(parts); };
  for (const Call& part : parts) {
    if (part.comm->clique != parts[0].comm->clique || part.kind != parts[0].kind ||
        part.root != parts[0].root) {
      return kInvalidUsage;
    }
    joint->streams.push_back(part.stream);
    part.stream->works.push_back({.ready = {}, .run = {}, .joint = joint});
    part.comm->joints.push_back(joint);
    part.comm->busy = kAsksUntilReady;
  }
  return kNcclInProgress;
}

NcclResult ncclAllReduce(const void* send, void* receive, size_t count, NcclDType dtype, NcclOp op,
                         NcclComm comm, CuStream stream) {
  if (const int injected = InjectedResult("ncclAllReduce")) return injected;
  return Add(Kind::kAllReduce, send, receive, count, dtype, OpOf(op), comm, stream);
}
NcclResult ncclReduce(const void* send, void* receive, size_t count, NcclDType dtype, NcclOp op,
                      int root, NcclComm comm, CuStream stream) {
  return Add(Kind::kReduce, send, receive, count, dtype, OpOf(op), comm, stream, root);
}
NcclResult ncclBroadcast(const void* send, void* receive, size_t count, NcclDType dtype, int root,
                         NcclComm comm, CuStream stream) {
  return Add(Kind::kBroadcast, send, receive, count, dtype, talweg::Op::kSum, comm, stream, root);
}
NcclResult ncclAllGather(const void* send, void* receive, size_t count, NcclDType dtype,
                         NcclComm comm, CuStream stream) {
  return Add(Kind::kAllGather, send, receive, count, dtype, talweg::Op::kSum, comm, stream);
}
NcclResult ncclReduceScatter(const void* send, void* receive, size_t count, NcclDType dtype,
                             NcclOp op, NcclComm comm, CuStream stream) {
  return Add(Kind::kReduceScatter, send, receive, count, dtype, OpOf(op), comm, stream);
}

}  // extern "C"
