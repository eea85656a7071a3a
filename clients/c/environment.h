// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_C_ENVIRONMENT_H_
#define TALWEG_CLIENTS_C_ENVIRONMENT_H_

#include <cstddef>
#include <cstdint>

#include "libs/shm/client/error_text.h"

// What a client learns from its process, and nobody told it.
namespace talweg::c {

// $TALWEG_LOCAL_RANK, or $LOCAL_RANK, or any. kInvalidArgument if it is no number.
shm::RankStatus LocalRankFromEnvironment(uint32_t* local_rank, shm::ErrorText& error);

// $TALWEG_CACHE_BYTES, or 0. kInvalidArgument if it is no number of bytes.
shm::RankStatus CacheBytesFromEnvironment(uint64_t* bytes, shm::ErrorText& error);

// Says to `talweg run`, by a file that $TALWEG_RUN_NEEDS names, that this rank needs an agent, or
// that it has one. Without the variable nothing.
void SayThatAgentIsNeeded();
void SayThatAgentIsFound();

// "python3 train.py --lr 0.1": this process's command line, cut; its length.
size_t CommandLine(char* out, size_t bytes_max);

}  // namespace talweg::c

#endif  // TALWEG_CLIENTS_C_ENVIRONMENT_H_
