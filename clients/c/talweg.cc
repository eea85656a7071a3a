// SPDX-License-Identifier: Apache-2.0
#include "clients/c/talweg.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <span>

#include "clients/c/abi.h"
#include "clients/c/environment.h"
#include "libs/base/collective.h"
#include "libs/base/release.h"
#include "libs/reduce/reduce.h"
#include "libs/shm/client/client.h"

// The C ABI over libs/shm/client: checks arguments, keeps each thread's error text.

using talweg::Collective;
using talweg::DType;
using talweg::Encoding;
using talweg::Op;
using talweg::Share;
using talweg::c::FromC;
using talweg::c::Invalid;
using talweg::c::NumberIn;
using talweg::c::ToC;
using talweg::shm::Client;
using talweg::shm::Declare;
using talweg::shm::ErrorText;
using talweg::shm::RankStatus;

namespace {

static_assert(TALWEG_F32 == static_cast<int>(DType::kF32));
static_assert(TALWEG_BF16 == static_cast<int>(DType::kBF16));
static_assert(TALWEG_I64 == static_cast<int>(DType::kI64));
static_assert(TALWEG_I16 == static_cast<int>(DType::kI16));
static_assert(TALWEG_U64 == static_cast<int>(DType::kU64));
static_assert(TALWEG_BOOL == static_cast<int>(DType::kBool));
static_assert(TALWEG_SUM == static_cast<int>(Op::kSum));
static_assert(TALWEG_BROADCAST == static_cast<int>(Op::kCopy));
static_assert(TALWEG_COPY == static_cast<int>(Op::kCopy));
static_assert(TALWEG_SHARE_WHOLE == static_cast<int>(Share::kWhole));
static_assert(TALWEG_SHARE_ROOT == static_cast<int>(Share::kRoot));
static_assert(TALWEG_SHARE_OWN == static_cast<int>(Share::kOwn));
static_assert(TALWEG_SHARE_ROW == static_cast<int>(Share::kRow));
static_assert(TALWEG_SHARE_COLUMN == static_cast<int>(Share::kColumn));
static_assert(TALWEG_TWICE == static_cast<int>(Encoding::kTwice));
static_assert(TALWEG_AS_INT8 == static_cast<int>(Encoding::kInt8));
static_assert(TALWEG_GAPS == static_cast<int>(Encoding::kGaps));
static_assert(TALWEG_FEW == static_cast<int>(Encoding::kFew));
static_assert(TALWEG_BIT_AND == static_cast<int>(Op::kBitAnd));
static_assert(TALWEG_BIT_XOR == static_cast<int>(Op::kBitXor));
static_assert(TALWEG_ANY_LOCAL_RANK == talweg::shm::kAnyLocalRank);

constexpr int64_t kConnectTimeoutNs = 60'000'000'000;
// A talweg_collective of a version before 1.3 ends before this field.
constexpr size_t kCollectiveBytesMin = offsetof(talweg_collective, side);
constexpr char kBarrierName[] = "talweg.barrier";

// The only state outside of clients is each thread's last error, like errno.
thread_local ErrorText last_error;

// A value that does not fit must not turn into a valid one.
talweg_status ToCollective(const char* name, const talweg_collective& given,
                           Collective* collective) {
  const unsigned dtype = NumberIn(given.dtype);
  const unsigned op = NumberIn(given.op);
  const unsigned gives = NumberIn(given.gives);
  const unsigned gets = NumberIn(given.gets);
  const bool has_side = given.struct_bytes >= offsetof(talweg_collective, patience_ms);
  const unsigned encoding = given.struct_bytes >= sizeof(given) ? NumberIn(given.encoding) : 0;
  const uint32_t patience_ms = given.struct_bytes >= sizeof(given) ? given.patience_ms : 0;
  if (patience_ms > 0xffff) {
    return ToC(last_error.Fail(RankStatus::kInvalidArgument,
                               "tensor '%s': a patience of %u ms; it is at most 65535 ms", name,
                               patience_ms));
  }
  if (dtype > 0xff || op > 0xff || gives > 0xff || gets > 0xff || encoding > 0xff) {
    return ToC(last_error.Fail(
        RankStatus::kInvalidArgument,
        "tensor '%s': dtype %u, operation %u, share %u or %u, or encoding %u does not exist", name,
        dtype, op, gives, gets, encoding));
  }
  *collective = {static_cast<DType>(dtype),
                 static_cast<Op>(op),
                 static_cast<Share>(gives),
                 static_cast<Share>(gets),
                 given.element_count,
                 has_side && given.side != 0,
                 static_cast<Encoding>(encoding),
                 static_cast<uint16_t>(patience_ms)};
  return TALWEG_OK;
}

talweg_status ToDeclare(const talweg_declaration& given, uint32_t flags, Declare* declare) {
  talweg_collective reduction{};
  std::memcpy(&reduction.dtype, &given.dtype, sizeof given.dtype);
  std::memcpy(&reduction.op, &given.op, sizeof given.op);
  const bool has_root = NumberIn(given.op) == TALWEG_BROADCAST;
  reduction.gives = has_root ? TALWEG_SHARE_ROOT : TALWEG_SHARE_WHOLE;
  reduction.gets = TALWEG_SHARE_WHOLE;
  reduction.element_count = given.count;
  Collective collective;
  const talweg_status status = ToCollective(given.name, reduction, &collective);
  if (status != TALWEG_OK) return status;
  *declare = Declare::Of(collective, given.name);
  declare->root_rank = given.root_rank;
  declare->priority = given.priority;
  declare->flags = flags;
  return TALWEG_OK;
}

// Returns whether all pointers that a declaration needs are set.
talweg_status CheckDeclaration(const char* function, const talweg_client* client, const char* name,
                               const talweg_tensor* tensor) {
  if (client != nullptr && name != nullptr && tensor != nullptr) return TALWEG_OK;
  return ToC(last_error.Fail(RankStatus::kInvalidArgument, "%s: `%s` is NULL", function,
                             client == nullptr ? "client"
                             : name == nullptr ? "name"
                                               : "tensor"));
}

talweg_status DeclareWith(const char* function, talweg_client* client,
                          const talweg_declaration& declaration, uint32_t flags, int64_t timeout_ns,
                          talweg_tensor* tensor) {
  Declare declare;
  talweg_status status = CheckDeclaration(function, client, declaration.name, tensor);
  if (status == TALWEG_OK) status = ToDeclare(declaration, flags, &declare);
  if (status != TALWEG_OK) return status;
  return ToC(FromC(client)->DeclareTensors({&declare, 1}, timeout_ns, tensor, last_error));
}

talweg_status DeclareAllWith(const char* function, talweg_client* client,
                             const talweg_declaration* declarations, size_t count, uint32_t flags,
                             int64_t timeout_ns, talweg_tensor* tensors) {
  const auto invalid = [function](const char* what) {
    return ToC(last_error.Fail(RankStatus::kInvalidArgument, "%s: %s is NULL", function, what));
  };
  if (client == nullptr) return invalid("`client`");
  if (count == 0) return TALWEG_OK;
  if (declarations == nullptr || tensors == nullptr) {
    return invalid("`declarations` or `tensors`");
  }
  auto* const declares = static_cast<Declare*>(std::calloc(count, sizeof(Declare)));
  if (declares == nullptr) {
    return ToC(last_error.Fail(RankStatus::kOutOfMemory, "%s: no memory for %zu declarations",
                               function, count));
  }
  talweg_status status = TALWEG_OK;
  for (size_t i = 0; i < count && status == TALWEG_OK; ++i) {
    status = declarations[i].name == nullptr
                 ? ToC(last_error.Fail(RankStatus::kInvalidArgument,
                                       "%s: the name of number %zu is NULL", function, i))
                 : ToDeclare(declarations[i], flags, &declares[i]);
  }
  if (status == TALWEG_OK) {
    status = ToC(FromC(client)->DeclareTensors({declares, count}, timeout_ns, tensors, last_error));
  }
  std::free(declares);
  return status;
}

}  // namespace

ErrorText& talweg::c::LastError() { return last_error; }

extern "C" {

const char* talweg_version(void) { return talweg::kRelease; }

uint32_t talweg_abi_version(void) { return TALWEG_VERSION_MAJOR * 65536u + TALWEG_VERSION_MINOR; }

const char* talweg_status_name(talweg_status status) {
  return talweg::shm::RankStatusName(static_cast<RankStatus>(status));
}

size_t talweg_dtype_bytes(talweg_dtype dtype) {
  const auto value = static_cast<unsigned>(dtype);
  return value > UINT8_MAX ? 0 : talweg::DTypeSize(static_cast<DType>(value));
}

const char* talweg_last_error(void) { return last_error.text(); }

void talweg_options_init_sized(talweg_options* options, size_t struct_bytes) {
  if (options == nullptr) return;
  talweg_options defaults{};
  defaults.struct_bytes = struct_bytes;
  defaults.local_rank = TALWEG_LOCAL_RANK_FROM_ENVIRONMENT;
  defaults.timeout_ns = kConnectTimeoutNs;
  defaults.spin_ns = -1;
  std::memset(options, 0, struct_bytes);
  std::memcpy(options, &defaults, std::min(struct_bytes, sizeof(defaults)));
}

talweg_status talweg_connect(const talweg_options* options, talweg_client** client) {
  if (client == nullptr) return Invalid("talweg_connect: `client` is NULL");
  *client = nullptr;
  talweg_options effective;
  talweg_options_init(&effective);
  if (options != nullptr) {
    if (options->struct_bytes == 0) {
      return Invalid("talweg_connect: the options were not initialised with talweg_options_init");
    }
    std::memcpy(&effective, options, std::min(options->struct_bytes, sizeof(effective)));
  }
  if (effective.local_rank == TALWEG_LOCAL_RANK_FROM_ENVIRONMENT) {
    const RankStatus found = talweg::c::LocalRankFromEnvironment(&effective.local_rank, last_error);
    if (found != RankStatus::kOk) return ToC(found);
  }
  talweg::shm::ClientOptions wanted;
  const RankStatus found = talweg::c::CacheBytesFromEnvironment(&wanted.cache_bytes, last_error);
  if (found != RankStatus::kOk) return ToC(found);
  wanted.socket_path = effective.agent_socket != nullptr ? effective.agent_socket
                                                         : std::getenv("TALWEG_AGENT_SOCKET");
  if (wanted.socket_path == nullptr || *wanted.socket_path == '\0') {
    return ToC(last_error.Fail(
        RankStatus::kNoAgent,
        "where the agent listens is not known: TALWEG_AGENT_SOCKET is not set; run the "
        "program under `talweg run`, or set it to the path of an agent's socket"));
  }
  char name[talweg::shm::kClientNameBytesMax];
  size_t name_bytes = 0;
  if (effective.client_name != nullptr) {
    name_bytes = std::min(std::strlen(effective.client_name), sizeof(name));
    std::memcpy(name, effective.client_name, name_bytes);
  } else {
    name_bytes = talweg::c::CommandLine(name, sizeof(name));
  }
  wanted.client_name = {name, name_bytes};
  wanted.wanted_local_rank = effective.local_rank;
  wanted.timeout_ns = effective.timeout_ns;
  wanted.agent_wait_ns = effective.agent_wait_ns;
  wanted.spin_ns = effective.spin_ns;
  wanted.standby = effective.standby != 0;
  Client* connected = nullptr;
  talweg::c::SayThatAgentIsNeeded();
  const RankStatus status = Client::Connect(wanted, &connected, last_error);
  if (status == RankStatus::kOk) talweg::c::SayThatAgentIsFound();
  *client = reinterpret_cast<talweg_client*>(connected);
  return ToC(status);
}

talweg_status talweg_shutdown(talweg_client* client, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_shutdown: `client` is NULL");
  return ToC(FromC(client)->Shutdown(timeout_ns, last_error));
}

void talweg_free(talweg_client* client) { Client::Free(FromC(client)); }

uint32_t talweg_rank(const talweg_client* client) {
  return client == nullptr ? 0 : FromC(client)->identity().rank;
}

uint32_t talweg_size(const talweg_client* client) {
  return client == nullptr ? 0 : FromC(client)->identity().size;
}

uint32_t talweg_local_rank(const talweg_client* client) {
  return client == nullptr ? 0 : FromC(client)->identity().local_rank;
}

uint32_t talweg_local_size(const talweg_client* client) {
  return client == nullptr ? 0 : FromC(client)->identity().local_size;
}

uint32_t talweg_node_rank(const talweg_client* client) {
  return client == nullptr ? 0 : FromC(client)->identity().node_rank;
}

uint32_t talweg_node_count(const talweg_client* client) {
  return client == nullptr ? 0 : FromC(client)->identity().node_count;
}

const char* talweg_job_name(const talweg_client* client) {
  return client == nullptr ? "" : FromC(client)->identity().job_name;
}

talweg_status talweg_health(talweg_client* client) {
  if (client == nullptr) return Invalid("talweg_health: `client` is NULL");
  return ToC(FromC(client)->Health(last_error));
}

talweg_status talweg_declare(talweg_client* client, const char* name, talweg_dtype dtype,
                             talweg_op op, uint32_t root_rank, uint64_t count, int32_t priority,
                             int64_t timeout_ns, talweg_tensor* tensor) {
  const talweg_declaration declaration = {name, dtype, op, root_rank, priority, count};
  return DeclareWith("talweg_declare", client, declaration, 0, timeout_ns, tensor);
}

talweg_status talweg_declare_all(talweg_client* client, const talweg_declaration* declarations,
                                 size_t declaration_count, int64_t timeout_ns,
                                 talweg_tensor* tensors) {
  return DeclareAllWith("talweg_declare_all", client, declarations, declaration_count, 0,
                        timeout_ns, tensors);
}

talweg_status talweg_declare_all_in_place(talweg_client* client,
                                          const talweg_declaration* declarations,
                                          size_t declaration_count, int64_t timeout_ns,
                                          talweg_tensor* tensors) {
  return DeclareAllWith("talweg_declare_all_in_place", client, declarations, declaration_count,
                        talweg::shm::kDeclareInPlace, timeout_ns, tensors);
}

int talweg_sums_in_place(talweg_client* client, talweg_tensor tensor) {
  return client != nullptr && FromC(client)->SumsInPlace(tensor) ? 1 : 0;
}

talweg_status talweg_attach(talweg_client* client, talweg_tensor tensor, void* address) {
  if (client == nullptr) return Invalid("talweg_attach: `client` is NULL");
  return ToC(FromC(client)->Attach(tensor, address, last_error));
}

talweg_status talweg_detach(talweg_client* client, talweg_tensor tensor) {
  if (client == nullptr) return Invalid("talweg_detach: `client` is NULL");
  return ToC(FromC(client)->Detach(tensor, last_error));
}

talweg_status talweg_gpu_export(talweg_client* client, const uint8_t* uuid, uint64_t buffer_id,
                                const uint8_t* handle, int64_t timeout_ns,
                                talweg_gpu_buffer* buffer, uint64_t* bytes) {
  if (client == nullptr) return Invalid("talweg_gpu_export: `client` is NULL");
  if (uuid == nullptr || handle == nullptr) {
    return Invalid("talweg_gpu_export: `uuid` or `handle` is NULL");
  }
  if (buffer == nullptr || bytes == nullptr) {
    return Invalid("talweg_gpu_export: `buffer` or `bytes` is NULL");
  }
  talweg::shm::Export exported{.buffer_id = buffer_id};
  std::memcpy(exported.uuid.data(), uuid, TALWEG_GPU_UUID_BYTES);
  std::memcpy(exported.handle.data(), handle, TALWEG_GPU_HANDLE_BYTES);
  return ToC(FromC(client)->ExportBuffer(exported, timeout_ns, buffer, bytes, last_error));
}

talweg_status talweg_gpu_unexport(talweg_client* client, talweg_gpu_buffer buffer,
                                  int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_gpu_unexport: `client` is NULL");
  return ToC(FromC(client)->UnexportBuffer(buffer, timeout_ns, last_error));
}

talweg_status talweg_gpu_declare(talweg_client* client, const char* name, talweg_dtype dtype,
                                 talweg_op op, uint32_t root_rank, uint64_t count, int32_t priority,
                                 talweg_gpu_buffer buffer, uint8_t* pushed, uint8_t* taken,
                                 int64_t timeout_ns, talweg_tensor* tensor) {
  if (pushed == nullptr || taken == nullptr) {
    return Invalid("talweg_gpu_declare: `pushed` or `taken` is NULL");
  }
  const talweg::shm::Deadline deadline(timeout_ns);
  const talweg_status declared =
      DeclareWith("talweg_gpu_declare", client, {name, dtype, op, root_rank, priority, count},
                  talweg::shm::kDeclareOnDevice, timeout_ns, tensor);
  if (declared != TALWEG_OK) return declared;
  const int64_t left_ns =
      deadline.never() ? int64_t{-1} : deadline.LeftNs(talweg::shm::MonotonicNs());
  return talweg_gpu_place(client, *tensor, buffer, pushed, taken, left_ns);
}

talweg_status talweg_gpu_declare_all(talweg_client* client, const talweg_declaration* declarations,
                                     size_t declaration_count, int64_t timeout_ns,
                                     talweg_tensor* tensors) {
  return DeclareAllWith("talweg_gpu_declare_all", client, declarations, declaration_count,
                        talweg::shm::kDeclareOnDevice, timeout_ns, tensors);
}

talweg_status talweg_gpu_place(talweg_client* client, talweg_tensor tensor,
                               talweg_gpu_buffer buffer, uint8_t* pushed, uint8_t* taken,
                               int64_t timeout_ns) {
  return talweg_gpu_place_signed(client, tensor, buffer, 0, pushed, taken, timeout_ns);
}

talweg_status talweg_gpu_place_signed(talweg_client* client, talweg_tensor tensor,
                                      talweg_gpu_buffer buffer, uint64_t signature, uint8_t* pushed,
                                      uint8_t* taken, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_gpu_place: `client` is NULL");
  if (pushed == nullptr || taken == nullptr) {
    return Invalid("talweg_gpu_place: `pushed` or `taken` is NULL");
  }
  talweg::shm::GpuHandleBytes pushed_handle;
  talweg::shm::GpuHandleBytes taken_handle;
  const RankStatus placed = FromC(client)->PlaceTensor(tensor, buffer, signature, timeout_ns,
                                                       &pushed_handle, &taken_handle, last_error);
  if (placed != RankStatus::kOk) return ToC(placed);
  std::memcpy(pushed, pushed_handle.data(), TALWEG_GPU_HANDLE_BYTES);
  std::memcpy(taken, taken_handle.data(), TALWEG_GPU_HANDLE_BYTES);
  return TALWEG_OK;
}

talweg_status talweg_gpu_push_pull(talweg_client* client, talweg_tensor tensor,
                                   talweg_gpu_buffer buffer, uint64_t offset, int32_t priority,
                                   int64_t timeout_ns, talweg_round* round) {
  if (client == nullptr) return Invalid("talweg_gpu_push_pull: `client` is NULL");
  uint64_t pushed = 0;
  const RankStatus status =
      FromC(client)->PushOnDevice(tensor, buffer, offset, priority == TALWEG_DECLARED_PRIORITY,
                                  priority, timeout_ns, &pushed, last_error);
  if (round != nullptr) *round = pushed;
  return ToC(status);
}

uint64_t talweg_tensor_bytes(talweg_client* client, talweg_tensor tensor) {
  return client == nullptr ? 0 : FromC(client)->TensorBytes(tensor);
}

void* talweg_contribution(talweg_client* client, talweg_tensor tensor) {
  return client == nullptr ? nullptr : FromC(client)->Contribution(tensor);
}

talweg_status talweg_push_pull(talweg_client* client, talweg_tensor tensor, const void* data,
                               int32_t priority, int64_t timeout_ns, talweg_round* round) {
  if (client == nullptr) return Invalid("talweg_push_pull: `client` is NULL");
  return talweg_push_parts(client, tensor, data, nullptr, 0, priority, timeout_ns, round);
}

talweg_status talweg_declare_collective(talweg_client* client, const char* name,
                                        const talweg_collective* collective, int32_t priority,
                                        int64_t timeout_ns, talweg_tensor* tensor) {
  talweg_status status = CheckDeclaration("talweg_declare_collective", client, name, tensor);
  if (status != TALWEG_OK) return status;
  if (collective == nullptr || collective->struct_bytes < kCollectiveBytesMin) {
    return Invalid(
        "talweg_declare_collective: `collective` is NULL, or its struct_bytes is not set");
  }
  if (collective->rank_count > 0 && collective->ranks == nullptr) {
    return Invalid("talweg_declare_collective: `ranks` is NULL, and rank_count is not 0");
  }
  Collective declared;
  status = ToCollective(name, *collective, &declared);
  if (status != TALWEG_OK) return status;
  Declare declare = Declare::Of(declared, name);
  declare.root_rank = collective->root_rank;
  declare.priority = priority;
  declare.ranks =
      talweg::shm::RankList(std::span<const uint32_t>(collective->ranks, collective->rank_count));
  return ToC(FromC(client)->DeclareTensors({&declare, 1}, timeout_ns, tensor, last_error));
}

uint32_t talweg_parts_given(talweg_client* client, talweg_tensor tensor) {
  return client == nullptr ? 0 : FromC(client)->PartsGiven(tensor);
}

uint32_t talweg_parts_got(talweg_client* client, talweg_tensor tensor) {
  return client == nullptr ? 0 : FromC(client)->PartsGot(tensor);
}

talweg_status talweg_push_parts(talweg_client* client, talweg_tensor tensor, const void* data,
                                const uint64_t* lengths, uint64_t signature, int32_t priority,
                                int64_t timeout_ns, talweg_round* round) {
  if (client == nullptr) return Invalid("talweg_push_parts: `client` is NULL");
  uint64_t pushed = 0;
  const RankStatus status = FromC(client)->Push(
      tensor, data, {.lengths = lengths, .signature = signature},
      priority == TALWEG_DECLARED_PRIORITY, priority, timeout_ns, &pushed, last_error);
  if (round != nullptr) *round = pushed;
  return ToC(status);
}

talweg_status talweg_wait_lengths(talweg_client* client, talweg_tensor tensor, talweg_round round,
                                  uint64_t* lengths, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_wait_lengths: `client` is NULL");
  if (lengths == nullptr && FromC(client)->PartsGot(tensor) > 0) {
    return Invalid("talweg_wait_lengths: `lengths` is NULL, and this rank gets something");
  }
  return ToC(FromC(client)->Wait(tensor, round, {.lengths = lengths, .takes = false}, timeout_ns,
                                 last_error));
}

talweg_status talweg_wait_parts(talweg_client* client, talweg_tensor tensor, talweg_round round,
                                void* out, uint64_t out_bytes, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_wait_parts: `client` is NULL");
  return ToC(FromC(client)->Wait(tensor, round,
                                 {.out = out, .out_bytes = out == nullptr ? 0 : out_bytes},
                                 timeout_ns, last_error));
}

talweg_status talweg_poll(talweg_client* client, talweg_tensor tensor, talweg_round round) {
  if (client == nullptr) return Invalid("talweg_poll: `client` is NULL");
  return ToC(FromC(client)->Poll(tensor, round, last_error));
}

talweg_status talweg_wait(talweg_client* client, talweg_tensor tensor, talweg_round round,
                          void* out, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_wait: `client` is NULL");
  return ToC(FromC(client)->Wait(tensor, round, {.out = out}, timeout_ns, last_error));
}

talweg_status talweg_wait_again(talweg_client* client, talweg_tensor tensor, talweg_round round,
                                void* out, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_wait_again: `client` is NULL");
  return ToC(
      FromC(client)->Wait(tensor, round, {.out = out, .again = true}, timeout_ns, last_error));
}

talweg_status talweg_result(talweg_client* client, talweg_tensor tensor, talweg_round round,
                            const void** data, uint64_t* bytes) {
  if (client == nullptr) return Invalid("talweg_result: `client` is NULL");
  if (data == nullptr) return Invalid("talweg_result: `data` is NULL");
  uint64_t length = 0;
  const RankStatus status = FromC(client)->Result(tensor, round, data, &length, last_error);
  if (bytes != nullptr) *bytes = length;
  return ToC(status);
}

uint64_t talweg_ranks_summed(talweg_client* client, talweg_tensor tensor) {
  return client == nullptr ? 0 : FromC(client)->RanksSummed(tensor);
}

talweg_status talweg_broadcast(talweg_client* client, const char* name, void* data, uint64_t count,
                               talweg_dtype dtype, uint32_t root_rank, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_broadcast: `client` is NULL");
  if (data == nullptr && count > 0) return Invalid("talweg_broadcast: `data` is NULL");
  const talweg::shm::Deadline deadline(timeout_ns);
  const auto left_ns = [&deadline] {
    return deadline.never() ? int64_t{-1} : deadline.LeftNs(talweg::shm::MonotonicNs());
  };
  talweg_tensor tensor = 0;
  talweg_status status = talweg_declare(client, name, dtype, TALWEG_BROADCAST, root_rank, count, 0,
                                        left_ns(), &tensor);
  if (status != TALWEG_OK) return status;
  const bool is_root = talweg_rank(client) == root_rank;
  talweg_round round = 0;
  status = talweg_push_pull(client, tensor, is_root ? data : nullptr, TALWEG_DECLARED_PRIORITY,
                            left_ns(), &round);
  if (status != TALWEG_OK) return status;
  // The root has its bytes already.
  return talweg_wait(client, tensor, round, is_root ? nullptr : data, left_ns());
}

talweg_status talweg_barrier(talweg_client* client, const char* name, int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_barrier: `client` is NULL");
  const talweg::shm::Deadline deadline(timeout_ns);
  const auto left_ns = [&deadline] {
    return deadline.never() ? int64_t{-1} : deadline.LeftNs(talweg::shm::MonotonicNs());
  };
  talweg_tensor tensor = 0;
  talweg_status status = talweg_declare(client, name == nullptr ? kBarrierName : name, TALWEG_I32,
                                        TALWEG_SUM, 0, 1, 0, left_ns(), &tensor);
  if (status != TALWEG_OK) return status;
  // After a timeout the barrier is still open, and this rank is counted in it.
  talweg_round round = FromC(client)->OpenRound(tensor);
  if (round == 0) {
    const int32_t one = 1;
    status = talweg_push_pull(client, tensor, &one, INT32_MAX, left_ns(), &round);
    if (status != TALWEG_OK) return status;
  }
  return talweg_wait(client, tensor, round, nullptr, left_ns());
}

talweg_status talweg_scale(talweg_dtype dtype, double factor, const void* in, void* out,
                           uint64_t count) {
  const unsigned number = NumberIn(dtype);
  const DType scaled = number > 0xff ? DType::kUnspecified : static_cast<DType>(number);
  if (!talweg::IsValid(scaled) || !talweg::reduce::IsScalable(scaled)) {
    return Invalid("talweg_scale: `dtype` is neither a float nor an integer");
  }
  if (count == 0) return TALWEG_OK;
  if (in == nullptr || out == nullptr) return Invalid("talweg_scale: `in` or `out` is NULL");
  const uint64_t width = talweg::DTypeSize(scaled);
  const auto first = reinterpret_cast<uintptr_t>(in), second = reinterpret_cast<uintptr_t>(out);
  const uintptr_t apart = first < second ? second - first : first - second;
  if (count > UINTPTR_MAX / width || (apart != 0 && apart < count * width)) {
    return Invalid("talweg_scale: `in` and `out` overlap: pass the same address or other memory");
  }
  talweg::reduce::Scale(scaled, factor, static_cast<const std::byte*>(in),
                        static_cast<std::byte*>(out), count);
  return TALWEG_OK;
}

talweg_status talweg_get_statistics(talweg_client* client, talweg_statistics* statistics) {
  if (client == nullptr) return Invalid("talweg_get_statistics: `client` is NULL");
  if (statistics == nullptr || statistics->struct_bytes < sizeof(size_t)) {
    return Invalid("talweg_get_statistics: `statistics` is NULL or its struct_bytes is not set");
  }
  const talweg::shm::ClientStatistics& counted = FromC(client)->statistics();
  talweg_statistics all{};
  all.struct_bytes = statistics->struct_bytes;
  all.tensors = counted.tensors.load();
  all.pushes = counted.pushes.load();
  all.bytes_pushed = counted.bytes_pushed.load();
  all.bytes_copied = counted.bytes_copied.load();
  all.waits = counted.waits.load();
  all.waits_slept = counted.waits_slept.load();
  all.wait_ns = counted.wait_ns.load();
  all.ring_full = counted.ring_full.load();
  std::memcpy(statistics, &all, std::min(statistics->struct_bytes, sizeof(all)));
  return TALWEG_OK;
}

}  // extern "C"
