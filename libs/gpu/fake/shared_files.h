// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_GPU_FAKE_SHARED_FILES_H_
#define TALWEG_LIBS_GPU_FAKE_SHARED_FILES_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

// Files of a directory, which make up the fake GPUs that several processes share. It uses the
// standard library only, because the stub of the driver is a shared library and Debian's Abseil is
// not made for these.
namespace talweg::gpu::fake {

inline constexpr size_t kHeaderBytes = 4096;
inline constexpr char kMemoryKind[] = "mem";
inline constexpr char kEventKind[] = "ev";
using HandleBytes = std::array<std::byte, 64>;

struct SharedMachineOptions {
  std::string directory;  // Exists and can be mapped; its owner removes it.
  // The GPUs that this process sees, in this order, as by CUDA_VISIBLE_DEVICES.
  std::vector<size_t> gpus = {0};
  // Events that this process records are never done, as if the work before them never ended.
  bool stalls = false;
};

// Reads "DIRECTORY:COUNT", or "DIRECTORY:COUNT/3,1" for the visible ones, as a test gives it to a
// program. None: the text is something else, or not of 1 to 64 GPUs.
std::optional<SharedMachineOptions> ReadSharedMachine(const std::string& text);

std::array<uint8_t, 16> SharedUuid(size_t gpu);

// A file of the machine, mapped. Its maker holds a lock on it for as long as the maker lives.
class SharedFile {
 public:
  // `near`: mapped there if that is free. Null, with errno: not possible.
  static std::shared_ptr<SharedFile> Make(const std::string& directory, const std::string& kind,
                                          size_t bytes, void* near = nullptr);
  // Null: this is no handle of that kind, or its maker is gone.
  static std::shared_ptr<SharedFile> Open(const std::string& directory, const std::string& kind,
                                          const HandleBytes& handle);
  SharedFile() = default;
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  ~SharedFile();

  HandleBytes handle() const;
  const std::string& name() const { return name_; }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  bool Map(size_t bytes, void* near);

  std::string name_;
  std::string path_;
  bool made_ = false;
  int fd_ = -1;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// The first bytes of a memory's file: on which GPU, and how long. The memory itself begins at
// kHeaderBytes.
struct MemoryHeader {
  uint64_t gpu;
  uint64_t bytes;
};
// The first bytes of an event's file: how often it was recorded, and how many of these are done.
struct EventState {
  std::atomic<uint64_t> recorded;
  std::atomic<uint64_t> done;

  bool IsDone() const { return done.load() >= recorded.load(); }
};
inline EventState& StateOf(const SharedFile& event) {
  return *reinterpret_cast<EventState*>(event.data());
}

}  // namespace talweg::gpu::fake

#endif  // TALWEG_LIBS_GPU_FAKE_SHARED_FILES_H_
