// SPDX-License-Identifier: Apache-2.0
#include "libs/gpu/fake/shared_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "libs/base/check.h"

namespace talweg::gpu::fake {

std::optional<SharedMachineOptions> ReadSharedMachine(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return std::nullopt;
  const char* at = text.data() + colon + 1;
  const char* const end = text.data() + text.size();
  const auto read = [&at, end](size_t* number) {
    const auto [past, error] = std::from_chars(at, end, *number);
    at = past;
    return error == std::errc();
  };
  size_t count = 0;
  if (!read(&count) || count == 0 || count > 64) return std::nullopt;
  SharedMachineOptions options{.directory = text.substr(0, colon)};
  options.gpus.clear();
  for (size_t gpu = 0; at == end && gpu < count; ++gpu) options.gpus.push_back(gpu);
  for (char before = '/'; at != end; before = ',') {
    size_t gpu = 0;
    if (*at++ != before || !read(&gpu) || gpu >= count) return std::nullopt;
    options.gpus.push_back(gpu);
  }
  return options;
}

std::array<uint8_t, 16> SharedUuid(size_t gpu) {
  std::array<uint8_t, 16> uuid;
  uuid.fill(0xfa);
  uuid.back() = static_cast<uint8_t>(gpu);
  return uuid;
}

std::shared_ptr<SharedFile> SharedFile::Make(const std::string& directory, const std::string& kind,
                                             size_t bytes, void* near) {
  uint64_t number = 0;
  TALWEG_CHECK(getrandom(&number, sizeof number, 0) == sizeof number);
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(number));
  auto file = std::make_shared<SharedFile>();
  file->name_ = kind + digits;
  file->path_ = directory + "/" + file->name_;
  file->made_ = true;
  file->fd_ = open(file->path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file->fd_ < 0 || ftruncate(file->fd_, static_cast<off_t>(bytes)) != 0 ||
      flock(file->fd_, LOCK_EX | LOCK_NB) != 0 || !file->Map(bytes, near)) {
    return nullptr;
  }
  return file;
}

std::shared_ptr<SharedFile> SharedFile::Open(const std::string& directory, const std::string& kind,
                                             const HandleBytes& handle) {
  const char* const text = reinterpret_cast<const char*>(handle.data());
  auto file = std::make_shared<SharedFile>();
  file->name_.assign(text, strnlen(text, handle.size()));
  const bool is_name =
      file->name_.starts_with(kind) && std::all_of(file->name_.begin(), file->name_.end(),
                                                   [](char c) { return std::isalnum(c) != 0; });
  file->path_ = directory + "/" + file->name_;
  if (is_name) file->fd_ = open(file->path_.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status = {};
  if (file->fd_ < 0 || fstat(file->fd_, &status) != 0 || flock(file->fd_, LOCK_EX | LOCK_NB) == 0 ||
      !file->Map(static_cast<size_t>(status.st_size), nullptr)) {
    return nullptr;
  }
  return file;
}

SharedFile::~SharedFile() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ < 0) return;
  if (made_) unlink(path_.c_str());
  close(fd_);
}

HandleBytes SharedFile::handle() const {
  HandleBytes bytes = {};
  std::memcpy(bytes.data(), name_.data(), name_.size());
  return bytes;
}

bool SharedFile::Map(size_t bytes, void* near) {
  void* const at = mmap(near, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) return false;
  data_ = static_cast<std::byte*>(at);
  bytes_ = bytes;
  return true;
}

}  // namespace talweg::gpu::fake
