// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_JAX_FRAME_H_
#define TALWEG_CLIENTS_JAX_FRAME_H_

// What a handler does with the frame that XLA calls it with.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "clients/jax/xla_ffi.h"

namespace talweg::jax {

// An attribute of the call; nothing if it has none of that name and type.
std::optional<std::string_view> StringAttribute(const xla::CallFrame& frame, std::string_view name);
std::optional<std::span<const int64_t>> IntegersAttribute(const xla::CallFrame& frame,
                                                          std::string_view name);
std::optional<std::span<const double>> NumbersAttribute(const xla::CallFrame& frame,
                                                        std::string_view name);

// The arguments, or results, which tokens of XLA's are not counted among: those order calls and
// have no bytes. Null after the last one.
const xla::Buffer* BufferAt(const xla::Buffers& buffers, int64_t index);

int64_t ElementCount(const xla::Buffer& buffer);

// An error that XLA owns when it is returned to it.
xla::Error* MakeError(const xla::Api& api, xla::ErrorCode code, const std::string& text);

// What a handler returns in the frame instead of waiting: null if XLA gives none.
xla::Future* MakeFuture(const xla::Api& api);
// The future's end: with an error, or without.
void Complete(const xla::Api& api, xla::Future* future, xla::Error* error);

// Whether the frame asks what the handler was built for; then it has been answered, and
// VersionOfXla() has what XLA tells of itself.
bool AnswersMetadata(const xla::CallFrame& frame);

// What XLA has said of itself when it last asked.
struct XlaVersion {
  int major_version = -1;  // -1: it has not asked.
  int minor_version = -1;
  size_t frame_bytes = 0;
  size_t api_bytes = 0;
};
XlaVersion VersionOfXla();

}  // namespace talweg::jax

#endif  // TALWEG_CLIENTS_JAX_FRAME_H_
