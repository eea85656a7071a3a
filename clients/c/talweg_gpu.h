/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TALWEG_CLIENTS_C_TALWEG_GPU_H_
#define TALWEG_CLIENTS_C_TALWEG_GPU_H_

#include "talweg.h"

/* Tensors on GPUs: a part of talweg.h, which includes it. It lies beside that file.
 *
 * This library calls no driver. It passes on the handles that the caller gets from the driver.
 * docs/gpu.md has the whole path; in short, for memory of cuMemAlloc (cu... are the driver's
 * calls):
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
 * Between push and wait the agent owns the bytes: it reads them, and writes the result over them. A
 * push, a poll or a wait returns TALWEG_EVENTS_LOST if the agent lost the GPU, and the events with
 * it, and has opened it again. talweg_gpu_place gives new events; record `pushed` again and push:
 * this is the round that was open, and its gradient must still be there. TALWEG_UNSUPPORTED,
 * TALWEG_PERMISSION_DENIED, TALWEG_OUT_OF_MEMORY: not possible on this GPU, or not now; the text
 * says why. Then go through host memory: talweg_declare the same name. */

#ifdef __cplusplus
extern "C" {
#endif

#define TALWEG_GPU_UUID_BYTES 16
#define TALWEG_GPU_HANDLE_BYTES 64

/* One client's buffer that the agent has mapped. */
typedef uint32_t talweg_gpu_buffer;

/* Has the agent map an allocation. `buffer_id` is the driver's number of the allocation
 * (CU_POINTER_ATTRIBUTE_BUFFER_ID), `handle` the IPC handle of its beginning. The caller must not
 * free it before talweg_gpu_unexport has returned TALWEG_OK. *bytes is the size that the agent
 * sees. */
TALWEG_API talweg_status talweg_gpu_export(talweg_client* client, const uint8_t* uuid,
                                           uint64_t buffer_id, const uint8_t* handle,
                                           int64_t timeout_ns, talweg_gpu_buffer* buffer,
                                           uint64_t* bytes);

/* Has the agent unmap the buffer. TALWEG_BUSY while a round that was pushed from it is open. */
TALWEG_API talweg_status talweg_gpu_unexport(talweg_client* client, talweg_gpu_buffer buffer,
                                             int64_t timeout_ns);

/* Like talweg_declare, for a tensor that this rank pushes from the GPU of `buffer`. `pushed` and
 * `taken` get handles of events that the agent makes, TALWEG_GPU_HANDLE_BYTES each. Other ranks may
 * declare the tensor in host memory, if the node's first declaration is on a GPU. */
TALWEG_API talweg_status talweg_gpu_declare(talweg_client* client, const char* name,
                                            talweg_dtype dtype, talweg_op op, uint32_t root_rank,
                                            uint64_t count, int32_t priority,
                                            talweg_gpu_buffer buffer, uint8_t* pushed,
                                            uint8_t* taken, int64_t timeout_ns,
                                            talweg_tensor* tensor);

/* Declares many, as talweg_declare_all does. Gives no events: talweg_gpu_place gives them for each
 * tensor before its first push. */
TALWEG_API talweg_status talweg_gpu_declare_all(talweg_client* client,
                                                const talweg_declaration* declarations,
                                                size_t declaration_count, int64_t timeout_ns,
                                                talweg_tensor* tensors);

/* Gives the events of a tensor that was declared on a GPU, for the GPU of `buffer`. Call it again
 * after TALWEG_EVENTS_LOST, and before pushing from another GPU. TALWEG_UNSUPPORTED also while the
 * agent opens the GPU again. */
TALWEG_API talweg_status talweg_gpu_place(talweg_client* client, talweg_tensor tensor,
                                          talweg_gpu_buffer buffer, uint8_t* pushed, uint8_t* taken,
                                          int64_t timeout_ns);

/* talweg_gpu_place with the signature of all rounds that this rank pushes from then on: see
 * talweg_push_parts. So the agents compare a tensor on a GPU as they do one in host memory, and a
 * push needs no signature. An agent of an older version does not compare it. (Since version
 * 1.5.) */
TALWEG_API talweg_status talweg_gpu_place_signed(talweg_client* client, talweg_tensor tensor,
                                                 talweg_gpu_buffer buffer, uint64_t signature,
                                                 uint8_t* pushed, uint8_t* taken,
                                                 int64_t timeout_ns);

/* Like talweg_push_pull. The contribution lies at `offset` of `buffer` once the recorded event is
 * done, and the result replaces it there. */
TALWEG_API talweg_status talweg_gpu_push_pull(talweg_client* client, talweg_tensor tensor,
                                              talweg_gpu_buffer buffer, uint64_t offset,
                                              int32_t priority, int64_t timeout_ns,
                                              talweg_round* round);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* TALWEG_CLIENTS_C_TALWEG_GPU_H_ */
