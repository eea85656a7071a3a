// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_JAX_XLA_FFI_H_
#define TALWEG_CLIENTS_JAX_XLA_FFI_H_

// Declares the part of XLA's stable C ABI for foreign functions that Talweg uses. So no file of XLA
// is needed to build this, and an installed jaxlib is checked when it loads a handler. xla_ffi_test
// compares these declarations with the header that jaxlib carries.
//
// A handler gets a CallFrame. It returns nullptr, or an Error that XLA then owns. Every struct
// begins with its size, so that either side may be older; new members come at the end.

#include <cstddef>
#include <cstdint>

namespace talweg::jax::xla {

// The version of these declarations. XLA refuses a handler of another major version.
inline constexpr int kMajorVersion = 0;
inline constexpr int kMinorVersion = 3;

struct Error;             // XLA's own.
struct Future;            // XLA's own.
struct ExecutionContext;  // XLA's own.

enum class ErrorCode : int {
  kInvalidArgument = 3,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

enum class DataType : int { kS64 = 5, kF64 = 12, kToken = 17 };

enum class ExtensionType : int { kMetadata = 1 };

struct Extension {
  size_t struct_size;
  ExtensionType type;
  Extension* next;
};

struct ApiVersion {
  size_t struct_size;
  Extension* extensions;
  int major_version;
  int minor_version;
};

// ---- The data that a handler gets.

struct Buffer {
  size_t struct_size;
  Extension* extensions;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct ByteSpan {
  const char* data;
  size_t size;
};

struct Array {
  DataType dtype;
  size_t size;
  void* data;
};

enum class AttributeType : int { kArray = 1, kDictionary = 2, kScalar = 3, kString = 4 };

enum class BufferType : int { kBuffer = 1 };

// Arguments or results.
struct Buffers {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  BufferType* types;
  void** values;
};

struct Attributes {
  size_t struct_size;
  Extension* extensions;
  int64_t size;
  AttributeType* types;
  ByteSpan** names;  // In ascending order.
  void** values;     // Each is an Array, a ByteSpan or the like, by its type.
};

enum class Stage : int { kInstantiate = 0, kPrepare = 1, kInitialize = 2, kExecute = 3 };

struct Api;

struct CallFrame {
  size_t struct_size;  // The bytes up to `attributes`, whether or not `future` is there.
  Extension* extensions;
  const Api* api;
  ExecutionContext* context;
  Stage stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  // A handler that has not finished when it returns sets this. XLA then keeps the buffers until the
  // future is complete.
  Future* future;
};
inline constexpr size_t kCallFrameBytes = offsetof(CallFrame, future);

using Handler = Error*(CallFrame*);

// A frame with this extension asks what the handler was built for.
struct Metadata {
  size_t struct_size;
  ApiVersion api_version;
  uint32_t traits;
  int64_t state_type;
};

struct MetadataExtension {
  Extension extension;
  Metadata* metadata;
};

// ---- The functions that a handler may call.

struct ErrorCreateArguments {
  size_t struct_size;
  Extension* extensions;
  const char* message;
  ErrorCode code;
};

struct FutureCreateArguments {
  size_t struct_size;
  Extension* extensions;
  Future* future;  // The answer.
};

struct FutureSetAvailableArguments {
  size_t struct_size;
  Extension* extensions;
  Future* future;
};

struct FutureSetErrorArguments {
  size_t struct_size;
  Extension* extensions;
  Future* future;
  Error* error;  // XLA owns it from then on.
};

struct Api {
  size_t struct_size;
  Extension* extensions;
  ApiVersion api_version;
  const void* internal;
  Error* (*error_create)(ErrorCreateArguments*);
  void (*error_get_message)(void*);
  void (*error_destroy)(void*);
  Error* (*handler_register)(void*);
  Error* (*stream_get)(void*);
  Error* (*type_register)(void*);
  Error* (*execution_context_get)(void*);
  Error* (*state_set)(void*);
  Error* (*state_get)(void*);
  Error* (*device_memory_allocate)(void*);
  Error* (*device_memory_free)(void*);
  Error* (*thread_pool_schedule)(void*);
  Error* (*thread_pool_num_threads)(void*);
  Error* (*future_create)(FutureCreateArguments*);
  Error* (*future_set_available)(FutureSetAvailableArguments*);
  Error* (*future_set_error)(FutureSetErrorArguments*);
};

}  // namespace talweg::jax::xla

#endif  // TALWEG_CLIENTS_JAX_XLA_FFI_H_
