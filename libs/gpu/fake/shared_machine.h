// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_SHARED_MACHINE_H_
#define TALWEG_LIBS_GPU_FAKE_SHARED_MACHINE_H_

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "libs/gpu/device.h"
#include "libs/gpu/fake/shared_files.h"

// Fake GPUs that several processes share: a test's ranks and the agent that serves them. Memory and
// events are files of a directory, which is the machine. Handles are the files' names. A file
// lostGPU.PID there takes that GPU's context from that process, until the process opens it again.
// Work is done when it is posted. So it finds no errors of time, order and races; FakeMachine does.
namespace talweg::gpu::fake {

// Makes a process that sees all its GPUs. As with CUDA, memory that a process has mapped stays when
// its owner dies, but can no longer be opened.
absl::StatusOr<std::unique_ptr<Platform>> NewSharedPlatform(const SharedMachineOptions& options);

// Like ReadSharedMachine, but returns an error.
absl::StatusOr<SharedMachineOptions> ParseSharedMachine(const std::string& text);

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_SHARED_MACHINE_H_
