// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_DAEMON_DECLARATION_H_
#define TALWEG_LIBS_SHM_DAEMON_DECLARATION_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "libs/shm/layout/messages.h"

namespace talweg::shm {

// Returns why the declaration is invalid in itself for rank `rank` in a job of `job_size` ranks, or
// "". `number_count`: the numbers of all ranks, with those of standbys, which a side tensor may
// name.
std::string DeclarationError(const Declare& declare, uint32_t rank, uint32_t job_size,
                             uint32_t number_count);

// A rank's text, made safe for our texts: no control characters, no broken UTF-8.
std::string Printable(std::string_view text);

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_DAEMON_DECLARATION_H_
