// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/none/none_platform.h"

#include <catch2/catch.hpp>

namespace talweg::gpu {
namespace {

TEST_CASE("none: every call says why there are no GPUs", "[gpu]") {
  const absl::Status why = absl::UnimplementedError("no driver; install one");
  const auto platform = NewNonePlatform(why);
  CHECK(platform->Gpus().status() == why);
  CHECK(platform->Open(GpuUuid{}).status() == why);
  CHECK(platform->NewCommunicator({}).status() == why);
}

}  // namespace
}  // namespace talweg::gpu
