// SPDX-License-Identifier: Apache-2.0
#include "clients/jax/frame.h"

#include <mutex>

namespace talweg::jax {
namespace {

std::mutex version_mutex;
XlaVersion version_of_xla;

const void* Attribute(const xla::CallFrame& frame, std::string_view name, xla::AttributeType type) {
  const xla::Attributes& attributes = frame.attributes;
  for (int64_t index = 0; index < attributes.size; ++index) {
    const xla::ByteSpan& each = *attributes.names[index];
    if (std::string_view(each.data, each.size) == name && attributes.types[index] == type) {
      return attributes.values[index];
    }
  }
  return nullptr;
}

template <typename Value>
std::optional<std::span<const Value>> ArrayAttribute(const xla::CallFrame& frame,
                                                     std::string_view name, xla::DataType dtype) {
  const auto* array =
      static_cast<const xla::Array*>(Attribute(frame, name, xla::AttributeType::kArray));
  if (array == nullptr || array->dtype != dtype) {
    return std::nullopt;
  }
  return std::span<const Value>(static_cast<const Value*>(array->data), array->size);
}

}  // namespace

std::optional<std::string_view> StringAttribute(const xla::CallFrame& frame,
                                                std::string_view name) {
  const auto* text =
      static_cast<const xla::ByteSpan*>(Attribute(frame, name, xla::AttributeType::kString));
  if (text == nullptr) {
    return std::nullopt;
  }
  return std::string_view(text->data, text->size);
}

std::optional<std::span<const int64_t>> IntegersAttribute(const xla::CallFrame& frame,
                                                          std::string_view name) {
  return ArrayAttribute<int64_t>(frame, name, xla::DataType::kS64);
}

std::optional<std::span<const double>> NumbersAttribute(const xla::CallFrame& frame,
                                                        std::string_view name) {
  return ArrayAttribute<double>(frame, name, xla::DataType::kF64);
}

const xla::Buffer* BufferAt(const xla::Buffers& buffers, int64_t index) {
  for (int64_t at = 0; at < buffers.size; ++at) {
    const auto* buffer = static_cast<const xla::Buffer*>(buffers.values[at]);
    if (buffer->dtype != xla::DataType::kToken && index-- == 0) {
      return buffer;
    }
  }
  return nullptr;
}

int64_t ElementCount(const xla::Buffer& buffer) {
  int64_t count = 1;
  for (int64_t dimension = 0; dimension < buffer.rank; ++dimension) {
    count *= buffer.dims[dimension];
  }
  return count;
}

xla::Error* MakeError(const xla::Api& api, xla::ErrorCode code, const std::string& text) {
  xla::ErrorCreateArguments arguments{
      .struct_size = sizeof(arguments), .message = text.c_str(), .code = code};
  return api.error_create(&arguments);
}

xla::Future* MakeFuture(const xla::Api& api) {
  xla::FutureCreateArguments arguments{.struct_size = sizeof(arguments)};
  xla::Error* const error = api.future_create(&arguments);
  return error == nullptr ? arguments.future : nullptr;
}

void Complete(const xla::Api& api, xla::Future* future, xla::Error* error) {
  if (error == nullptr) {
    xla::FutureSetAvailableArguments arguments{.struct_size = sizeof(arguments), .future = future};
    api.future_set_available(&arguments);
  } else {
    xla::FutureSetErrorArguments arguments{
        .struct_size = sizeof(arguments), .future = future, .error = error};
    api.future_set_error(&arguments);
  }
}

bool AnswersMetadata(const xla::CallFrame& frame) {
  for (xla::Extension* each = frame.extensions; each != nullptr; each = each->next) {
    if (each->type != xla::ExtensionType::kMetadata) {
      continue;
    }
    const std::scoped_lock lock(version_mutex);
    version_of_xla = {.major_version = frame.api->api_version.major_version,
                      .minor_version = frame.api->api_version.minor_version,
                      .frame_bytes = frame.struct_size,
                      .api_bytes = frame.api->struct_size};
    xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(each)->metadata;
    metadata.api_version.major_version = xla::kMajorVersion;
    metadata.api_version.minor_version = xla::kMinorVersion;
    metadata.traits = 0;
    return true;
  }
  return false;
}

XlaVersion VersionOfXla() {
  const std::scoped_lock lock(version_mutex);
  return version_of_xla;
}

}  // namespace talweg::jax
