// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_C_ENVIRONMENT_H_
#define TALWEG_CLIENTS_C_ENVIRONMENT_H_

#include <cstddef>
#include <cstdint>

#include "libs/shm/client/error_text.h"

// What a client reads from its process and environment.
namespace talweg::c {

// Reads $TALWEG_LOCAL_RANK, else $LOCAL_RANK, else any rank. kInvalidArgument if it is no number.
shm::RankStatus LocalRankFromEnvironment(uint32_t* local_rank, shm::ErrorText& error);

// Reads $TALWEG_CACHE_BYTES, else 0. kInvalidArgument if it is no number of bytes.
shm::RankStatus CacheBytesFromEnvironment(uint64_t* bytes, shm::ErrorText& error);

// Tells `talweg run`, through a file that $TALWEG_RUN_NEEDS names, that this rank needs an agent,
// or has one. Does nothing without the variable.
void SayThatAgentIsNeeded();
void SayThatAgentIsFound();

// Writes this process's command line, cut, to `out`: "python3 train.py --lr 0.1". Returns its
// length.
size_t CommandLine(char* out, size_t bytes_max);

}  // namespace talweg::c

#endif  // TALWEG_CLIENTS_C_ENVIRONMENT_H_
