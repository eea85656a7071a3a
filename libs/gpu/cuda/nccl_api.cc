// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/cuda/nccl_api.h"

#include <absl/strings/str_cat.h>

#include "libs/base/check.h"

namespace talweg::gpu::cuda {

absl::StatusOr<std::shared_ptr<const NcclApi>> OpenNccl(const std::vector<std::string>& libraries) {
  auto nccl = std::make_shared<NcclApi>();
  void* opened = nullptr;
  std::string errors;
  for (const std::string& library : libraries) {
    std::string error;
    opened = OpenLibrary(library, &error);
    if (opened != nullptr) {
      nccl->library = library;
      break;
    }
    absl::StrAppend(&errors, errors.empty() ? "" : "; ", error);
  }
  if (opened == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("no NCCL: ", errors,
                     "; install Debian's libnccl2, or start the agent with LD_LIBRARY_PATH at the "
                     "directory of the libnccl.so.2 that torch has from PyPI's nvidia-nccl"));
  }
#define TALWEG_GPU_LOAD(member, symbol, ...)                                                \
  nccl->member = reinterpret_cast<decltype(nccl->member)>(FindSymbol(opened, symbol));      \
  if (nccl->member == nullptr) {                                                            \
    return absl::UnimplementedError(                                                        \
        absl::StrCat(nccl->library, " has no ", symbol, ": NCCL 2.14 or later is needed")); \
  }
  TALWEG_GPU_NCCL_FUNCTIONS(TALWEG_GPU_LOAD)
#undef TALWEG_GPU_LOAD
  if (nccl->GetVersion(&nccl->version) != kNcclSuccess) {
    return absl::UnimplementedError(absl::StrCat(nccl->library, " does not say its version"));
  }
  return nccl;
}

NcclDType NcclDTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return kNcclFloat32;
    case DType::kF64: return kNcclFloat64;
    case DType::kF16: return kNcclFloat16;
    case DType::kBF16: return kNcclBfloat16;
    case DType::kI8: return kNcclInt8;
    case DType::kU8: return kNcclUint8;
    case DType::kI32: return kNcclInt32;
    case DType::kI64: return kNcclInt64;
    case DType::kU32: return kNcclUint32;
    case DType::kU64: return kNcclUint64;
    case DType::kBool: return kNcclUint8;
    case DType::kI16:
    case DType::kU16:
    case DType::kUnspecified: break;
  }
  TALWEG_CHECK(!"a dtype of NCCL");
  return kNcclInt8;
}

NcclOp NcclOpOf(Op op) {
  switch (op) {
    case Op::kSum: return kNcclSum;
    case Op::kProduct: return kNcclProduct;
    case Op::kMax: return kNcclMax;
    case Op::kMin: return kNcclMin;
    default: break;
  }
  TALWEG_CHECK(!"an operation of NCCL");
  return kNcclSum;
}

std::string NcclVersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace talweg::gpu::cuda
