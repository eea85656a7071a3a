/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TALWEG_CLIENTS_C_TALWEG_EXCHANGE_H_
#define TALWEG_CLIENTS_C_TALWEG_EXCHANGE_H_

#include "clients/c/talweg.h"

/* What exchanges of tensors of any shape need beyond talweg.h: parts that lie apart, and a whole
 * call in one. The Python package's collectives are made of these (docs/collectives.md). */

#ifdef __cplusplus
extern "C" {
#endif

/* How many parts a contribution to the tensor has room for: those that this rank gives, where the
 * node's ranks read each other's; all, where the agent or an older release has to do with it. 0 for
 * no tensor. */
TALWEG_API uint32_t talweg_parts_held(talweg_client* client, talweg_tensor tensor);

/* As talweg_push_parts. places[i]: where the i-th part lies that this rank gives; `places` may be
 * NULL where it gives nothing. `own`: where the part goes that this rank gives itself, for a caller
 * that knows; the talweg_wait_places of the round then finds it there. It may be the part's own
 * place. NULL: it is copied with the others. */
TALWEG_API talweg_status talweg_push_places(talweg_client* client, talweg_tensor tensor,
                                            const void* const* places, const uint64_t* lengths,
                                            void* own, uint64_t signature, int32_t priority,
                                            int64_t timeout_ns, talweg_round* round);

/* As talweg_wait_parts: the i-th part that this rank gets goes to places[i], where there is room
 * for rooms[i] bytes. */
TALWEG_API talweg_status talweg_wait_places(talweg_client* client, talweg_tensor tensor,
                                            talweg_round round, void* const* places,
                                            const uint64_t* rooms, int64_t timeout_ns);

/* A call in one round of an all_gather of bytes. */
typedef struct {
  size_t struct_bytes; /* sizeof(talweg_exchange_call). */
  /* What every rank must say alike, and what it gives after that: as much as the tensor's part has
   * room for, at most TALWEG_EXCHANGE_BYTES_MAX. Words say how long they are, so that none begin
   * others, and how much is given. */
  const void* words;
  uint64_t word_bytes;
  const void* data;
  uint64_t data_bytes;
  /* Where all that the ranks have said and given goes, rank by rank. */
  void* all;
  uint64_t all_bytes;
  /* If all have said the same: `bytes` at `offset` of each rank's data. Without an op they go to
   * `out` one after another. With one they are combined, as `dtype`, and `bytes` go there: in the
   * order of ranks and as the ranks of one node do, so only where talweg_parts_held of the tensor
   * is 1. */
  talweg_op op; /* TALWEG_BROADCAST: none. */
  talweg_dtype dtype;
  uint64_t offset;
  uint64_t bytes;
  void* out;
} talweg_exchange_call;

#define TALWEG_EXCHANGE_BYTES_MAX 16384

/* Pushes and waits. TALWEG_OK: the round is over; *alike: whether all ranks have said the same, and
 * `out` is written. TALWEG_TIMEOUT: if *round is not 0 the call was pushed, and talweg_wait_parts
 * goes on waiting for it. */
TALWEG_API talweg_status talweg_exchange(talweg_client* client, talweg_tensor tensor,
                                         const talweg_exchange_call* call, int64_t timeout_ns,
                                         talweg_round* round, int* alike);

/* The second half of talweg_exchange, for a round that talweg_wait_parts has copied to call->all:
 * call->data is not looked at. */
TALWEG_API talweg_status talweg_finish_exchange(talweg_client* client, talweg_tensor tensor,
                                                const talweg_exchange_call* call, int* alike);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TALWEG_CLIENTS_C_TALWEG_EXCHANGE_H_ */
