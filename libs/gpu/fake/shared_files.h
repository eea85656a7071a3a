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

// Fake GPUs that several processes share consist of these files in a directory. This uses only the
// standard library: the driver's stub is a shared library, and Debian's Abseil cannot be linked
// into one.
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

// Parses "DIRECTORY:COUNT", or "DIRECTORY:COUNT/3,1" with the visible GPUs, which a test gives to a
// program. Returns nullopt if the text has another form, or does not name 1 to 64 GPUs.
std::optional<SharedMachineOptions> ReadSharedMachine(const std::string& text);

std::array<uint8_t, 16> SharedUuid(size_t gpu);

// A mapped file of the machine. Its maker holds a lock on it as long as the maker lives.
class SharedFile {
 public:
  // `near`: the wanted address, used if it is free. Returns null, with errno, on failure.
  static std::shared_ptr<SharedFile> Make(const std::string& directory, const std::string& kind,
                                          size_t bytes, void* near = nullptr);
  // Returns null if this is no handle of that kind, or if its maker is gone.
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

// The first bytes of a memory's file: its GPU and its length. The memory itself begins at
// kHeaderBytes.
struct MemoryHeader {
  uint64_t gpu;
  uint64_t bytes;
};
// The first bytes of an event's file: how often it was recorded, and how many of these records are
// done.
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
