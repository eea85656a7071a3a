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

// What fake GPUs that several processes share are made of: files of a directory. The standard
// library only, since the stub of the driver is a shared library, which Debian's Abseil is not for.
namespace talweg::gpu::fake {

inline constexpr size_t kHeaderBytes = 4096;
inline constexpr char kMemoryKind[] = "mem";
inline constexpr char kEventKind[] = "ev";
using HandleBytes = std::array<std::byte, 64>;

struct SharedMachineOptions {
  std::string directory;  // Is there, on a file system that can be mapped; its owner removes it.
  // Its GPUs as this process sees them, in this order: as by CUDA_VISIBLE_DEVICES.
  std::vector<size_t> gpus = {0};
  // Events that this process records are never done, as if what lies before them never ended.
  bool stalls = false;
};

// "DIRECTORY:COUNT", or "DIRECTORY:COUNT/3,1" for those that are visible, as a test gives it to a
// program. None: it is not, or not of 1 to 64 GPUs.
std::optional<SharedMachineOptions> ReadSharedMachine(const std::string& text);

std::array<uint8_t, 16> SharedUuid(size_t gpu);

// A file of the machine, mapped. Whoever made it holds a lock on it for as long as it lives.
class SharedFile {
 public:
  // `near`: mapped there if that is free. Null, and errno: not to be had.
  static std::shared_ptr<SharedFile> Make(const std::string& directory, const std::string& kind,
                                          size_t bytes, void* near = nullptr);
  // Null: no handle of that kind, or its maker is gone.
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

// The first bytes of a memory's file: on which GPU, and how long. Behind kHeaderBytes is the
// memory.
struct MemoryHeader {
  uint64_t gpu;
  uint64_t bytes;
};
// The first bytes of an event's file: how often it was recorded, and up to which of these is done.
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
