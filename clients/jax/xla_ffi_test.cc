// SPDX-License-Identifier: Apache-2.0
//
// xla_ffi_test.py compiles this against the header that jaxlib carries. It checks that every struct
// of xla_ffi.h has XLA's size, and every member has XLA's place.

#include "clients/jax/xla_ffi.h"

#include <cstddef>

#include "xla/ffi/api/c_api.h"

namespace xla = talweg::jax::xla;

#define SAME_SIZE(own, theirs) static_assert(sizeof(xla::own) == sizeof(theirs))
#define SAME_PLACE(own, member, theirs, their_member)                          \
  static_assert(offsetof(xla::own, member) == offsetof(theirs, their_member)); \
  static_assert(sizeof(xla::own::member) == sizeof(theirs::their_member))
#define SAME_VALUE(own, theirs) \
  static_assert(static_cast<int>(xla::own) == static_cast<int>(theirs))

static_assert(xla::kMajorVersion == XLA_FFI_API_MAJOR);
static_assert(xla::kMinorVersion == XLA_FFI_API_MINOR);

SAME_VALUE(ErrorCode::kInvalidArgument, XLA_FFI_Error_Code_INVALID_ARGUMENT);
SAME_VALUE(ErrorCode::kFailedPrecondition, XLA_FFI_Error_Code_FAILED_PRECONDITION);
SAME_VALUE(ErrorCode::kAborted, XLA_FFI_Error_Code_ABORTED);
SAME_VALUE(ErrorCode::kUnimplemented, XLA_FFI_Error_Code_UNIMPLEMENTED);
SAME_VALUE(ErrorCode::kInternal, XLA_FFI_Error_Code_INTERNAL);
SAME_VALUE(ErrorCode::kUnavailable, XLA_FFI_Error_Code_UNAVAILABLE);
SAME_VALUE(DataType::kS64, XLA_FFI_DataType_S64);
SAME_VALUE(DataType::kF64, XLA_FFI_DataType_F64);
SAME_VALUE(DataType::kToken, XLA_FFI_DataType_TOKEN);
SAME_VALUE(ExtensionType::kMetadata, XLA_FFI_Extension_Metadata);
SAME_VALUE(AttributeType::kArray, XLA_FFI_AttrType_ARRAY);
SAME_VALUE(AttributeType::kDictionary, XLA_FFI_AttrType_DICTIONARY);
SAME_VALUE(AttributeType::kScalar, XLA_FFI_AttrType_SCALAR);
SAME_VALUE(AttributeType::kString, XLA_FFI_AttrType_STRING);
SAME_VALUE(BufferType::kBuffer, XLA_FFI_ArgType_BUFFER);
SAME_VALUE(BufferType::kBuffer, XLA_FFI_RetType_BUFFER);
SAME_VALUE(Stage::kInstantiate, XLA_FFI_ExecutionStage_INSTANTIATE);
SAME_VALUE(Stage::kPrepare, XLA_FFI_ExecutionStage_PREPARE);
SAME_VALUE(Stage::kInitialize, XLA_FFI_ExecutionStage_INITIALIZE);
SAME_VALUE(Stage::kExecute, XLA_FFI_ExecutionStage_EXECUTE);

SAME_SIZE(Extension, XLA_FFI_Extension_Base);
SAME_PLACE(Extension, type, XLA_FFI_Extension_Base, type);
SAME_PLACE(Extension, next, XLA_FFI_Extension_Base, next);

SAME_SIZE(ApiVersion, XLA_FFI_Api_Version);
SAME_PLACE(ApiVersion, major_version, XLA_FFI_Api_Version, major_version);
SAME_PLACE(ApiVersion, minor_version, XLA_FFI_Api_Version, minor_version);

SAME_SIZE(Buffer, XLA_FFI_Buffer);
SAME_PLACE(Buffer, dtype, XLA_FFI_Buffer, dtype);
SAME_PLACE(Buffer, data, XLA_FFI_Buffer, data);
SAME_PLACE(Buffer, rank, XLA_FFI_Buffer, rank);
SAME_PLACE(Buffer, dims, XLA_FFI_Buffer, dims);

SAME_SIZE(ByteSpan, XLA_FFI_ByteSpan);
SAME_PLACE(ByteSpan, size, XLA_FFI_ByteSpan, len);

SAME_SIZE(Array, XLA_FFI_Array);
SAME_PLACE(Array, size, XLA_FFI_Array, size);
SAME_PLACE(Array, data, XLA_FFI_Array, data);

SAME_SIZE(Buffers, XLA_FFI_Args);
SAME_PLACE(Buffers, size, XLA_FFI_Args, size);
SAME_PLACE(Buffers, types, XLA_FFI_Args, types);
SAME_PLACE(Buffers, values, XLA_FFI_Args, args);
SAME_SIZE(Buffers, XLA_FFI_Rets);
SAME_PLACE(Buffers, size, XLA_FFI_Rets, size);
SAME_PLACE(Buffers, types, XLA_FFI_Rets, types);
SAME_PLACE(Buffers, values, XLA_FFI_Rets, rets);

SAME_SIZE(Attributes, XLA_FFI_Attrs);
SAME_PLACE(Attributes, size, XLA_FFI_Attrs, size);
SAME_PLACE(Attributes, types, XLA_FFI_Attrs, types);
SAME_PLACE(Attributes, names, XLA_FFI_Attrs, names);
SAME_PLACE(Attributes, values, XLA_FFI_Attrs, attrs);

SAME_SIZE(CallFrame, XLA_FFI_CallFrame);
SAME_PLACE(CallFrame, extensions, XLA_FFI_CallFrame, extension_start);
SAME_PLACE(CallFrame, api, XLA_FFI_CallFrame, api);
SAME_PLACE(CallFrame, context, XLA_FFI_CallFrame, ctx);
SAME_PLACE(CallFrame, stage, XLA_FFI_CallFrame, stage);
SAME_PLACE(CallFrame, arguments, XLA_FFI_CallFrame, args);
SAME_PLACE(CallFrame, results, XLA_FFI_CallFrame, rets);
SAME_PLACE(CallFrame, attributes, XLA_FFI_CallFrame, attrs);
SAME_PLACE(CallFrame, future, XLA_FFI_CallFrame, future);
static_assert(xla::kCallFrameBytes == XLA_FFI_CallFrame_STRUCT_SIZE);

SAME_SIZE(Metadata, XLA_FFI_Metadata);
SAME_PLACE(Metadata, api_version, XLA_FFI_Metadata, api_version);
SAME_PLACE(Metadata, traits, XLA_FFI_Metadata, traits);
SAME_PLACE(Metadata, state_type, XLA_FFI_Metadata, state_type_id);
SAME_SIZE(MetadataExtension, XLA_FFI_Metadata_Extension);
SAME_PLACE(MetadataExtension, metadata, XLA_FFI_Metadata_Extension, metadata);

SAME_SIZE(ErrorCreateArguments, XLA_FFI_Error_Create_Args);
SAME_PLACE(ErrorCreateArguments, message, XLA_FFI_Error_Create_Args, message);
SAME_PLACE(ErrorCreateArguments, code, XLA_FFI_Error_Create_Args, errc);
SAME_SIZE(FutureCreateArguments, XLA_FFI_Future_Create_Args);
SAME_PLACE(FutureCreateArguments, future, XLA_FFI_Future_Create_Args, future);
SAME_SIZE(FutureSetAvailableArguments, XLA_FFI_Future_SetAvailable_Args);
SAME_PLACE(FutureSetAvailableArguments, future, XLA_FFI_Future_SetAvailable_Args, future);
SAME_SIZE(FutureSetErrorArguments, XLA_FFI_Future_SetError_Args);
SAME_PLACE(FutureSetErrorArguments, future, XLA_FFI_Future_SetError_Args, future);
SAME_PLACE(FutureSetErrorArguments, error, XLA_FFI_Future_SetError_Args, error);

SAME_PLACE(Api, api_version, XLA_FFI_Api, api_version);
SAME_PLACE(Api, error_create, XLA_FFI_Api, XLA_FFI_Error_Create);
SAME_PLACE(Api, future_create, XLA_FFI_Api, XLA_FFI_Future_Create);
SAME_PLACE(Api, future_set_available, XLA_FFI_Api, XLA_FFI_Future_SetAvailable);
SAME_PLACE(Api, future_set_error, XLA_FFI_Api, XLA_FFI_Future_SetError);
static_assert(sizeof(xla::Api) <= XLA_FFI_Api_STRUCT_SIZE);
