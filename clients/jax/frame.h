// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_JAX_FRAME_H_
#define TALWEG_CLIENTS_JAX_FRAME_H_

// How a handler uses the frame that XLA calls it with.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "clients/jax/xla_ffi.h"

namespace talweg::jax {

// Returns an attribute of the call, or nothing if there is none of that name and type.
std::optional<std::string_view> StringAttribute(const xla::CallFrame& frame, std::string_view name);
std::optional<std::span<const int64_t>> IntegersAttribute(const xla::CallFrame& frame,
                                                          std::string_view name);
std::optional<std::span<const double>> NumbersAttribute(const xla::CallFrame& frame,
                                                        std::string_view name);

// Returns an argument or result. XLA's tokens do not count: they order calls and have no bytes.
// Null after the last one.
const xla::Buffer* BufferAt(const xla::Buffers& buffers, int64_t index);

int64_t ElementCount(const xla::Buffer& buffer);

// Returns an error that XLA owns when it gets it.
xla::Error* MakeError(const xla::Api& api, xla::ErrorCode code, const std::string& text);

// Returns what a handler puts into the frame instead of waiting. Null if XLA gives none.
xla::Future* MakeFuture(const xla::Api& api);
// Completes the future, with an error or without.
void Complete(const xla::Api& api, xla::Future* future, xla::Error* error);

// Returns whether the frame asks what the handler was built for. If so, it has been answered, and
// VersionOfXla() has what XLA says about itself.
bool AnswersMetadata(const xla::CallFrame& frame);

// What XLA said about itself when it last asked.
struct XlaVersion {
  int major_version = -1;  // -1: it has not asked.
  int minor_version = -1;
  size_t frame_bytes = 0;
  size_t api_bytes = 0;
};
XlaVersion VersionOfXla();

}  // namespace talweg::jax

#endif  // TALWEG_CLIENTS_JAX_FRAME_H_
