// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_INCARNATION_H_
#define TALWEG_LIBS_RUNTIME_INCARNATION_H_

#include "libs/base/ids.h"

namespace talweg::runtime {

// A new number for each life of a process: drawn at random, never 0.
Incarnation NewIncarnation();

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_INCARNATION_H_
