// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/tls_copies.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libs/status/status.h"

namespace talweg::rpc {
namespace {

// gRPC compares times in whole seconds to notice a change while it reads, so the copies must not
// change more often.
constexpr auto kPeriod = std::chrono::milliseconds(1100);

// Returns a text that differs if one of the files does.
std::string StampOf(const std::string& directory) {
  std::string stamp;
  for (const char* name : {"/ca.crt", "/ca.crl", "/tls.crt", "/tls.key"}) {
    struct stat found {};
    if (stat((directory + name).c_str(), &found) != 0) found = {};
    absl::StrAppend(&stamp, found.st_ino, " ", found.st_size, " ", found.st_mode, " ",
                    found.st_mtim.tv_sec, ".", found.st_mtim.tv_nsec, "\n");
  }
  return stamp;
}

}  // namespace

absl::Status TlsCopies::Copy::Set(const std::string& text) {
  Descriptor next(memfd_create("talweg-tls", MFD_CLOEXEC));
  if (!next.valid()) return status::ErrnoStatus(errno, "memfd_create of a certificate");
  for (size_t done = 0; done < text.size();) {
    const ssize_t count = write(next.get(), text.data() + done, text.size() - done);
    if (count < 0) return status::ErrnoStatus(errno, "write of a certificate");
    done += static_cast<size_t>(count);
  }
  if (!memory.valid()) {
    memory = std::move(next);
    path = absl::StrCat("/proc/self/fd/", memory.get());
    return absl::OkStatus();
  }
  if (dup3(next.get(), memory.get(), O_CLOEXEC) < 0) {
    return status::ErrnoStatus(errno, "dup3 of a certificate");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<TlsCopies>> TlsCopies::Make(const std::string& directory,
                                                           const TlsFiles& files,
                                                           std::shared_ptr<TlsPeers> peers,
                                                           OnWarning on_warning) {
  auto copies = std::unique_ptr<TlsCopies>(
      new TlsCopies(directory, files.texts, std::move(peers), std::move(on_warning)));
  TALWEG_RETURN_IF_ERROR(copies->SetAll(files.texts));
  copies->thread_ = std::thread([raw = copies.get()] { raw->Watch(); });
  return copies;
}

TlsCopies::TlsCopies(std::string directory, TlsTexts texts, std::shared_ptr<TlsPeers> peers,
                     OnWarning on_warning)
    : directory_(std::move(directory)),
      peers_(std::move(peers)),
      on_warning_(std::move(on_warning)),
      texts_(std::move(texts)) {}

TlsCopies::~TlsCopies() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (Copy* copy : {&authority_, &certificate_, &key_}) (void)copy->memory.Release();
}

absl::Status TlsCopies::SetAll(const TlsTexts& texts) {
  TALWEG_RETURN_IF_ERROR(authority_.Set(texts.authority));
  if (texts.certificate.empty()) return absl::OkStatus();
  TALWEG_RETURN_IF_ERROR(certificate_.Set(texts.certificate));
  return key_.Set(texts.key);
}

void TlsCopies::Watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, kPeriod, [this] { return stopped_; })) {
    lock.unlock();
    Look();
    peers_->EndOld(std::time(nullptr));
    for (const std::string& text : peers_->TakeReasons()) Warn(text);
    lock.lock();
  }
}

void TlsCopies::Look() {
  // A look just after a change may have seen half of the change, so look once more.
  const bool is_as_before = std::exchange(stamp_, StampOf(directory_)) == stamp_;
  if (is_as_before && is_settled_) return;
  is_settled_ = is_as_before;
  const absl::StatusOr<TlsFiles> files = CheckTlsFiles(directory_);
  if (!files.ok()) return Refuse(std::string(files.status().message()));
  TlsTexts texts = files->texts;
  if (texts.revoked.empty() && !texts_.revoked.empty()) {
    WarnOnce(absl::StrCat(directory_,
                          "/ca.crl is not there any more: what it revoked stays revoked until the "
                          "process starts anew"));
    texts.revoked = texts_.revoked;
  }
  if (texts == texts_) return;
  if (texts.certificate.empty() != texts_.certificate.empty()) {
    return Refuse(absl::StrCat(directory_, "/tls.crt is ",
                               texts_.certificate.empty() ? "new: start the process anew to use it"
                                                          : "not there any more"));
  }
  if (const absl::Status set = SetAll(texts); !set.ok()) {
    is_settled_ = false;
    return Refuse(std::string(set.message()));
  }
  peers_->SetTrust(texts, std::time(nullptr));
  texts_ = std::move(texts);
  if (const absl::Status own = CheckNotRevoked(*files); !own.ok()) {
    Warn(absl::StrCat("others end connections with this process: ", own.message()));
  }
}

void TlsCopies::Refuse(const std::string& why) {
  WarnOnce("changed certificates are not used, and those before stay: " + why);
}

void TlsCopies::WarnOnce(const std::string& text) {
  if (is_settled_ && std::exchange(warned_, stamp_) != stamp_) Warn(text);
}

void TlsCopies::Warn(const std::string& text) {
  if (on_warning_) on_warning_(text);
}

}  // namespace talweg::rpc
