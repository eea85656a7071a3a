/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TALWEG_CLIENTS_C_TALWEG_H_
#define TALWEG_CLIENTS_C_TALWEG_H_

/*
 * libtalweg: one rank of a Talweg job, as a C99 library that needs libc alone (glibc 2.17 or newer
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
 * Threads: every function may be called by any thread at any time, except that talweg_free must be
 * the last. Several clients live in one process and share nothing. The library starts no thread.
 *
 * Fork: in a child process every call returns TALWEG_FORKED (and closes the child's copy of the
 * socket). The contribution buffers are not mapped in the child; those of tensors in place are
 * zeros there from its first call on. exec needs no care.
 *
 * Time: `timeout_ns` is how long the call may wait, in nanoseconds; 0: not at all; negative:
 * without limit. No call outlives a dead agent or a failed job, whatever its timeout. A timeout
 * ends the waiting, nothing else.
 *
 * Errors: every call returns a status. talweg_last_error() is the text of the calling thread's last
 * call that did not return TALWEG_OK or TALWEG_PENDING: it names the thing, the value and the
 * remedy.
 *
 * Compatibility: within one major version functions, constants and struct fields are only added.
 */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TALWEG_API __attribute__((visibility("default")))
#else
#define TALWEG_API
#endif

/* Version of this header. talweg_version() tells that of the library. */
#define TALWEG_VERSION_MAJOR 1
#define TALWEG_VERSION_MINOR 5

typedef struct talweg_client talweg_client;
/* A declared tensor of one client. */
typedef uint32_t talweg_tensor;
/* Which push_pull of a tensor: 1, 2, 3, ... */
typedef uint64_t talweg_round;

/* Values never change. */
typedef enum talweg_status {
  TALWEG_OK = 0,
  TALWEG_TIMEOUT = 1, /* The time is over; the round, if any, stays open: wait again. */
  TALWEG_INVALID_ARGUMENT = 2,
  TALWEG_MISMATCH = 3,         /* Ranks disagree on a tensor; the text names both sides. */
  TALWEG_BUSY = 4,             /* The tensor's last round is open: wait for it first. */
  TALWEG_JOB_FAILED = 5,       /* The text says who died, or what else happened. */
  TALWEG_AGENT_LOST = 6,       /* The agent has ended, or is stopped. */
  TALWEG_FORKED = 7,           /* The client belongs to the parent process. */
  TALWEG_VERSION_MISMATCH = 8, /* The text names both versions. */
  TALWEG_OUT_OF_MEMORY = 9,    /* The text names the limit. */
  TALWEG_UNSUPPORTED = 10,
  TALWEG_ABORTED = 11,  /* The round was given up, for all ranks alike; push the next one. */
  TALWEG_NO_AGENT = 12, /* Nobody listens at the socket's path. */
  TALWEG_PERMISSION_DENIED = 13,
  TALWEG_RANK_TAKEN = 14, /* Another process has the wanted local rank; the text names its pid. */
  TALWEG_CLOSED = 15,     /* The client has been shut down. */
  TALWEG_LIMIT = 16,      /* A configured limit; the text names it. */
  TALWEG_PENDING = 17,    /* talweg_poll: not complete yet. */
  TALWEG_PROTOCOL = 18,   /* The agent sent what is no message. */
  TALWEG_INTERNAL = 19,
  TALWEG_EVENTS_LOST = 20 /* A tensor lies on a GPU: talweg_gpu_place, then push again. */
} talweg_status;

typedef enum talweg_dtype {
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
  TALWEG_BOOL = 13 /* A byte, 0 or 1: min is all, max is any. */
} talweg_dtype;

typedef enum talweg_op {
  TALWEG_SUM = 1,
  TALWEG_AVERAGE = 2, /* Not for integers. Sum, average and product: not for bools. */
  TALWEG_MIN = 3,
  TALWEG_MAX = 4,
  TALWEG_PRODUCT = 5,
  TALWEG_BROADCAST = 6, /* The root rank's bytes, untouched. */
  TALWEG_COPY = 6,      /* The same by the name that fits every collective which copies. */
  TALWEG_BIT_AND = 7,   /* Bitwise: for integers and bools. */
  TALWEG_BIT_OR = 8,
  TALWEG_BIT_XOR = 9
} talweg_op;

/* "major.minor.patch" of the library, static storage. */
TALWEG_API const char* talweg_version(void);
/* Version of the ABI that the library implements: major * 65536 + minor. */
TALWEG_API uint32_t talweg_abi_version(void);
/* "timeout", "job failed", ...: static storage; "unknown" for no status. */
TALWEG_API const char* talweg_status_name(talweg_status status);
/* Bytes of one element; 0 for no dtype. */
TALWEG_API size_t talweg_dtype_bytes(talweg_dtype dtype);
/* The text of this thread's last error; "" when there was none. Valid until this thread's next
 * error. */
TALWEG_API const char* talweg_last_error(void);

/* ---- Connecting
 * ------------------------------------------------------------------------------------- */

/* Whichever local rank is free. */
#define TALWEG_ANY_LOCAL_RANK UINT32_C(0xffffffff)
/* $TALWEG_LOCAL_RANK, or $LOCAL_RANK, or any. */
#define TALWEG_LOCAL_RANK_FROM_ENVIRONMENT UINT32_C(0xfffffffe)

typedef struct talweg_options {
  size_t struct_bytes;      /* sizeof(talweg_options): set by talweg_options_init. */
  const char* agent_socket; /* Path; NULL: $TALWEG_AGENT_SOCKET. */
  uint32_t local_rank;      /* Default: from the environment. */
  /* 1: this rank knows standbys. If all ranks of the node do, it may enter a running job as one
   * (since version 1.3). Default 0. */
  uint32_t standby;
  int64_t timeout_ns;    /* For the agent's answer, which comes when the job runs. Default 60 s. */
  int64_t agent_wait_ns; /* How long an agent that is not there yet is waited for. Default 0. */
  int64_t spin_ns; /* How long a wait spins before it sleeps, or first yields its CPU for 50 us
                      where only ranks of this node are waited for. Default -1: by the number of
                      CPUs; 0: it sleeps at once. */
  const char* client_name; /* For people and error texts. NULL: the program's name. */
} talweg_options;

/* Fills in the defaults. (`struct_bytes` lets an older caller's struct be shorter.) */
TALWEG_API void talweg_options_init_sized(talweg_options* options, size_t struct_bytes);
#define talweg_options_init(options) talweg_options_init_sized((options), sizeof(talweg_options))

/* Connects to this node's agent and becomes a rank. `options` may be NULL: all defaults. On success
 * *client must be given to talweg_free; else it is NULL. */
TALWEG_API talweg_status talweg_connect(const talweg_options* options, talweg_client** client);

/* Says goodbye: this rank pushes no more. Waits of other threads end with TALWEG_CLOSED, as does
 * every later call but talweg_free and the questions below. TALWEG_TIMEOUT when the agent did not
 * answer in time: the client is closed all the same. Rounds that are open complete at the other
 * ranks. */
TALWEG_API talweg_status talweg_shutdown(talweg_client* client, int64_t timeout_ns);

/* Unmaps everything and frees the client. Without talweg_shutdown before it the agent takes this
 * rank for dead. No other thread may be in a call, none may call afterwards. NULL is allowed. In a
 * forked child it frees the child's copy only. */
TALWEG_API void talweg_free(talweg_client* client);

/* ---- Who am I (answered from memory; 0 for NULL)
 * ---------------------------------------------------- */

/* A rank keeps its number, and what it knows as the job's size, where a job goes on with other
 * nodes (loss_policy=continue). Roots of broadcasts are named by these numbers. */
TALWEG_API uint32_t talweg_rank(const talweg_client* client);
TALWEG_API uint32_t talweg_size(const talweg_client* client);
TALWEG_API uint32_t talweg_local_rank(const talweg_client* client);
TALWEG_API uint32_t talweg_local_size(const talweg_client* client);
TALWEG_API uint32_t talweg_node_rank(const talweg_client* client);
TALWEG_API uint32_t talweg_node_count(const talweg_client* client);
/* Valid until talweg_free. */
TALWEG_API const char* talweg_job_name(const talweg_client* client);

/* TALWEG_OK while rounds can go on; else why not (job failed, agent lost, closed, forked). Asks the
 * socket. */
TALWEG_API talweg_status talweg_health(talweg_client* client);

/* ---- Tensors
 * ---------------------------------------------------------------------------------------- */

/* Declares a tensor by name (UTF-8, 1 to 1024 bytes) and waits until the ranks' agents agree on it.
 * All ranks must declare the same dtype, op, root and count under one name: TALWEG_MISMATCH
 * otherwise, naming both sides. The same declaration again returns the same tensor. `root_rank` is
 * for TALWEG_BROADCAST only, else 0. Higher `priority` leaves first. `count` may be 0. */
TALWEG_API talweg_status talweg_declare(talweg_client* client, const char* name, talweg_dtype dtype,
                                        talweg_op op, uint32_t root_rank, uint64_t count,
                                        int32_t priority, int64_t timeout_ns,
                                        talweg_tensor* tensor);

/* What talweg_declare takes. */
typedef struct talweg_declaration {
  const char* name;
  talweg_dtype dtype;
  talweg_op op;
  uint32_t root_rank;
  int32_t priority;
  uint64_t count;
} talweg_declaration;

/* As talweg_declare of each, but they are agreed on together: a model of many tensors starts
 * sooner. tensors[i] is declarations[i]'s. The status is that of the first that has failed; others
 * may have been declared all the same. */
TALWEG_API talweg_status talweg_declare_all(talweg_client* client,
                                            const talweg_declaration* declarations,
                                            size_t declaration_count, int64_t timeout_ns,
                                            talweg_tensor* tensors);

TALWEG_API uint64_t talweg_tensor_bytes(talweg_client* client, talweg_tensor tensor);

/* As talweg_declare_all, of tensors whose gradients live in the contribution buffer, which is the
 * same for every round: fill it, push with data == NULL, and find the result there after a
 * talweg_wait without `out`. The fastest way: nothing is copied, and where the ranks of one node
 * are the whole job each piece is summed once, by whichever rank comes to it first, and written
 * over the contributions of all. Where there are several nodes, and their job fails with any loss,
 * the result comes to where a node's only rank contributes. So from its push until talweg_wait has
 * returned the buffer is the other ranks' and the agent's to read and to write, and after a round
 * without a result its bytes mean nothing. The node's first declaration of a tensor decides; ranks
 * that declare it otherwise share in it.
 * TALWEG_UNSUPPORTED: another rank has declared it otherwise before, or the agent is of a release
 * that knows no sums in place; use talweg_declare_all. */
TALWEG_API talweg_status talweg_declare_all_in_place(talweg_client* client,
                                                     const talweg_declaration* declarations,
                                                     size_t declaration_count, int64_t timeout_ns,
                                                     talweg_tensor* tensors);

/* Whether a tensor's result comes to where it was contributed: summed there by the node's ranks, or
 * received there from other nodes. 0 where it was declared so and comes elsewhere; then a wait
 * without `out` copies it. */
TALWEG_API int talweg_sums_in_place(talweg_client* client, talweg_tensor tensor);

/* Has the tensor's buffer stand at `address` as well, for memory that a framework has allocated:
 * what is written there is what is contributed, the result is found there. At `address`, which
 * begins a page, there must be a mapping of the caller's alone, made with MAP_SHARED and as long as
 * the tensor in whole pages, until talweg_detach or talweg_free (after which the place keeps the
 * buffer's pages). What stands in it goes into the buffer. Push with data == NULL, wait without
 * `out`. NULL: the place that it was attached to has been unmapped, or is left as it is. Of a
 * tensor that is summed in place and for such a mapping, else TALWEG_UNSUPPORTED; TALWEG_BUSY while
 * its round is open, or it is attached; TALWEG_OUT_OF_MEMORY. */
TALWEG_API talweg_status talweg_attach(talweg_client* client, talweg_tensor tensor, void* address);

/* For who still needs a result and has to push. Where the tensor is attached: that place gets its
 * own memory back, with the buffer's bytes, also after talweg_shutdown. Else: the memory that
 * talweg_contribution has given keeps its bytes, and is the caller's alone, to write as well, until
 * talweg_free; the buffer lies elsewhere from now on: ask for it again. Costs a copy. Of a tensor
 * that is summed in place, else TALWEG_UNSUPPORTED; TALWEG_BUSY while its round is open;
 * TALWEG_OUT_OF_MEMORY. */
TALWEG_API talweg_status talweg_detach(talweg_client* client, talweg_tensor tensor);

/* Where this rank's contribution to the tensor's next round goes, for producers that write in
 * place: fill it, then push with data == NULL. Unless the tensor was declared in place, ask again
 * for every round, when the one before has been taken: other ranks may still be reading that one's;
 * talweg_wait may write its result there. Part p of several lies p strides from the beginning; a
 * stride is a full part's bytes, rounded up to 64. NULL for no tensor. */
TALWEG_API void* talweg_contribution(talweg_client* client, talweg_tensor tensor);

/* ---- Rounds
 * ----------------------------------------------------------------------------------------- */

#define TALWEG_DECLARED_PRIORITY INT32_MIN

/* Contributes to the tensor's next round and returns at once: `data` is copied (NULL: the bytes lie
 * in the contribution buffer; for a broadcast's other ranks NULL is right). Every rank pushes every
 * round of a tensor once, in order, but different tensors in any order. TALWEG_BUSY when the last
 * round has not been taken by talweg_wait (or is being read). It waits only when the ring to the
 * agent is full: at most `timeout_ns`, and then nothing was pushed. */
TALWEG_API talweg_status talweg_push_pull(talweg_client* client, talweg_tensor tensor,
                                          const void* data, int32_t priority, int64_t timeout_ns,
                                          talweg_round* round);

/* TALWEG_OK when `round` is complete (talweg_wait will not wait), TALWEG_PENDING when not; else why
 * it never will. */
TALWEG_API talweg_status talweg_poll(talweg_client* client, talweg_tensor tensor,
                                     talweg_round round);

/* Waits until `round` is complete, copies the result to `out` (NULL: not copied, see
 * talweg_result; a contribution of that round only if the tensor was declared in place), and takes
 * the round: the tensor may be pushed again. TALWEG_TIMEOUT leaves the round open. TALWEG_ABORTED,
 * TALWEG_MISMATCH, ... : the round has ended without a result. `round` is the tensor's last one.
 * Unless TALWEG_OK, what `out` holds is undefined (a large result is copied while it comes), but
 * that of a broadcast, which is as it was. A `timeout_ns` of 0 only looks. */
TALWEG_API talweg_status talweg_wait(talweg_client* client, talweg_tensor tensor,
                                     talweg_round round, void* out, int64_t timeout_ns);

/* As talweg_wait, after one of the same round that has ended with TALWEG_TIMEOUT: if it had the
 * same `out`, which nobody may have written since, what it has copied there is not copied again. */
TALWEG_API talweg_status talweg_wait_again(talweg_client* client, talweg_tensor tensor,
                                           talweg_round round, void* out, int64_t timeout_ns);

/* The result of the round that was taken last, in place: read only, valid until the tensor's next
 * push. Where this rank gets more than one part: TALWEG_INVALID_ARGUMENT. */
TALWEG_API talweg_status talweg_result(talweg_client* client, talweg_tensor tensor,
                                       talweg_round round, const void** data, uint64_t* bytes);

/* How many ranks' contributions are in the result of the round that was taken last. 0 when there is
 * none. */
TALWEG_API uint64_t talweg_ranks_summed(talweg_client* client, talweg_tensor tensor);

/* ---- A descriptor that tells of rounds
 * ------------------------------------------------------------------------------------------- */

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
 * The library starts no thread for it. Who never calls talweg_completion_fd pays nothing. (Since
 * version 1.2 of this header; any agent will do.) */

/* The client's first descriptor: readable when a watched round may be over, and for good when the
 * client's health has ended (job failed, agent lost, shut down). The same however often it is
 * asked for. For poll, epoll and their like only: the caller neither reads, writes nor closes it.
 * Valid until talweg_free, before which the caller stops polling it. Closed by exec; in a forked
 * child it is the parent's, and must not be polled. TALWEG_LIMIT: no descriptor is left. */
TALWEG_API talweg_status talweg_completion_fd(talweg_client* client, int* fd);

/* Has talweg_completed tell `tag` once when this round, which has been pushed, is over: complete,
 * ended without a result, or never to be complete since the client's health has ended. Then
 * talweg_wait does not wait for other ranks' pushes, or for the agent. A round that is over already
 * is told as well. `tag` is any value; several rounds may have the same, and a round may be watched
 * more than once. There is no end to a watch but being told. If the client's health has ended this
 * returns why, and watches nothing: talweg_wait of the round does not wait. */
TALWEG_API talweg_status talweg_watch(talweg_client* client, talweg_tensor tensor,
                                      talweg_round round, uint64_t tag);

/* Says the tags of at most `capacity` (1 or more) watched rounds that are over, each once, in the
 * order in which they were watched; *count is how many. 0: none is, for now. If there are more the
 * descriptor stays readable. Does not wait. When the client's health has ended and all tags have
 * been told: why it has ended, with *count 0. Of several threads that call it each gets tags of its
 * own. */
TALWEG_API talweg_status talweg_completed(talweg_client* client, uint64_t* tags, size_t capacity,
                                          size_t* count);

/* The same with a descriptor of one's own, for parts of a program that know nothing of each other
 * (a framework's kernels beside an event loop): each call of talweg_another_completion_fd makes
 * one, until talweg_free. The tags of what is watched by it are told by it alone. */
TALWEG_API talweg_status talweg_another_completion_fd(talweg_client* client, int* fd);
TALWEG_API talweg_status talweg_watch_by(talweg_client* client, int fd, talweg_tensor tensor,
                                         talweg_round round, uint64_t tag);
TALWEG_API talweg_status talweg_completed_by(talweg_client* client, int fd, uint64_t* tags,
                                             size_t capacity, size_t* count);

/* ---- Collectives
 * ----------------------------------------------------------------------------------------- */

/* Which parts of a tensor a rank gives, or gets. `n` is the number of ranks in the group; rank i is
 * the i-th of them. */
typedef enum talweg_share {
  TALWEG_SHARE_WHOLE = 1, /* Every rank: all parts. */
  TALWEG_SHARE_ROOT = 2,  /* The root: all parts. The others: none. */
  TALWEG_SHARE_OWN = 3,   /* Rank i: part i of n. */
  TALWEG_SHARE_ROW = 4,   /* Rank i: parts i * n to i * n + n - 1 of n * n. */
  TALWEG_SHARE_COLUMN = 5 /* Rank i: parts i, n + i, 2 * n + i, ... of n * n. */
} talweg_share;

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
 * Where every rank gives the whole, `op` combines the ranks' elements, in the order of the ranks.
 * Where one rank gives each part, `op` is TALWEG_COPY. */
typedef struct talweg_collective {
  size_t struct_bytes; /* sizeof(talweg_collective). */
  talweg_dtype dtype;
  talweg_op op;
  talweg_share gives;
  talweg_share gets;
  uint32_t root_rank;     /* In the job. For TALWEG_SHARE_ROOT, else 0. */
  uint32_t rank_count;    /* 0: all ranks of the job. */
  const uint32_t* ranks;  /* The group: ascending, each once, this rank among them. */
  uint64_t element_count; /* The most that one part holds. May be 0. */
  /* 1: a side tensor. It is no part of the steps, may name ranks of standbys, and is pushed also
   * while another thread is in talweg_end_step. It has a group, and is an all_reduce or a
   * broadcast. (Since version 1.3.) */
  uint32_t side;
} talweg_collective;

/* As talweg_declare, of any collective. The ranks of the group declare it alike; the others do not
 * declare it. A name belongs to one group. */
TALWEG_API talweg_status talweg_declare_collective(talweg_client* client, const char* name,
                                                   const talweg_collective* collective,
                                                   int32_t priority, int64_t timeout_ns,
                                                   talweg_tensor* tensor);

/* How many parts this rank gives, and gets. 0 for no tensor. */
TALWEG_API uint32_t talweg_parts_given(talweg_client* client, talweg_tensor tensor);
TALWEG_API uint32_t talweg_parts_got(talweg_client* client, talweg_tensor tensor);

/* Contributes to the tensor's next round, as talweg_push_pull does. `data`: the parts that this
 * rank gives, in ascending order, one after another without gaps; NULL where this rank gives
 * nothing, or where the parts lie in the contribution buffer. lengths[i]: the bytes of the i-th of
 * them, a multiple of the dtype's size and at most a full part. NULL: all parts are full. Ranks
 * that give the same part (all_reduce, reduce, reduce_scatter) must give it the same length.
 *
 * `signature` says what this round is of, in any 8 bytes that all ranks choose alike; 0 says
 * nothing. The layout that libtalweg can put into words is SignatureOf in libs/base/collective.h:
 * dtype << 56 | op << 48 | gives << 44 | gets << 40 | a count of elements below 2^40.
 *
 * Where ranks give different signatures, or different lengths of one part, the round ends with
 * TALWEG_MISMATCH at every rank; the text names two ranks and what each of them has said. The
 * tensor's next round works.
 *
 * A tensor of talweg_declare may be pushed with this, and one of talweg_declare_collective with
 * talweg_push_pull: then all parts are full. */
TALWEG_API talweg_status talweg_push_parts(talweg_client* client, talweg_tensor tensor,
                                           const void* data, const uint64_t* lengths,
                                           uint64_t signature, int32_t priority, int64_t timeout_ns,
                                           talweg_round* round);

/* Waits until the round is complete. lengths[i]: the bytes of the i-th part that this rank gets;
 * NULL where it gets none. The round stays open; the call may be repeated. If the round has ended
 * without a result this returns why, and the round is taken. */
TALWEG_API talweg_status talweg_wait_lengths(talweg_client* client, talweg_tensor tensor,
                                             talweg_round round, uint64_t* lengths,
                                             int64_t timeout_ns);

/* Waits until the round is complete, copies the parts that this rank gets to `out`, in ascending
 * order, one after another without gaps, and takes the round: the tensor may be pushed again.
 * `out_bytes` is how much room there is. TALWEG_INVALID_ARGUMENT if that is too little: the round
 * stays open. `out` may be NULL where this rank gets nothing; it waits all the same. Otherwise as
 * talweg_wait, which copies the parts in the same way and takes it that there is room for all parts
 * at full length. */
TALWEG_API talweg_status talweg_wait_parts(talweg_client* client, talweg_tensor tensor,
                                           talweg_round round, void* out, uint64_t out_bytes,
                                           int64_t timeout_ns);

/* Says whom a round waits for that is open, in words for people: "rank 3 (local rank 1 of node 1,
 * pid 4711)", or "ranks 2, 3 of node 1". `text`, with room for `text_bytes`, gets them, cut where
 * they are longer. It is "" where nobody is known: the round is complete, or on its way, or the
 * agent is too old to say. It knows other nodes when the round has been open for a second. For
 * error messages; the round stays as it is. (Since version 1.4.) */
TALWEG_API talweg_status talweg_waits_for(talweg_client* client, talweg_tensor tensor,
                                          talweg_round round, char* text, size_t text_bytes,
                                          int64_t timeout_ns);

/* ---- In one call
 * ------------------------------------------------------------------------------------ */

/* Copies `root_rank`'s bytes to all ranks' `data`; declares `name` (a name of its own) when it is
 * new. */
TALWEG_API talweg_status talweg_broadcast(talweg_client* client, const char* name, void* data,
                                          uint64_t count, talweg_dtype dtype, uint32_t root_rank,
                                          int64_t timeout_ns);

/* Returns when all ranks have called it. After TALWEG_TIMEOUT the next call goes on waiting for the
 * same barrier. One barrier at a time a name; NULL: "talweg.barrier". */
TALWEG_API talweg_status talweg_barrier(talweg_client* client, const char* name,
                                        int64_t timeout_ns);

/* ---- Steps and membership
 * ---------------------------------------------------------------------------- */

/* docs/elastic.md. Nodes enter a running job where every rank has ended a step, and nowhere else.
 * Ranks keep their numbers until they follow a newer view, all at the end of the same step. */

/* One node's agent in the job. */
#define TALWEG_MEMBER_STANDBY 1 /* Its ranks take part in no steps yet. */
typedef struct talweg_member {
  uint32_t node;
  uint16_t rank_count;
  uint16_t flags;       /* TALWEG_MEMBER_STANDBY, for ranks that know standbys. */
  uint64_t incarnation; /* Another one after a restart. */
} talweg_member;

typedef struct talweg_membership {
  size_t struct_bytes; /* Set by the caller; filled up to there. */
  uint64_t epoch;
  uint64_t steps_entered; /* That all ranks had ended where nodes last entered; 0: none has. */
  uint64_t steps_base;    /* That they had ended when this node came: its steps count from there. */
  uint32_t rank;          /* This rank, in this view; a standby's, as if it were a full member. */
  uint32_t size;
  uint32_t member_count;
  uint32_t changes; /* 1: nodes may come and go in this job. */
  uint32_t standby; /* 1: this rank's node is a standby. (This and the next since version 1.3.) */
  /* By which number declarations name this rank once it follows this view. Full members' ranks have
   * 0, 1, ... in the order of `members`; after them come the ranks of standbys, in the same order.
   */
  uint32_t number;
} talweg_membership;

/* Ends a step. What the rank has pushed before belongs to it. Returns at once, or, if nodes want to
 * enter, when the rank may go on. For one thread at a time; until it returns the others' pushes are
 * TALWEG_BUSY. TALWEG_TIMEOUT: the next call goes on waiting, and ends no second step. */
TALWEG_API talweg_status talweg_end_step(talweg_client* client, int64_t timeout_ns);

/* Says that this rank can take part in steps as soon as its node is let in. Until then a standby's
 * rank declares nothing but side tensors, and ends no steps. When its node is a full member, which
 * talweg_get_membership says of the newest epoch, it follows that view with talweg_follow. For a
 * rank whose node is none, and with an older agent, it does nothing. (Since version 1.3.) */
TALWEG_API talweg_status talweg_ready(talweg_client* client, int64_t timeout_ns);

/* How many this client has ended. */
TALWEG_API uint64_t talweg_steps_ended(const talweg_client* client);

/* The epoch of the newest view that the agent has. Cheap. 0: the agent is too old to say. */
TALWEG_API uint64_t talweg_newest_epoch(const talweg_client* client);

/* The view of `epoch`, one of the last that the agent has had; 0: the newest. `members`, with room
 * for `members_max`, gets its members by node; membership->member_count says how many there are. */
TALWEG_API talweg_status talweg_get_membership(talweg_client* client, uint64_t epoch,
                                               talweg_membership* membership,
                                               talweg_member* members, uint32_t members_max,
                                               int64_t timeout_ns);

/* talweg_rank and talweg_size, roots and groups are by the numbers of that view from now on. For
 * all ranks of the job between the same two steps. Tensors that were declared keep their ranks. */
TALWEG_API talweg_status talweg_follow(talweg_client* client, uint64_t epoch, int64_t timeout_ns);

/* ---- Scaling
 * ----------------------------------------------------------------------------------------- */

/* Each of `count` elements of `in` times `factor`, into `out`, which may be `in` and else does not
 * overlap it. For prescaling and postscaling what a reduction is given, and gives. f32 and f64: in
 * their own type. f16 and bf16: in float32, then rounded. Integers: in double, rounded toward zero,
 * at most the type's greatest number and at least its least. A factor of 1 copies. No bools. */
TALWEG_API talweg_status talweg_scale(talweg_dtype dtype, double factor, const void* in, void* out,
                                      uint64_t count);

/* ---- Comparing
 * --------------------------------------------------------------------------------------- */

/* A digest of `bytes` bytes of `data`, as fast as memory is read. Ranks that should hold equal
 * bytes compare it: it is the same on every machine, and it resists no adversary. `seed` may be the
 * digest of what comes before, or 0. (Since version 1.4.) */
TALWEG_API uint64_t talweg_digest(const void* data, size_t bytes, uint64_t seed);

/* ---- Statistics
 * ------------------------------------------------------------------------------------- */

typedef struct talweg_statistics {
  size_t struct_bytes; /* Set by the caller; filled up to there. */
  uint64_t tensors;
  uint64_t pushes;
  uint64_t bytes_pushed; /* The contributions. */
  uint64_t bytes_copied; /* In and out, by this library. */
  uint64_t waits;
  uint64_t waits_slept; /* How often a wait has outlasted its spinning. */
  uint64_t wait_ns;     /* In all waits. */
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
