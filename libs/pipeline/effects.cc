// SPDX-License-Identifier: Apache-2.0
#include "libs/pipeline/effects.h"

namespace talweg::pipeline {

const char* StatusName(Status status) {
  switch (status) {
    case Status::kOk: return "ok";
    case Status::kInvalid: return "invalid";
    case Status::kMismatch: return "mismatch";
    case Status::kOverBudget: return "over budget";
    case Status::kAborted: return "aborted";
    case Status::kJobFailed: return "job failed";
  }
  return "unknown";
}

}  // namespace talweg::pipeline
