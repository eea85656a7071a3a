// SPDX-License-Identifier: Apache-2.0
#include "libs/base/dtype.h"

namespace talweg {

std::string DescribeUndefined(DType dtype, Op op) {
  std::string text = std::string(OpName(op)) + " is not defined for ";
  text += DTypeName(dtype);
  const char* before = ", which has ";
  for (const OpRow& row : kOpRows) {
    if (!OpDefined(dtype, row.op)) continue;
    text += before;
    text += row.name;
    before = ", ";
  }
  return text;
}

}  // namespace talweg
