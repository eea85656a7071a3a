/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TALWEG_CLIENTS_C_TALWEG_GPU_H_
#define TALWEG_CLIENTS_C_TALWEG_GPU_H_

#include "talweg.h"

/* Tensors on GPUs: a part of talweg.h, which includes it. It lies beside that file.
 *
 * This library calls no driver: it carries what the caller has from it. docs/gpu.md has the whole
 * path; in short, for memory that cuMemAlloc made (`...` are the driver's own calls):
 *
 *   cuMemGetAddressRange, cuIpcGetMemHandle, cuPointerGetAttribute(BUFFER_ID), cuDeviceGetUuid
 *   talweg_gpu_export(client, uuid, buffer_id, handle, -1, &buffer, &bytes);
 *   talweg_gpu_declare(client, "weights", ..., buffer, pushed, taken, -1, &weights);
 *   cuIpcOpenEventHandle(&pushed_event, pushed), the same for taken
 *   for (;;) {
 *     cuEventRecord(pushed_event, stream);    after the work that writes the gradient
 *     talweg_gpu_push_pull(client, weights, buffer, offset, TALWEG_DECLARED_PRIORITY, -1, &round);
 *     talweg_wait(client, weights, round, NULL, -1);
 *     cuStreamWaitEvent(stream, taken_event, 0);    done already: it orders, it does not wait
 *   }
 *   talweg_gpu_unexport(client, buffer, -1);    then the memory may be freed
 *
 * Between push and wait the bytes are the agent's: it reads them, and writes the result over them.
 * TALWEG_EVENTS_LOST, of a push, a poll or a wait: the agent has lost the GPU, and the events with
 * it, and has opened it again. talweg_gpu_place gives others; record `pushed` anew and push: the
 * round that was open is that round again, and its gradient must still be there.
 * TALWEG_UNSUPPORTED, TALWEG_PERMISSION_DENIED, TALWEG_OUT_OF_MEMORY: not on this GPU, or not now;
 * the text says why. Go through host memory: talweg_declare the same name. */

#ifdef __cplusplus
extern "C" {
#endif

#define TALWEG_GPU_UUID_BYTES 16
#define TALWEG_GPU_HANDLE_BYTES 64

/* A buffer that the agent has mapped; of one client. */
typedef uint32_t talweg_gpu_buffer;

/* Lets the agent map an allocation. `buffer_id` is the driver's number for it
 * (CU_POINTER_ATTRIBUTE_BUFFER_ID), the handle that of its beginning. It must not be freed before
 * talweg_gpu_unexport has returned TALWEG_OK. *bytes is how much the agent sees. */
TALWEG_API talweg_status talweg_gpu_export(talweg_client* client, const uint8_t* uuid,
                                           uint64_t buffer_id, const uint8_t* handle,
                                           int64_t timeout_ns, talweg_gpu_buffer* buffer,
                                           uint64_t* bytes);

/* The agent unmaps it. TALWEG_BUSY while a round that was pushed from it is open. */
TALWEG_API talweg_status talweg_gpu_unexport(talweg_client* client, talweg_gpu_buffer buffer,
                                             int64_t timeout_ns);

/* As talweg_declare, of a tensor that this rank pushes from the GPU that `buffer` lies on. `pushed`
 * and `taken` are handles of events that the agent has made, TALWEG_GPU_HANDLE_BYTES each. Other
 * ranks may declare it in host memory, but not as the node's first. */
TALWEG_API talweg_status talweg_gpu_declare(talweg_client* client, const char* name,
                                            talweg_dtype dtype, talweg_op op, uint32_t root_rank,
                                            uint64_t count, int32_t priority,
                                            talweg_gpu_buffer buffer, uint8_t* pushed,
                                            uint8_t* taken, int64_t timeout_ns,
                                            talweg_tensor* tensor);

/* talweg_gpu_declare of many, as talweg_declare_all: agreed on together, and without their events,
 * which talweg_gpu_place gives to each before its first push. */
TALWEG_API talweg_status talweg_gpu_declare_all(talweg_client* client,
                                                const talweg_declaration* declarations,
                                                size_t declaration_count, int64_t timeout_ns,
                                                talweg_tensor* tensors);

/* The events of a tensor that was declared so, for the GPU that `buffer` lies on; once more after
 * TALWEG_EVENTS_LOST, and when it is now pushed from another GPU. TALWEG_UNSUPPORTED also while the
 * GPU is being opened. */
TALWEG_API talweg_status talweg_gpu_place(talweg_client* client, talweg_tensor tensor,
                                          talweg_gpu_buffer buffer, uint8_t* pushed, uint8_t* taken,
                                          int64_t timeout_ns);

/* talweg_gpu_place, which says what each round is of that this rank pushes from then on: see
 * talweg_push_parts. So a tensor on a GPU is compared with others as one in host memory is, and no
 * push says more. An agent of an older version does not compare it. (Since version 1.5.) */
TALWEG_API talweg_status talweg_gpu_place_signed(talweg_client* client, talweg_tensor tensor,
                                                 talweg_gpu_buffer buffer, uint64_t signature,
                                                 uint8_t* pushed, uint8_t* taken,
                                                 int64_t timeout_ns);

/* As talweg_push_pull: the contribution lies at `offset` of `buffer`, after the recorded event,
 * and its result will. */
TALWEG_API talweg_status talweg_gpu_push_pull(talweg_client* client, talweg_tensor tensor,
                                              talweg_gpu_buffer buffer, uint64_t offset,
                                              int32_t priority, int64_t timeout_ns,
                                              talweg_round* round);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TALWEG_CLIENTS_C_TALWEG_GPU_H_ */
