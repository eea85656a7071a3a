// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/kernels/reduce_plan.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <bit>
#include <iterator>

#include "libs/status/status.h"

namespace talweg::gpu::kernels {
namespace {

struct Scaling {
  Combine combine;
  double scale;
};

// Dividing by a power of two and multiplying by its inverse round the same number.
Scaling ScalingOf(const ReduceSpec& spec) {
  switch (spec.op) {
    case Op::kMin: return {Combine::kMin, 1};
    case Op::kMax: return {Combine::kMax, 1};
    case Op::kProduct: return {Combine::kProduct, 1};
    case Op::kBitAnd: return {Combine::kBitAnd, 1};
    case Op::kBitOr: return {Combine::kBitOr, 1};
    case Op::kBitXor: return {Combine::kBitXor, 1};
    default: break;
  }
  const double divisor = spec.divisor;
  if (spec.divisor == 1) return {Combine::kSum, 1};
  if (std::has_single_bit(spec.divisor)) return {Combine::kSumTimes, 1 / divisor};
  return {Combine::kSumOver, divisor};
}

// Only minima and maxima differ between signed and unsigned numbers. A bool is a byte.
DType KernelDType(DType dtype, Combine combine) {
  const bool is_end = combine == Combine::kMin || combine == Combine::kMax;
  if (IsFloat(dtype) || (IsInteger(dtype) && is_end)) return dtype;
  const auto* const row =
      std::find_if(std::begin(kDTypeRows), std::end(kDTypeRows), [dtype](const DTypeRow& each) {
        return each.kind == ElementKind::kUnsigned && each.bytes == DTypeSize(dtype);
      });
  return row->dtype;  // Every size of an integer has one.
}

absl::string_view CombineName(Combine combine) {
  switch (combine) {
    case Combine::kSum: return "sum";
    case Combine::kSumTimes: return "sum_times";
    case Combine::kSumOver: return "sum_over";
    case Combine::kMin: return "min";
    case Combine::kMax: return "max";
    case Combine::kProduct: return "product";
    case Combine::kBitAnd: return "bit_and";
    case Combine::kBitOr: return "bit_or";
    case Combine::kBitXor: return "bit_xor";
  }
  return "invalid";
}

absl::string_view NameOf(DType dtype) {
  const std::string_view name = DTypeName(dtype);
  return {name.data(), name.size()};
}

absl::Status CheckBuffer(absl::string_view what, uint64_t address, uint64_t bytes, uint64_t size) {
  if (address % size == 0 && address + bytes >= address) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " of ", bytes, " bytes at address 0x", absl::Hex(address),
                   ": buffers lie at multiples of an element's size, here ", size, " bytes"));
}

bool Overlap(uint64_t one, uint64_t other, uint64_t bytes) {
  return one < other + bytes && other < one + bytes;
}

absl::Status CheckReduce(const ReduceSpec& spec, std::span<const uint64_t> inputs,
                         std::span<const uint64_t> outputs, uint64_t bytes) {
  const std::string_view op = OpName(spec.op);
  const std::string what =
      absl::StrCat("reduction (", NameOf(spec.dtype), ", ", absl::string_view(op.data(), op.size()),
                   ", ", inputs.size(), " inputs)");
  if (!OpDefined(spec.dtype, spec.op) || spec.op == Op::kCopy) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is not defined"));
  }
  if (spec.divisor == 0 || (spec.op != Op::kAverage && spec.divisor != 1)) {
    return absl::InvalidArgumentError(absl::StrCat(what, " cannot be divided by ", spec.divisor));
  }
  if (inputs.empty() || inputs.size() > kInputsMax) {
    return absl::InvalidArgumentError(absl::StrCat(what, " needs 1 to ", kInputsMax, " inputs"));
  }
  if (outputs.empty() || outputs.size() > kOutputsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", outputs.size(), " outputs instead of 1 to ", kOutputsMax));
  }
  const uint64_t size = DTypeSize(spec.dtype);
  for (const uint64_t input : inputs) {
    TALWEG_RETURN_IF_ERROR(CheckBuffer(what, input, bytes, size));
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    TALWEG_RETURN_IF_ERROR(CheckBuffer(what, outputs[o], bytes, size));
    for (size_t other = 0; other < o; ++other) {
      if (!Overlap(outputs[o], outputs[other], bytes)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": outputs ", other, " and ", o, " overlap"));
    }
    size_t same = 0;  // How many inputs are this output.
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!Overlap(inputs[i], outputs[o], bytes)) continue;
      if (inputs[i] == outputs[o] && ++same == 1) continue;
      return absl::InvalidArgumentError(absl::StrCat(what, ": input ", i, " overlaps output ", o,
                                                     "; an output may be one input, whole"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ReducePlan> PlanReduce(const ReduceSpec& spec, std::span<const uint64_t> inputs,
                                      std::span<const uint64_t> outputs, uint64_t element_count) {
  const uint64_t size = DTypeSize(spec.dtype);
  if (size != 0 && element_count > UINT64_MAX / size) {
    return absl::InvalidArgumentError(absl::StrCat("a reduction of ", element_count, " elements"));
  }
  const uint64_t bytes = element_count * size;
  if (absl::Status status = CheckReduce(spec, inputs, outputs, bytes); !status.ok()) return status;
  ReducePlan plan = {.bytes = bytes};
  const Scaling scaling = ScalingOf(spec);
  plan.combine = scaling.combine;
  plan.dtype = KernelDType(spec.dtype, scaling.combine);
  plan.is_copy = inputs.size() == 1 && spec.divisor == 1;
  ReduceArguments& arguments = plan.arguments;
  std::copy(inputs.begin(), inputs.end(), arguments.inputs);
  arguments.input_count = static_cast<uint32_t>(inputs.size());
  std::copy(outputs.begin(), outputs.end(), arguments.outputs);
  arguments.output_count = static_cast<uint32_t>(outputs.size());
  arguments.element_count = element_count;
  arguments.scale = scaling.scale;
  // Uses vectors if they are aligned in all buffers at once; else goes element by element.
  const uint64_t askew = outputs[0] % kVectorBytes;
  const auto lies_alike = [askew](uint64_t at) { return at % kVectorBytes == askew; };
  const bool alike = std::all_of(inputs.begin(), inputs.end(), lies_alike) &&
                     std::all_of(outputs.begin(), outputs.end(), lies_alike);
  const uint64_t head_bytes = (kVectorBytes - askew) % kVectorBytes;
  if (alike && head_bytes < bytes) {
    arguments.head = head_bytes / size;
    arguments.vectors = (bytes - head_bytes) / kVectorBytes;
  }
  if (arguments.vectors == 0) arguments.head = element_count;
  return plan;
}

std::string KernelName(DType dtype, Combine combine) {
  return absl::StrCat("talweg_reduce_", NameOf(dtype), "_", CombineName(combine));
}

}  // namespace talweg::gpu::kernels
