/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TALWEG_CLIENTS_C_TALWEG_H_
#define TALWEG_CLIENTS_C_TALWEG_H_

/*
 * libtalweg: one rank of a Talweg job, as a C99 library that needs only libc (glibc 2.17 or newer
 * on x86-64, Linux 5.4 or newer).
 *
 *   talweg_client* client;
 *   talweg_options options;
 *   talweg_options_init(&options);
 *   if (talweg_connect(&options, &client) != TALWEG_OK) fail(talweg_last_error());
 *   talweg_tensor weights;
 *   talweg_declare(client, "weights", TALWEG_F32, TALWEG_AVERAGE, 0, count, 0, -1, &weights);
 *   for (;;) {
 *     talweg_round round;
 *     talweg_push_pull(client, weights, gradient, TALWEG_DECLARED_PRIORITY, -1, &round);
 *     ... other work ...
 *     talweg_wait(client, weights, round, gradient, -1);
 *   }
 *   talweg_shutdown(client, -1);
 *   talweg_free(client);
 *
 * Threads: any thread may call any function at any time, except that talweg_free must be the last
 * call. Several clients of one process share nothing. The library starts no thread.
 *
 * Fork: in a child process every call returns TALWEG_FORKED (and closes the child's copy of the
 * socket). The contribution buffers are not mapped in the child; buffers of tensors in place read
 * as zeros there from the child's first call on. exec needs no care.
 *
 * Time: `timeout_ns` is how long the call may wait, in nanoseconds; 0: not at all; negative:
 * without limit. A call ends when the agent dies or the job fails, whatever its timeout. A timeout
 * only ends the waiting.
 *
 * Errors: every call returns a status. talweg_last_error() is the text of the calling thread's last
 * call that did not return TALWEG_OK or TALWEG_PENDING. It names the thing, the value and the
 * remedy.
 *
 * Compatibility: within one major version functions, constants and struct fields are only added.
 */

#include <stddef.h>
#include <stdint.h>

/* In C++, as in C, an enum may hold any int: the library refuses those that mean nothing. */
#if defined(__cplusplus) && __cplusplus >= 201103L
#define TALWEG_ANY_INT : int
#else
#define TALWEG_ANY_INT
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TALWEG_API __attribute__((visibility("default")))
#else
#define TALWEG_API
#endif

/* Version of this header. talweg_version() returns the library's. */
#define TALWEG_VERSION_MAJOR 1
#define TALWEG_VERSION_MINOR 8

typedef struct talweg_client talweg_client;
/* A declared tensor of one client. */
typedef uint32_t talweg_tensor;
/* The number of a tensor's push_pull: 1, 2, 3, ... */
typedef uint64_t talweg_round;

/* Values never change. */
typedef enum talweg_status {
  TALWEG_OK = 0,
  TALWEG_TIMEOUT = 1, /* The time is over. The round, if any, stays open: wait again. */
  TALWEG_INVALID_ARGUMENT = 2,
  TALWEG_MISMATCH = 3,         /* Ranks disagree on a tensor; the text names both sides. */
  TALWEG_BUSY = 4,             /* The tensor's last round is open: wait for it first. */
  TALWEG_JOB_FAILED = 5,       /* The text says which process died, or another cause. */
  TALWEG_AGENT_LOST = 6,       /* The agent has ended, or is stopped. */
  TALWEG_FORKED = 7,           /* The client belongs to the parent process. */
  TALWEG_VERSION_MISMATCH = 8, /* The text names both versions. */
  TALWEG_OUT_OF_MEMORY = 9,    /* The text names the limit. */
  TALWEG_UNSUPPORTED = 10,
  TALWEG_ABORTED = 11,  /* The round was abandoned at all ranks; push the next one. */
  TALWEG_NO_AGENT = 12, /* No process listens at the socket's path. */
  TALWEG_PERMISSION_DENIED = 13,
  TALWEG_RANK_TAKEN = 14, /* Another process has the wanted local rank; the text names its pid. */
  TALWEG_CLOSED = 15,     /* The client has been shut down. */
  TALWEG_LIMIT = 16,      /* A configured limit; the text names it. */
  TALWEG_PENDING = 17,    /* talweg_poll: not complete yet. */
  TALWEG_PROTOCOL = 18,   /* The agent sent bytes that are no message. */
  TALWEG_INTERNAL = 19,
  TALWEG_EVENTS_LOST = 20 /* For a tensor on a GPU: talweg_gpu_place, then push again. */
} talweg_status;

typedef enum talweg_dtype TALWEG_ANY_INT {
  TALWEG_F32 = 1,
  TALWEG_F64 = 2,
  TALWEG_F16 = 3,
  TALWEG_BF16 = 4,
  TALWEG_I8 = 5,
  TALWEG_U8 = 6,
  TALWEG_I32 = 7,
  TALWEG_I64 = 8,
  TALWEG_I16 = 9,
  TALWEG_U16 = 10,
  TALWEG_U32 = 11,
  TALWEG_U64 = 12,
  TALWEG_BOOL = 13 /* A byte, 0 or 1: min is "all", max is "any". */
} talweg_dtype;

typedef enum talweg_op TALWEG_ANY_INT {
  TALWEG_SUM = 1,
  TALWEG_AVERAGE = 2, /* Not for integers. Sum, average and product: not for bools. */
  TALWEG_MIN = 3,
  TALWEG_MAX = 4,
  TALWEG_PRODUCT = 5,
  TALWEG_BROADCAST = 6, /* The root rank's bytes, unchanged. */
  TALWEG_COPY = 6,      /* The same, named for any collective that copies. */
  TALWEG_BIT_AND = 7,   /* Bitwise: for integers and bools. */
  TALWEG_BIT_OR = 8,
  TALWEG_BIT_XOR = 9
} talweg_op;

/* Returns the library's version, "major.minor.patch", in static storage. */
TALWEG_API const char* talweg_version(void);
/* Returns the version of the library's ABI: major * 65536 + minor. */
TALWEG_API uint32_t talweg_abi_version(void);
/* Returns "timeout", "job failed", ..., in static storage; "unknown" if `status` is none. */
TALWEG_API const char* talweg_status_name(talweg_status status);
/* Returns the bytes of one element; 0 if `dtype` is none. */
TALWEG_API size_t talweg_dtype_bytes(talweg_dtype dtype);
/* Returns the text of this thread's last error, or "" if there was none. Valid until this thread's
 * next error. */
TALWEG_API const char* talweg_last_error(void);

/* ---- Connecting ------------------------------------------------------------------------------ */

/* Any free local rank. */
#define TALWEG_ANY_LOCAL_RANK UINT32_C(0xffffffff)
/* $TALWEG_LOCAL_RANK, or $LOCAL_RANK, or any. */
#define TALWEG_LOCAL_RANK_FROM_ENVIRONMENT UINT32_C(0xfffffffe)

typedef struct talweg_options {
  size_t struct_bytes;      /* sizeof(talweg_options): set by talweg_options_init. */
  const char* agent_socket; /* Path; NULL: $TALWEG_AGENT_SOCKET. */
  uint32_t local_rank;      /* Default: from the environment. */
  /* 1: this rank knows standbys. If all ranks of the node do, the node may enter a running job as a
   * standby (since version 1.3). Default 0. */
  uint32_t standby;
  int64_t timeout_ns;    /* For the agent's answer, which comes when the job runs. Default 60 s. */
  int64_t agent_wait_ns; /* How long to wait for an agent that does not listen yet. Default 0. */
  /* How long a wait spins before it sleeps. Between the two, a wait for ranks of this node alone
   * yields its CPU until it has lasted 50 us. Default -1: by the number of CPUs; 0: sleeps at
   * once. */
  int64_t spin_ns;
  const char* client_name; /* For status and error texts. NULL: the program's name. */
} talweg_options;

/* Fills in the defaults. (An older caller's struct may be shorter: `struct_bytes`.) */
TALWEG_API void talweg_options_init_sized(talweg_options* options, size_t struct_bytes);
#define talweg_options_init(options) talweg_options_init_sized((options), sizeof(talweg_options))

/* Connects to this node's agent and becomes a rank. `options` may be NULL: all defaults. On success
 * the caller must give *client to talweg_free; else *client is NULL. */
TALWEG_API talweg_status talweg_connect(const talweg_options* options, talweg_client** client);

/* Says goodbye: this rank pushes no more. Waits of other threads end with TALWEG_CLOSED, and so
 * does every later call, except for talweg_free and the queries below. TALWEG_TIMEOUT: the agent
 * did not answer in time, but the client is closed. Open rounds complete at the other ranks. */
TALWEG_API talweg_status talweg_shutdown(talweg_client* client, int64_t timeout_ns);

/* Unmaps everything and frees the client. Without an earlier talweg_shutdown the agent takes this
 * rank for dead. No other thread may be in a call, or make one later. NULL is allowed. In a forked
 * child it frees only the child's copy. */
TALWEG_API void talweg_free(talweg_client* client);

/* ---- Who am I (answered from memory; 0 for NULL) --------------------------------------------- */

/* If a job goes on with other nodes (loss_policy=continue), a rank keeps its number and its value
 * of the job's size until talweg_follow. These numbers name the roots of broadcasts. */
TALWEG_API uint32_t talweg_rank(const talweg_client* client);
TALWEG_API uint32_t talweg_size(const talweg_client* client);
TALWEG_API uint32_t talweg_local_rank(const talweg_client* client);
TALWEG_API uint32_t talweg_local_size(const talweg_client* client);
TALWEG_API uint32_t talweg_node_rank(const talweg_client* client);
TALWEG_API uint32_t talweg_node_count(const talweg_client* client);
/* Valid until talweg_free. */
TALWEG_API const char* talweg_job_name(const talweg_client* client);

/* Returns TALWEG_OK while rounds can go on, else the cause. Asks the socket. */
TALWEG_API talweg_status talweg_health(talweg_client* client);

/* ---- Tensors --------------------------------------------------------------------------------- */

/* Declares a tensor by name (UTF-8, 1 to 1024 bytes) and waits until the ranks' agents agree on it.
 * All ranks must declare the same dtype, op, root and count under one name, else TALWEG_MISMATCH;
 * the text names both sides, and the job cannot use that name any more. The same declaration again
 * returns the same tensor. `root_rank` is for TALWEG_BROADCAST only, else 0. A tensor with higher
 * `priority` leaves first. `count` may be 0. */
TALWEG_API talweg_status talweg_declare(talweg_client* client, const char* name, talweg_dtype dtype,
                                        talweg_op op, uint32_t root_rank, uint64_t count,
                                        int32_t priority, int64_t timeout_ns,
                                        talweg_tensor* tensor);

/* The arguments of talweg_declare. */
typedef struct talweg_declaration {
  const char* name;
  talweg_dtype dtype;
  talweg_op op;
  uint32_t root_rank;
  int32_t priority;
  uint64_t count;
} talweg_declaration;

/* Declares each as talweg_declare does, but the agents agree on all together, so a model of many
 * tensors starts sooner. tensors[i] is the tensor of declarations[i]. Returns the status of the
 * first that failed; others may still have been declared. */
TALWEG_API talweg_status talweg_declare_all(talweg_client* client,
                                            const talweg_declaration* declarations,
                                            size_t declaration_count, int64_t timeout_ns,
                                            talweg_tensor* tensors);

TALWEG_API uint64_t talweg_tensor_bytes(talweg_client* client, talweg_tensor tensor);

/* Like talweg_declare_all, for tensors whose gradients live in the contribution buffer, which is
 * the same for every round: fill it, push with data == NULL, and find the result there after a
 * talweg_wait without `out`. This is the fastest way, since nothing is copied. If the job has one
 * node, the first rank that comes to a piece sums it, and writes it over the contributions of all
 * ranks. If the job has several nodes and fails with any loss, a node's only rank receives the
 * result where it contributes. So from the push until talweg_wait returns, the other ranks and the
 * agent may read and write the buffer. After a round without a result its bytes mean nothing. The
 * node's first declaration of a tensor decides for all its ranks: if it is in place, later ones by
 * talweg_declare_all share in that. TALWEG_UNSUPPORTED: another rank declared it otherwise before,
 * or the agent's release has no sums in place; use talweg_declare_all. */
TALWEG_API talweg_status talweg_declare_all_in_place(talweg_client* client,
                                                     const talweg_declaration* declarations,
                                                     size_t declaration_count, int64_t timeout_ns,
                                                     talweg_tensor* tensors);

/* Returns whether a tensor's result lands in its contribution buffer: the node's ranks sum it
 * there, or the agent receives it there from other nodes. If a tensor was declared in place but
 * this returns 0, the result lands elsewhere, and a wait without `out` copies it to the buffer. */
TALWEG_API int talweg_sums_in_place(talweg_client* client, talweg_tensor tensor);

/* Maps the tensor's buffer at `address` too, where a framework has allocated memory. The caller
 * writes its contribution there, and finds the result there. `address` begins a page, and a mapping
 * that only the caller uses, made with MAP_SHARED and as long as the tensor in whole pages. The
 * mapping must stay until talweg_detach or talweg_free; after talweg_free it keeps the buffer's
 * pages. The call copies the mapping's bytes into the buffer. Push with data == NULL, wait without
 * `out`. NULL: the tensor is no longer attached, because the caller has unmapped the mapping or
 * leaves it as it is. TALWEG_UNSUPPORTED: the tensor is not summed in place, or `address` has no
 * such mapping; TALWEG_BUSY: its round is open, or it is attached; TALWEG_OUT_OF_MEMORY. */
TALWEG_API talweg_status talweg_attach(talweg_client* client, talweg_tensor tensor, void* address);

/* For a caller that still needs a result but has to push. If the tensor is attached, `address` gets
 * memory of its own back, with the buffer's bytes; this works after talweg_shutdown, too. Otherwise
 * the memory that talweg_contribution returned keeps its bytes, and only the caller reads and
 * writes it until talweg_free; the buffer moves, so ask for it again. Costs a copy.
 * TALWEG_UNSUPPORTED: the tensor is not summed in place; TALWEG_BUSY: its round is open;
 * TALWEG_OUT_OF_MEMORY. */
TALWEG_API talweg_status talweg_detach(talweg_client* client, talweg_tensor tensor);

/* Returns the buffer of this rank's contribution to the tensor's next round, for producers that
 * write in place: fill it, then push with data == NULL. Unless the tensor was declared in place,
 * ask again for every round, after the round before is taken: other ranks may still read that
 * round's buffer, and talweg_wait may write the result there. Part p of several lies p strides from
 * the beginning; a stride is a full part's bytes, rounded up to 64. NULL if `tensor` is none. */
TALWEG_API void* talweg_contribution(talweg_client* client, talweg_tensor tensor);

/* ---- Rounds ---------------------------------------------------------------------------------- */

#define TALWEG_DECLARED_PRIORITY INT32_MIN

/* Contributes to the tensor's next round. Copies `data` and returns at once (NULL: the bytes lie in
 * the contribution buffer; in a broadcast, ranks other than the root pass NULL). Every rank pushes
 * every round of a tensor once, in order, but different tensors in any order. TALWEG_BUSY:
 * talweg_wait has not taken the last round, or a call is reading it. Waits at most `timeout_ns`,
 * and only if the ring to the agent is full; after TALWEG_TIMEOUT nothing was pushed. */
TALWEG_API talweg_status talweg_push_pull(talweg_client* client, talweg_tensor tensor,
                                          const void* data, int32_t priority, int64_t timeout_ns,
                                          talweg_round* round);

/* Returns TALWEG_OK if `round` is complete, so that talweg_wait will not wait; TALWEG_PENDING if
 * not yet; else why it never will be. */
TALWEG_API talweg_status talweg_poll(talweg_client* client, talweg_tensor tensor,
                                     talweg_round round);

/* Waits until `round` is complete, copies the result to `out`, and takes the round: the tensor may
 * be pushed again. `out` may be NULL: nothing is copied, see talweg_result. `out` may be a
 * contribution of that round only if the tensor was declared in place. `round` is the tensor's last
 * one. TALWEG_TIMEOUT leaves the round open. TALWEG_ABORTED, TALWEG_MISMATCH, ... : the round has
 * ended without a result. Unless the call returns TALWEG_OK, the bytes of `out` are undefined,
 * because a large result is copied while it arrives; a broadcast's `out` is unchanged. With a
 * `timeout_ns` of 0 the call only looks. */
TALWEG_API talweg_status talweg_wait(talweg_client* client, talweg_tensor tensor,
                                     talweg_round round, void* out, int64_t timeout_ns);

/* Like talweg_wait, after a talweg_wait of the same round that returned TALWEG_TIMEOUT. If that had
 * the same `out`, and nobody has written to it since, the bytes that it copied are not copied
 * again. */
TALWEG_API talweg_status talweg_wait_again(talweg_client* client, talweg_tensor tensor,
                                           talweg_round round, void* out, int64_t timeout_ns);

/* Gives the result of the round that was taken last, in place: read only, valid until the tensor's
 * next push. TALWEG_INVALID_ARGUMENT if this rank gets more than one part. */
TALWEG_API talweg_status talweg_result(talweg_client* client, talweg_tensor tensor,
                                       talweg_round round, const void** data, uint64_t* bytes);

/* Returns how many ranks' contributions are in the result of the round that was taken last. 0 if
 * there is no result. */
TALWEG_API uint64_t talweg_ranks_summed(talweg_client* client, talweg_tensor tensor);

/* ---- A descriptor that tells of rounds ------------------------------------------------------- */

/* For event loops and frameworks, whose threads must not block for each round:
 *
 *   talweg_completion_fd(client, &fd);
 *   talweg_push_pull(client, weights, gradient, TALWEG_DECLARED_PRIORITY, -1, &round);
 *   talweg_watch(client, weights, round, tag);
 *
 * and in the loop, whenever `fd` is readable (POLLIN):
 *
 *   while ((status = talweg_completed(client, tags, 64, &count)) == TALWEG_OK && count > 0)
 *     for each tag: talweg_wait(client, its tensor, its round, gradient, -1);
 *   if (status != TALWEG_OK) stop polling: the client's health has ended, all tags were told;
 *
 * The library starts no thread for it. A client that never calls talweg_completion_fd pays nothing.
 * (Since version 1.2 of this header; works with any agent.) */

/* Gives the client's first descriptor. It is readable when a watched round may be over, and stays
 * readable once the client's health has ended (job failed, agent lost, shut down). Every call gives
 * the same descriptor. The caller only polls it (poll, epoll and so on): it must not read, write or
 * close it. The descriptor is valid until talweg_free; the caller stops polling it before that.
 * exec closes it. In a forked child it is the parent's, and must not be polled. TALWEG_LIMIT: no
 * descriptor is left. */
TALWEG_API talweg_status talweg_completion_fd(talweg_client* client, int* fd);

/* Makes talweg_completed return `tag` once when this pushed round is over: complete, ended without
 * a result, or never to be complete because the client's health has ended. Then talweg_wait does
 * not wait for other ranks' pushes, or for the agent. The round may be over already. `tag` is any
 * value; several rounds may have the same tag, and a round may be watched more than once. A watch
 * ends only when its tag is returned. If the client's health has ended, returns why, and watches
 * nothing: talweg_wait of the round does not wait. */
TALWEG_API talweg_status talweg_watch(talweg_client* client, talweg_tensor tensor,
                                      talweg_round round, uint64_t tag);

/* Gives the tags of at most `capacity` (1 or more) watched rounds that are over, each once, in the
 * order in which they were watched. *count is their number; 0: none is over now. If there are more,
 * the descriptor stays readable. Does not wait. When the client's health has ended and all tags
 * were given, returns why it has ended, with *count 0. If several threads call it, each gets tags
 * of its own. */
TALWEG_API talweg_status talweg_completed(talweg_client* client, uint64_t* tags, size_t capacity,
                                          size_t* count);

/* The same with a separate descriptor, for parts of a program that know nothing of each other (a
 * framework's kernels beside an event loop). Each call of talweg_another_completion_fd makes a
 * descriptor, which lasts until talweg_free. Only talweg_completed_by with that descriptor gives
 * the tags of rounds that are watched by it. */
TALWEG_API talweg_status talweg_another_completion_fd(talweg_client* client, int* fd);
TALWEG_API talweg_status talweg_watch_by(talweg_client* client, int fd, talweg_tensor tensor,
                                         talweg_round round, uint64_t tag);
TALWEG_API talweg_status talweg_completed_by(talweg_client* client, int fd, uint64_t* tags,
                                             size_t capacity, size_t* count);

/* ---- Collectives ----------------------------------------------------------------------------- */

/* Which parts of a tensor a rank gives, or gets. `n` is the number of ranks in the group; rank i is
 * the i-th of them. */
typedef enum talweg_share TALWEG_ANY_INT {
  TALWEG_SHARE_WHOLE = 1, /* Every rank: all parts. */
  TALWEG_SHARE_ROOT = 2,  /* The root: all parts. The others: none. */
  TALWEG_SHARE_OWN = 3,   /* Rank i: part i of n. */
  TALWEG_SHARE_ROW = 4,   /* Rank i: parts i * n to i * n + n - 1 of n * n. */
  TALWEG_SHARE_COLUMN = 5 /* Rank i: parts i, n + i, 2 * n + i, ... of n * n. */
} talweg_share;

/* How a tensor's bytes travel between nodes. (Since version 1.6.) On one node nothing travels. */
typedef enum talweg_encoding TALWEG_ANY_INT {
  TALWEG_PLAIN = 0, /* As they lie in memory. */
  TALWEG_RUNS = 1,  /* Words of 4 bytes that repeat, once. Never longer than plain. */
  /* Twice, the second time inverted. Damage on the way ends the round with TALWEG_MISMATCH. */
  TALWEG_TWICE = 2,
  /* These and FEW: for sums and averages of f32, which travel rounded (docs/arithmetic.md). */
  TALWEG_AS_BF16 = 3, /* Half the bytes. */
  TALWEG_AS_INT8 = 4, /* A quarter. */
  TALWEG_GAPS = 5, /* No words of 4 bytes that are 0. Never longer than plain. Since version 1.8. */
  TALWEG_FEW = 6   /* Exact for up to 256 distinct values, else AS_INT8. Since version 1.8. */
} talweg_encoding;

/* A collective operation, and the ranks that take part in it:
 *
 *                    gives    gets      parts
 *   all_reduce       WHOLE    WHOLE     1
 *   reduce           WHOLE    ROOT      1
 *   reduce_scatter   WHOLE    OWN       n
 *   broadcast        ROOT     WHOLE     1
 *   scatter          ROOT     OWN       n
 *   all_gather       OWN      WHOLE     n
 *   gather           OWN      ROOT      n
 *   all_to_all       ROW      COLUMN    n * n
 *
 * If every rank gives the whole, `op` combines the ranks' elements, in rank order. If one rank
 * gives each part, `op` is TALWEG_COPY. */
typedef struct talweg_collective {
  size_t struct_bytes; /* sizeof(talweg_collective). */
  talweg_dtype dtype;
  talweg_op op;
  talweg_share gives;
  talweg_share gets;
  uint32_t root_rank;     /* A rank of the job. For TALWEG_SHARE_ROOT, else 0. */
  uint32_t rank_count;    /* 0: all ranks of the job. */
  const uint32_t* ranks;  /* The group: ascending, each once, this rank among them. */
  uint64_t element_count; /* The most elements of one part. May be 0. */
  /* 1: a side tensor. It does not belong to the steps. Its group may have ranks of standbys. It may
   * be pushed while another thread is in talweg_end_step. It must have a group, and be an
   * all_reduce or a broadcast. (Since version 1.3.) */
  uint32_t side;
  uint32_t patience_ms; /* See talweg_exchange.h. (Since version 1.7; 0 in version 1.6.) */
  /* Equal at all ranks. Needs host memory, and an agent of a release whose headers have version 1.6
   * or a newer one. */
  talweg_encoding encoding;
} talweg_collective;

/* Like talweg_declare, for any collective. All ranks of the group make the same declaration; other
 * ranks make none. A name belongs to one group. */
TALWEG_API talweg_status talweg_declare_collective(talweg_client* client, const char* name,
                                                   const talweg_collective* collective,
                                                   int32_t priority, int64_t timeout_ns,
                                                   talweg_tensor* tensor);

/* Return how many parts this rank gives, and gets. 0 if `tensor` is none. */
TALWEG_API uint32_t talweg_parts_given(talweg_client* client, talweg_tensor tensor);
TALWEG_API uint32_t talweg_parts_got(talweg_client* client, talweg_tensor tensor);

/* Contributes to the tensor's next round, as talweg_push_pull does. `data`: the parts that this
 * rank gives, in ascending order, without gaps; NULL if this rank gives nothing, or if the parts
 * lie in the contribution buffer. lengths[i]: the bytes of the i-th of these parts, a multiple of
 * the dtype's size and at most a full part. `lengths` NULL: all parts are full. Ranks that give the
 * same part (all_reduce, reduce, reduce_scatter) must give it the same length.
 *
 * `signature` describes this round's data, in any 8 bytes that must be equal at all ranks; 0: none.
 * Error texts spell out a signature with the layout of SignatureOf in libs/base/collective.h:
 * dtype << 56 | op << 48 | gives << 44 | gets << 40 | a count of elements below 2^40.
 *
 * If ranks give different signatures, or different lengths of one part, the round ends with
 * TALWEG_MISMATCH at every rank; the text names two ranks and what each gave. The tensor's next
 * round works.
 *
 * A tensor of talweg_declare may be pushed with this function. A tensor of
 * talweg_declare_collective may be pushed with talweg_push_pull; all its parts are then full. */
TALWEG_API talweg_status talweg_push_parts(talweg_client* client, talweg_tensor tensor,
                                           const void* data, const uint64_t* lengths,
                                           uint64_t signature, int32_t priority, int64_t timeout_ns,
                                           talweg_round* round);

/* Waits until the round is complete. lengths[i] becomes the bytes of the i-th part that this rank
 * gets; `lengths` is NULL if it gets none. The round stays open, and the call may be repeated. If
 * the round has ended without a result, returns why, and takes the round. */
TALWEG_API talweg_status talweg_wait_lengths(talweg_client* client, talweg_tensor tensor,
                                             talweg_round round, uint64_t* lengths,
                                             int64_t timeout_ns);

/* Waits until the round is complete, copies the parts that this rank gets to `out`, in ascending
 * order, without gaps, and takes the round: the tensor may be pushed again. `out_bytes` is the size
 * of `out`. TALWEG_INVALID_ARGUMENT if that is too little; the round stays open. `out` may be NULL
 * if this rank gets nothing; the call still waits. Otherwise like talweg_wait, which copies the
 * parts in the same way, but assumes that `out` has room for all parts at full length. */
TALWEG_API talweg_status talweg_wait_parts(talweg_client* client, talweg_tensor tensor,
                                           talweg_round round, void* out, uint64_t out_bytes,
                                           int64_t timeout_ns);

/* Writes the ranks that an open round waits for to `text`, which has room for `text_bytes`, and
 * cuts what is longer: "rank 3 (local rank 1 of node 1, pid 4711)", or "ranks 2, 3 of node 1".
 * `text` is "" if none is known: the round is complete, or its result is on the way, or the agent
 * is too old to say. Other nodes are known once the round has been open for a second. For error
 * messages; does not change the round. (Since version 1.4.) */
TALWEG_API talweg_status talweg_waits_for(talweg_client* client, talweg_tensor tensor,
                                          talweg_round round, char* text, size_t text_bytes,
                                          int64_t timeout_ns);

/* ---- In one call ----------------------------------------------------------------------------- */

/* Copies `root_rank`'s bytes to all ranks' `data`. Declares `name` if it is new; no other tensor
 * may have it. */
TALWEG_API talweg_status talweg_broadcast(talweg_client* client, const char* name, void* data,
                                          uint64_t count, talweg_dtype dtype, uint32_t root_rank,
                                          int64_t timeout_ns);

/* Returns when all ranks have called it. After TALWEG_TIMEOUT the next call goes on waiting for the
 * same barrier. A name has one barrier at a time. `name` NULL: "talweg.barrier". */
TALWEG_API talweg_status talweg_barrier(talweg_client* client, const char* name,
                                        int64_t timeout_ns);

/* ---- Steps and membership -------------------------------------------------------------------- */

/* docs/elastic.md. Nodes enter a running job only between steps, when every rank has ended the same
 * step. Ranks keep their numbers until they follow a newer view, all at the end of the same
 * step. */

/* One node's agent in the job. */
#define TALWEG_MEMBER_STANDBY 1 /* Its ranks take part in no steps yet. */
typedef struct talweg_member {
  uint32_t node;
  uint16_t rank_count;
  uint16_t flags;       /* TALWEG_MEMBER_STANDBY, for ranks that know standbys. */
  uint64_t incarnation; /* Differs after a restart. */
} talweg_member;

typedef struct talweg_membership {
  size_t struct_bytes; /* Set by the caller; only so many bytes are filled in. */
  uint64_t epoch;
  uint64_t steps_entered; /* The steps that all ranks had ended when nodes last entered; 0: no node
                             has. */
  uint64_t steps_base;    /* The steps that they had ended when this node entered: its steps
                             count from there. */
  uint32_t rank;          /* This rank in this view. For a standby: as if its node were a full
                             member. */
  uint32_t size;
  uint32_t member_count;
  uint32_t changes; /* 1: nodes may come and go in this job. */
  uint32_t standby; /* 1: this rank's node is a standby. (This and the next since version 1.3.) */
  /* The number that names this rank in declarations once it follows this view. Ranks of full
   * members are 0, 1, ... in the order of `members`; ranks of standbys follow, in the same order.
   */
  uint32_t number;
} talweg_membership;

/* Ends a step, to which the rank's earlier pushes belong. Returns at once, or, if nodes want to
 * enter, when the rank may go on. Only one thread at a time may call it. Until it returns, pushes
 * of other threads return TALWEG_BUSY. After TALWEG_TIMEOUT the next call goes on waiting, and ends
 * no second step. */
TALWEG_API talweg_status talweg_end_step(talweg_client* client, int64_t timeout_ns);

/* Says that this rank can take part in steps as soon as its node may enter. Until then a standby's
 * rank declares only side tensors, and ends no steps. When talweg_get_membership shows its node as
 * a full member in the newest epoch, the rank follows that view with talweg_follow. Does nothing if
 * the node is no standby, or with an older agent. (Since version 1.3.) */
TALWEG_API talweg_status talweg_ready(talweg_client* client, int64_t timeout_ns);

/* Returns how many steps this client has ended. */
TALWEG_API uint64_t talweg_steps_ended(const talweg_client* client);

/* Returns the epoch of the agent's newest view, cheaply. 0: the agent is too old to say. */
TALWEG_API uint64_t talweg_newest_epoch(const talweg_client* client);

/* Gives the view of `epoch`, one of the agent's last views; 0: the newest. `members`, with room for
 * `members_max`, gets the view's members, ordered by node; membership->member_count is their
 * number. */
TALWEG_API talweg_status talweg_get_membership(talweg_client* client, uint64_t epoch,
                                               talweg_membership* membership,
                                               talweg_member* members, uint32_t members_max,
                                               int64_t timeout_ns);

/* From now on talweg_rank, talweg_size, roots and groups use the numbers of that view. All ranks of
 * the job must call it between the same two steps. Declared tensors keep their ranks. */
TALWEG_API talweg_status talweg_follow(talweg_client* client, uint64_t epoch, int64_t timeout_ns);

/* ---- Scaling --------------------------------------------------------------------------------- */

/* Writes each of the `count` elements of `in`, times `factor`, to `out`. `out` may be `in`;
 * otherwise they must not overlap. For scaling the input or the result of a reduction. f32 and f64
 * are multiplied in their own type; f16 and bf16 in float32, then rounded; integers in double,
 * rounded toward zero and clamped to the type's range. A factor of 1 copies. No bools. */
TALWEG_API talweg_status talweg_scale(talweg_dtype dtype, double factor, const void* in, void* out,
                                      uint64_t count);

/* ---- Comparing ------------------------------------------------------------------------------- */

/* Returns a digest of `bytes` bytes of `data`, as fast as memory is read, for ranks that compare
 * bytes which should be equal. The digest is the same on every machine, and does not resist an
 * adversary. `seed`: 0, or the digest of the bytes before. (Since version 1.4.) */
TALWEG_API uint64_t talweg_digest(const void* data, size_t bytes, uint64_t seed);

/* ---- Statistics ------------------------------------------------------------------------------ */

typedef struct talweg_statistics {
  size_t struct_bytes; /* Set by the caller; only so many bytes are filled in. */
  uint64_t tensors;
  uint64_t pushes;
  uint64_t bytes_pushed; /* The bytes of contributions. */
  uint64_t bytes_copied; /* In and out, by this library. */
  uint64_t waits;
  uint64_t waits_slept; /* How many waits lasted longer than they spun. */
  uint64_t wait_ns;     /* The sum of all waits. */
  uint64_t ring_full;   /* Pushes that had to wait for room. */
} talweg_statistics;

TALWEG_API talweg_status talweg_get_statistics(talweg_client* client,
                                               talweg_statistics* statistics);

#ifdef __cplusplus
} /* extern "C" */
#endif

/* Tensors on GPUs. */
#include "talweg_gpu.h" /* IWYU pragma: export */

#endif /* TALWEG_CLIENTS_C_TALWEG_H_ */
