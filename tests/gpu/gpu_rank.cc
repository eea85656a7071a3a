// SPDX-License-Identifier: Apache-2.0
// A rank whose gradients lie on a fake GPU: gpu_rank SOCKET LOCAL_RANK MACHINE GPU WHAT. MACHINE is
// DIRECTORY:COUNT, as for the agent. WHAT:
//   rounds   does some rounds of three tensors, compares each result, then takes memory back
//   together does as rounds, and declares when all ranks have exported their memory
//   steady   does rounds without end, and prints a line "step N" for each
//   stall    pushes with an event that is never done, and waits
//   host     does as rounds, from host memory
// It prints "done", or "error STATUS: TEXT" and exits with 3.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "clients/c/talweg.h"
#include "libs/gpu/fake/shared_machine.h"

namespace talweg::gpu {
namespace {

// With four bytes for each element, the last slice is one element, which travels in a frame.
constexpr uint64_t kCount = 21 * 32'768 + 1;
constexpr uint64_t kTensorBytes = 3 << 20;
// Three tensors are each at two places by turns.
constexpr uint64_t kBufferBytes = 6 * kTensorBytes;

void Say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void Check(talweg_status status) {
  if (status == TALWEG_OK) return;
  Say(std::string("error ") + talweg_status_name(status) + ": " + talweg_last_error());
  std::_Exit(3);
}

template <class T>
T Ok(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  Say("error fake: " + value.status().ToString());
  std::_Exit(3);
}
void Ok(const absl::Status& status) {
  if (status.ok()) return;
  Say("error fake: " + status.ToString());
  std::_Exit(3);
}

struct Tensor {
  talweg_dtype dtype;
  talweg_op op;
  talweg_tensor id = 0;
  talweg_round round = 0;
  EventId pushed;
  EventId taken;

  size_t element_bytes() const { return talweg_dtype_bytes(dtype); }
  uint64_t bytes() const { return kCount * element_bytes(); }
};

// Returns the contribution of `rank`.
double Value(const Tensor& tensor, uint32_t rank, uint64_t i, uint64_t round) {
  if (tensor.dtype == TALWEG_I32) return static_cast<double>(rank * 1003 + i % 977 + round * 13);
  if (tensor.dtype == TALWEG_U8) return static_cast<double>((rank * 3 + i + round) % 251);
  return static_cast<double>(rank * 4 + i % 16 + round);
}
// Returns the result, in exact numbers.
double Want(const Tensor& tensor, uint32_t size, uint64_t i, uint64_t round) {
  if (tensor.op == TALWEG_BROADCAST) return Value(tensor, size - 1, i, round);
  double sum = 0;
  for (uint32_t rank = 0; rank < size; ++rank) sum += Value(tensor, rank, i, round);
  return tensor.op == TALWEG_AVERAGE ? sum / size : sum;
}
void Put(const Tensor& tensor, std::byte* at, uint64_t i, double value) {
  const auto number = static_cast<int32_t>(value);
  const auto real = static_cast<float>(value);
  const auto small = static_cast<uint8_t>(value);
  if (tensor.dtype == TALWEG_I32) std::memcpy(at + i * 4, &number, 4);
  if (tensor.dtype == TALWEG_F32) std::memcpy(at + i * 4, &real, 4);
  if (tensor.dtype == TALWEG_U8) std::memcpy(at + i, &small, 1);
}

class Rank {
 public:
  Rank(talweg_client* client, std::unique_ptr<Platform> platform, size_t gpu,
       const std::string& what)
      : client_(client), platform_(std::move(platform)), on_host_(what == "host") {
    const GpuInfo info = Ok(platform_->Gpus()).at(gpu);
    device_ = Ok(platform_->Open(info.uuid));
    stream_ = Ok(device_->NewStream(StreamPriority::kNormal));
    memory_ = Ok(device_->Allocate(kBufferBytes));
    host_ = Ok(device_->AllocateHost(kTensorBytes));
    const MemoryHandle handle = Ok(device_->Export(memory_));
    if (!on_host_) {
      uint64_t bytes = 0;
      Check(talweg_gpu_export(client_, info.uuid.bytes.data(), 77,
                              reinterpret_cast<const uint8_t*>(handle.bytes.data()), -1, &buffer_,
                              &bytes));
      if (bytes != memory_.bytes) Say("error bytes");
    }
    if (what == "together") Check(talweg_barrier(client_, "exported", -1));
    Declare("sum", tensors_[0]);
    Declare("average", tensors_[1]);
    Declare("broadcast", tensors_[2]);
  }

  void Push(Tensor& tensor, uint64_t round) {
    for (uint64_t i = 0; i < kCount; ++i) {
      Put(tensor, host_.data(), i, Value(tensor, talweg_rank(client_), i, round));
    }
    if (on_host_) {
      Check(talweg_push_pull(client_, tensor.id, host_.data(), TALWEG_DECLARED_PRIORITY, -1,
                             &tensor.round));
      return;
    }
    const uint64_t offset = OffsetOf(tensor, round);
    Ok(device_->CopyToDevice(stream_, memory_.Part(offset, tensor.bytes()),
                             host_.first(tensor.bytes())));
    PushFrom(tensor, offset);
  }
  void Take(Tensor& tensor, uint64_t round) {
    if (on_host_) {
      Check(talweg_wait(client_, tensor.id, tensor.round, host_.data(), -1));
    } else {
      talweg_status status;
      while ((status = talweg_wait(client_, tensor.id, tensor.round, nullptr, -1)) ==
             TALWEG_EVENTS_LOST) {
        PlaceAgain(tensor);
        PushFrom(tensor, OffsetOf(tensor, round));
      }
      Check(status);
      Ok(device_->Wait(stream_, tensor.taken));
      Ok(device_->CopyToHost(stream_, host_.first(tensor.bytes()),
                             memory_.Part(OffsetOf(tensor, round), tensor.bytes())));
    }
    std::vector<std::byte> want(tensor.bytes());
    for (uint64_t i = 0; i < kCount; ++i) {
      Put(tensor, want.data(), i, Want(tensor, talweg_size(client_), i, round));
    }
    if (std::memcmp(want.data(), host_.data(), want.size()) == 0) return;
    Say("error wrong: tensor " + std::to_string(&tensor - tensors_) + " in round " +
        std::to_string(round));
    std::_Exit(3);
  }
  void Round(uint64_t round) {
    for (Tensor& tensor : tensors_) Push(tensor, round);
    for (Tensor& tensor : tensors_) Take(tensor, round);
  }
  Tensor& tensor(size_t i) { return tensors_[i]; }
  void Leave() {
    if (!on_host_) Check(talweg_gpu_unexport(client_, buffer_, -1));
    Ok(device_->Free(memory_));
    Check(talweg_shutdown(client_, -1));
    talweg_free(client_);
  }

 private:
  void PushFrom(Tensor& tensor, uint64_t offset) {
    for (;;) {
      Ok(device_->Record(tensor.pushed, stream_));
      const talweg_status status = talweg_gpu_push_pull(
          client_, tensor.id, buffer_, offset, TALWEG_DECLARED_PRIORITY, -1, &tensor.round);
      if (status != TALWEG_EVENTS_LOST) return Check(status);
      PlaceAgain(tensor);
    }
  }
  void PlaceAgain(Tensor& tensor) {
    EventHandle pushed;
    EventHandle taken;
    Check(talweg_gpu_place(client_, tensor.id, buffer_,
                           reinterpret_cast<uint8_t*>(pushed.bytes.data()),
                           reinterpret_cast<uint8_t*>(taken.bytes.data()), -1));
    device_->DestroyEvent(tensor.pushed);
    device_->DestroyEvent(tensor.taken);
    tensor.pushed = Ok(device_->ImportEvent(pushed));
    tensor.taken = Ok(device_->ImportEvent(taken));
  }
  uint64_t OffsetOf(const Tensor& tensor, uint64_t round) const {
    return (static_cast<uint64_t>(&tensor - tensors_) * 2 + (round & 1)) * kTensorBytes;
  }
  void Declare(const char* name, Tensor& tensor) {
    const uint32_t root = tensor.op == TALWEG_BROADCAST ? talweg_size(client_) - 1 : 0;
    if (on_host_) {
      Check(
          talweg_declare(client_, name, tensor.dtype, tensor.op, root, kCount, 0, -1, &tensor.id));
      return;
    }
    EventHandle pushed;
    EventHandle taken;
    Check(talweg_gpu_declare(client_, name, tensor.dtype, tensor.op, root, kCount, 0, buffer_,
                             reinterpret_cast<uint8_t*>(pushed.bytes.data()),
                             reinterpret_cast<uint8_t*>(taken.bytes.data()), -1, &tensor.id));
    tensor.pushed = Ok(device_->ImportEvent(pushed));
    tensor.taken = Ok(device_->ImportEvent(taken));
  }

  talweg_client* const client_;
  const std::unique_ptr<Platform> platform_;
  const bool on_host_;
  std::unique_ptr<Device> device_;
  StreamId stream_;
  DeviceSpan memory_;
  std::span<std::byte> host_;
  talweg_gpu_buffer buffer_ = 0;
  Tensor tensors_[3] = {
      {TALWEG_I32, TALWEG_SUM}, {TALWEG_F32, TALWEG_AVERAGE}, {TALWEG_U8, TALWEG_BROADCAST}};
};

int Main(char** argv) {
  talweg_options options;
  talweg_options_init(&options);
  options.agent_socket = argv[1];
  options.local_rank = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  const std::string what = argv[5];
  fake::SharedMachineOptions machine = Ok(fake::ParseSharedMachine(argv[3]));
  machine.stalls = what == "stall";
  talweg_client* client = nullptr;
  Check(talweg_connect(&options, &client));
  Rank rank(client, Ok(fake::NewSharedPlatform(machine)), std::strtoul(argv[4], nullptr, 10), what);
  if (what == "stall") {
    rank.Push(rank.tensor(0), 1);
    Say("pushed");
    Check(talweg_wait(client, rank.tensor(0).id, 1, nullptr, -1));
  }
  const bool is_steady = what == "steady";
  for (uint64_t round = 1; is_steady || round <= 5; ++round) {
    rank.Round(round);
    Say("step " + std::to_string(round));
  }
  rank.Leave();
  Say("done");
  return 0;
}

}  // namespace
}  // namespace talweg::gpu

int main(int argc, char** argv) {
  if (argc == 6) return talweg::gpu::Main(argv);
  std::fprintf(stderr,
               "usage: gpu_rank SOCKET LOCAL_RANK DIRECTORY:COUNT GPU "
               "rounds|together|steady|stall|host\n");
  return 100;
}
