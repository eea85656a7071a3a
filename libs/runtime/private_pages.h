// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_PRIVATE_PAGES_H_
#define TALWEG_LIBS_RUNTIME_PRIVATE_PAGES_H_

#include <absl/status/status.h>

#include <cstddef>
#include <functional>
#include <span>

namespace talweg::runtime {

// Anonymous memory of this process, in whole pages, zero until written. It is there after Fill.
class PrivatePages {
 public:
  // `is_rarely_used`: the kernel gives each page when it is first touched.
  explicit PrivatePages(size_t bytes, bool is_rarely_used = false)
      : wanted_(bytes), is_rarely_used_(is_rarely_used) {}
  PrivatePages(const PrivatePages&) = delete;
  PrivatePages& operator=(const PrivatePages&) = delete;
  ~PrivatePages();

  // Maps the memory, in huge pages where the kernel has them, and has the kernel set it aside: a
  // later write takes no page fault, and cannot fail for want of memory. Takes the time that the
  // kernel needs. Ends early if `is_wanted` returns false. RESOURCE_EXHAUSTED if the kernel has no
  // memory. Any thread, once.
  absl::Status Fill(const std::function<bool()>& is_wanted);
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  const size_t wanted_;
  const bool is_rarely_used_;
  std::span<std::byte> bytes_;
};

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_PRIVATE_PAGES_H_
