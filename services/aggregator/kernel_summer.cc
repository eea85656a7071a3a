// SPDX-License-Identifier: Apache-2.0
#include "libs/reduce/reduce.h"
#include "services/aggregator/summer.h"

namespace talweg::aggregator {
namespace {

class Kernels final : public Summer {
 public:
  void Sum(const SliceSum& sum) const override {
    reduce::Reduce(reduce::LastHop(sum.dtype, sum.op, sum.rank_counts, sum.rank_count_total),
                   sum.inputs, sum.output, sum.length_bytes / DTypeSize(sum.dtype));
  }
};

}  // namespace

const Summer& KernelSummer() {
  static const Kernels kernels;
  return kernels;
}

}  // namespace talweg::aggregator
