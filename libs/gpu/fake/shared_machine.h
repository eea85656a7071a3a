// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_SHARED_MACHINE_H_
#define TALWEG_LIBS_GPU_FAKE_SHARED_MACHINE_H_

#include <absl/status/statusor.h>

#include <cstddef>
#include <memory>
#include <string>

#include "libs/gpu/device.h"

// Fake GPUs that several processes share: a test's ranks and the agent that serves them. Memory and
// events are files of a directory, which is the machine; handles are their names. A file
// lostGPU.PID there takes that GPU's context from that process, until it opens it again. Work is
// done when it is posted. Nothing of time, order and races is found here: that is FakeMachine's.
namespace talweg::gpu::fake {

struct SharedMachineOptions {
  std::string directory;  // Is there, on a file system that can be mapped; its owner removes it.
  size_t gpu_count = 1;
  // Events that this process records are never done, as if what lies before them never ended.
  bool stalls = false;
};

// A process that sees all its GPUs: as with CUDA, memory that a process has mapped stays when its
// owner dies, and can then no longer be opened.
absl::StatusOr<std::unique_ptr<Platform>> NewSharedPlatform(const SharedMachineOptions& options);

// "DIRECTORY:COUNT", as a test gives it to a program.
absl::StatusOr<SharedMachineOptions> ParseSharedMachine(const std::string& text);

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_SHARED_MACHINE_H_
