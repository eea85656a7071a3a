/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TALWEG_CLIENTS_C_TALWEG_EXCHANGE_H_
#define TALWEG_CLIENTS_C_TALWEG_EXCHANGE_H_

#include "clients/c/talweg.h"

/* What exchanges of tensors of any shape need beyond talweg.h: parts that lie apart, a whole
 * exchange in one call, and compression of gradients. The Python package uses these
 * (docs/collectives.md, docs/compression.md). */

#ifdef __cplusplus
extern "C" {
#endif

/* Returns how many parts a contribution to the tensor has room for: only the parts that this rank
 * gives, if the node's ranks read each other's contributions; all parts, if the agent or an older
 * release reads them. 0 if `tensor` is none. */
TALWEG_API uint32_t talweg_parts_held(talweg_client* client, talweg_tensor tensor);

/* Like talweg_push_parts. places[i]: the i-th part that this rank gives; `places` may be NULL if it
 * gives nothing. `own`: where the part that this rank gives to itself will go, if the caller knows
 * that already; the round's talweg_wait_places then finds it there. It may be the part's own place.
 * NULL: the part is copied with the others. */
TALWEG_API talweg_status talweg_push_places(talweg_client* client, talweg_tensor tensor,
                                            const void* const* places, const uint64_t* lengths,
                                            void* own, uint64_t signature, int32_t priority,
                                            int64_t timeout_ns, talweg_round* round);

/* Like talweg_wait_parts. The i-th part that this rank gets goes to places[i], which has room for
 * rooms[i] bytes. */
TALWEG_API talweg_status talweg_wait_places(talweg_client* client, talweg_tensor tensor,
                                            talweg_round round, void* const* places,
                                            const uint64_t* rooms, int64_t timeout_ns);

/* A call that takes one round of an all_gather of bytes. */
typedef struct {
  size_t struct_bytes; /* sizeof(talweg_exchange_call). */
  /* `words` must be equal at all ranks; `data` is what the rank gives. Together they fit into a
   * part of the tensor, and have at most TALWEG_EXCHANGE_BYTES_MAX bytes. The words contain their
   * own length, so that no words are a prefix of others, and the length of the data. */
  const void* words;
  uint64_t word_bytes;
  const void* data;
  uint64_t data_bytes;
  /* Gets the words and data of all ranks, rank by rank. */
  void* all;
  uint64_t all_bytes;
  /* If all words are equal, `bytes` bytes at `offset` of each rank's data go to `out`. Without an
   * op they go there one after another. With an op they are combined, as `dtype`, in rank order and
   * as the ranks of one node do. So an op needs a tensor with talweg_parts_held of 1. */
  talweg_op op; /* TALWEG_BROADCAST: none. */
  talweg_dtype dtype;
  uint64_t offset;
  uint64_t bytes;
  void* out;
} talweg_exchange_call;

#define TALWEG_EXCHANGE_BYTES_MAX 16384

/* Pushes and waits. TALWEG_OK: the round is over. *alike is 1 if all words are equal, and `out` is
 * then written. TALWEG_TIMEOUT: if *round is not 0, the call was pushed, and talweg_wait_parts goes
 * on waiting for it. */
TALWEG_API talweg_status talweg_exchange(talweg_client* client, talweg_tensor tensor,
                                         const talweg_exchange_call* call, int64_t timeout_ns,
                                         talweg_round* round, int* alike);

/* The second half of talweg_exchange, for a round that talweg_wait_parts has copied to call->all.
 * Does not read call->data. */
TALWEG_API talweg_status talweg_finish_exchange(talweg_client* client, talweg_tensor tensor,
                                                const talweg_exchange_call* call, int* alike);

/* talweg_collective.patience_ms, if it is not 0: once half of the ranks that a round waits for are
 * there, the others have so many milliseconds to come, at most 65535. Then the round goes on
 * without those that are late, and an average still divides by all ranks. What a rank has pushed to
 * such a round is added to what it pushes next. It is for sums and averages of f32 and f64 to all
 * ranks, in host memory, pushed from the caller's own memory, and equal at all ranks. Needs an
 * agent of 1.7.
 *
 * Returns how many of the tensor's rounds went on without this rank, of those that it has taken.
 * (Since version 1.7.) */
TALWEG_API uint64_t talweg_left_out_count(talweg_client* client, talweg_tensor tensor);

/* Some rows of a tensor: `count` numbers of rows, ascending, and as many rows. A number may come
 * several times. Any alignment. */
typedef struct {
  const void* numbers;
  const void* values;
  uint64_t count;
} talweg_rows;

/* How the rows of talweg_add_rows lie in memory, and what combines them. */
typedef struct {
  size_t struct_bytes;   /* sizeof(talweg_row_sum). */
  uint32_t number_bytes; /* 4 or 8: numbers are signed integers of that size. */
  talweg_dtype dtype;
  uint64_t elements; /* A row has so many. */
  uint32_t divisor;  /* 1: a sum. Otherwise sums are divided by it; for floats. */
} talweg_row_sum;

/* Adds up the rows of all parts. Rows with the same number are added in the order of `parts`, and
 * within a part in its own order, as the ranks of one node add theirs. Writes the numbers,
 * ascending, to `numbers`, and the rows to `values`. Both have room for the rows of all parts, and
 * overlap no part. *count: how many rows there are. TALWEG_INVALID_ARGUMENT: the numbers of a part
 * do not ascend, or there is no such sum. (Since version 1.7.) */
TALWEG_API talweg_status talweg_add_rows(const talweg_row_sum* sum, const talweg_rows* parts,
                                         uint32_t part_count, int64_t* numbers, void* values,
                                         uint64_t* count);

/* What becomes of a gradient's numbers. docs/compression.md has the rules. */
typedef enum talweg_compressor TALWEG_ANY_INT {
  TALWEG_TOP_K = 1,    /* The k numbers of largest magnitude stay; the others become 0. */
  TALWEG_RANDOM_K = 2, /* k numbers stay, at places that `key` alone decides. */
  TALWEG_ONE_BIT = 3,  /* Each becomes a scale, or minus that. */
  TALWEG_DITHERING = 4 /* Each becomes one of 2 k + 1 levels, rounded up or down at random. */
} talweg_compressor;

/* Bits of talweg_compression.flags. */
#define TALWEG_COMPRESS_SCALING 1u /* TALWEG_ONE_BIT: the scale is the mean magnitude, not 1. */
#define TALWEG_COMPRESS_NATURAL 2u /* TALWEG_DITHERING: levels are powers of two. */
#define TALWEG_COMPRESS_L2 4u /* TALWEG_DITHERING: the top level is the L2 norm, not the max. */

typedef struct {
  size_t struct_bytes; /* sizeof(talweg_compression). */
  talweg_compressor compressor;
  uint32_t flags;
  /* TALWEG_TOP_K, TALWEG_RANDOM_K: below 1 a part of each partition, at least one number; otherwise
   * a number of numbers of each. TALWEG_DITHERING: levels above 0, at most 127 (natural: 31). */
  double k;
  uint64_t partition; /* The elements of a partition: each is compressed alone. 0: all are one. */
  uint64_t key;       /* Equal keys draw equal numbers. */
  float error_scale;  /* The factor for `error`, which is finite. */
  float mu;           /* The factor for `momentum`, which is finite. */
} talweg_compression;

/* Compresses `count` numbers in place. `error` and `momentum`, if they are not NULL, have as many
 * numbers, which begin as zeros: what was taken away so far, and Nesterov's momentum. A number that
 * is not finite stays as it is, and leaves a 0 in both. No array overlaps another.
 * (Since version 1.8.) */
TALWEG_API talweg_status talweg_compress(const talweg_compression* compression, float* values,
                                         float* error, float* momentum, uint64_t count);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TALWEG_CLIENTS_C_TALWEG_EXCHANGE_H_ */
