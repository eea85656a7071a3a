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

// "f32", "bf16", ...; INVALID_ARGUMENT names the text and what there is.
absl::StatusOr<talweg_dtype> ParseDType(const std::string& text);
// "f32, f64, ...", for help texts.
std::string DTypeNames();

// Fills whole elements with a number; one that the dtype cannot hold exactly becomes another.
void FillWith(talweg_dtype dtype, uint64_t number, std::span<char> data);

// DATA_LOSS when an element at the beginning, the middle or the end is not `number`. Numbers above
// 127 are not checked: not every dtype holds them.
absl::Status CheckHolds(talweg_dtype dtype, uint64_t number, std::span<const char> data);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_BENCH_VALUES_H_
