// SPDX-License-Identifier: Apache-2.0
//
// Ranks of one node that sum with the copies of Talweg's copying path, and nothing else: what it
// costs to get gradients from memory that only their rank sees, and results back there.
//
//   copying_ranks RANK RANK_COUNT STORE        STORE: a path on a tmpfs, which ./bench removes
//
// Each rank copies its gradient into memory that all ranks map. When all have done so, two ranks
// sum both contributions, each into its own buffer. More ranks sum a piece each, and then copy all
// pieces. There are two sets of contributions, for rounds in turn, so that no rank overwrites what
// another one still reads. A rank that waits gives its CPU to others.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "benchmarks/baselines/each_cpu.h"
#include "benchmarks/baselines/orders.h"

namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kLineBytes = 64;
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

TALWEG_FOR_EACH_CPU void Sum2(const float* a, const float* b, float* out, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) out[i] = a[i] + b[i];
}

// In pieces that stay in the cache, so that each byte is read from memory once.
void SumAll(const float* const* inputs, int input_count, float* out, uint64_t count) {
  constexpr uint64_t kPiece = 4096;
  for (uint64_t begin = 0; begin < count; begin += kPiece) {
    const uint64_t length = std::min(kPiece, count - begin);
    Sum2(inputs[0] + begin, inputs[1] + begin, out + begin, length);
    for (int i = 2; i < input_count; ++i) {
      Sum2(out + begin, inputs[i] + begin, out + begin, length);
    }
  }
}

size_t WholePages(uint64_t bytes) {
  return (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
}

// The memory that all ranks map: for each rank how many times it has come to a meeting, two
// contributions of each rank, and a result.
class Shared {
 public:
  Shared(int rank, int rank_count, std::string store)
      : rank_(rank), rank_count_(rank_count), store_(std::move(store)) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() {
    if (memory_ != nullptr) munmap(memory_, bytes_);
  }

  // Makes room for other tensors. All ranks call it with the same lengths, in the same order.
  void Prepare(uint64_t bytes) {
    if (memory_ != nullptr) munmap(memory_, bytes_);
    slot_bytes_ = WholePages(bytes);
    bytes_ = kHugePageBytes + slot_bytes_ * (2 * static_cast<size_t>(rank_count_) + 1);
    const std::string path = store_ + "." + std::to_string(++prepared_);
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes_)) != 0) Fail(path);
    memory_ = static_cast<char*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0));
    close(fd);
    if (memory_ == MAP_FAILED) Fail(path);
    madvise(memory_, bytes_, MADV_COLLAPSE);  // Small pages will do where there are no others.
    meetings_ = 0;
  }

  float* contribution(int rank, uint64_t round) const {
    return Slot(static_cast<size_t>(rank) * 2 + round % 2);
  }
  float* result() const { return Slot(2 * static_cast<size_t>(rank_count_)); }

  // Waits until all ranks have called it as often.
  void Meet() {
    Counter(rank_).store(++meetings_, std::memory_order_release);
    for (int rank = 0; rank < rank_count_; ++rank) {
      while (Counter(rank).load(std::memory_order_acquire) < meetings_) sched_yield();
    }
  }

 private:
  [[noreturn]] static void Fail(const std::string& path) {
    std::fprintf(stderr, "bench: cannot map %s: %s\n", path.c_str(), std::strerror(errno));
    std::exit(1);
  }
  float* Slot(size_t slot) const {
    return reinterpret_cast<float*>(memory_ + kHugePageBytes + slot * slot_bytes_);
  }
  std::atomic<uint64_t>& Counter(int rank) const {
    return *reinterpret_cast<std::atomic<uint64_t>*>(memory_ +
                                                     static_cast<size_t>(rank) * kLineBytes);
  }

  const int rank_;
  const int rank_count_;
  const std::string store_;
  char* memory_ = nullptr;
  size_t bytes_ = 0;
  size_t slot_bytes_ = 0;
  uint64_t meetings_ = 0;
  int prepared_ = 0;
};

class Rank {
 public:
  Rank(int rank, int rank_count, const char* store)
      : rank_(rank), rank_count_(rank_count), shared_(rank, rank_count, store) {}

  void Reduce(const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) Reduce(tensor);
  }

 private:
  void Reduce(const Tensor& tensor) {
    const uint64_t bytes = tensor.count * sizeof(float);
    if (tensor.data != tensor_.data || tensor.count != tensor_.count) {
      tensor_ = tensor;
      shared_.Prepare(bytes);
    }
    ++round_;
    std::memcpy(shared_.contribution(rank_, round_), tensor.data, bytes);
    const float* inputs[kRanksMax];
    for (int i = 0; i < rank_count_; ++i) inputs[i] = shared_.contribution(i, round_);
    shared_.Meet();
    if (rank_count_ == 2) {
      SumAll(inputs, 2, tensor.data, tensor.count);
      return;
    }
    const uint64_t piece = (tensor.count + rank_count_ - 1) / rank_count_;
    const uint64_t begin = std::min(tensor.count, piece * rank_);
    for (int i = 0; i < rank_count_; ++i) inputs[i] += begin;
    SumAll(inputs, rank_count_, shared_.result() + begin, std::min(piece, tensor.count - begin));
    shared_.Meet();
    std::memcpy(tensor.data, shared_.result(), bytes);
    shared_.Meet();  // Nobody writes the next result before all have copied this one.
  }

  static constexpr int kRanksMax = 64;
  const int rank_;
  const int rank_count_;
  Shared shared_;
  Tensor tensor_;
  uint64_t round_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int rank = argc == 4 ? std::atoi(argv[1]) : -1;
  const int rank_count = argc == 4 ? std::atoi(argv[2]) : 0;
  if (rank < 0 || rank >= rank_count || rank_count < 2 || rank_count > 64) {
    std::fprintf(stderr, "usage: copying_ranks RANK RANK_COUNT STORE, of 2 to 64 ranks\n");
    return 2;
  }
  Rank ranks(rank, rank_count, argv[3]);
  return ServeOrders(
      rank, [&ranks](const std::vector<Tensor>& tensors) { ranks.Reduce(tensors); }, rank_count);
}
