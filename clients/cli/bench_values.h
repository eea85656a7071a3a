// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_BENCH_VALUES_H_
#define TALWEG_CLIENTS_CLI_BENCH_VALUES_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>

#include "clients/c/talweg.h"

namespace talweg::cli {

// Parses "f32", "bf16", ... INVALID_ARGUMENT names the text and the dtypes.
absl::StatusOr<talweg_dtype> ParseDType(const std::string& text);
// Returns "f32, f64, ...", for help texts.
std::string DTypeNames();

// Fills whole elements with a number, which changes if the dtype cannot hold it exactly.
void FillWith(talweg_dtype dtype, uint64_t number, std::span<char> data);

// Returns DATA_LOSS if an element at the beginning, the middle or the end is not `number`. Does not
// check numbers above 127, which not every dtype can hold. Where TALWEG_ENCODING is set, f32 may be
// off by a thirty-second: sums may have travelled rounded.
absl::Status CheckHolds(talweg_dtype dtype, uint64_t number, std::span<const char> data);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_BENCH_VALUES_H_
