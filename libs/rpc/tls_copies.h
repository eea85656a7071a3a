// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_TLS_COPIES_H_
#define TALWEG_LIBS_RPC_TLS_COPIES_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "libs/base/descriptor.h"
#include "libs/rpc/tls_files.h"
#include "libs/rpc/tls_peers.h"

namespace talweg::rpc {

// What gRPC reads in place of a directory's certificates: copies in memory that were found good.
//
// gRPC takes whatever it finds when it looks. A certificate that somebody writes in place is empty
// for a moment, and gRPC ends the process then; with one that is broken it serves nobody. So the
// copies change only when the files have, and are good as a whole. Else they stay as they are.
//
// A thread of its own looks each second. It tells `peers` what changes, and has them end
// connections whose certificates are over.
class TlsCopies {
 public:
  // Is told once for each change why it is not used, and why connections end; on the thread of the
  // copies.
  using OnWarning = std::function<void(const std::string& text)>;

  // `files` was read from `directory`. `peers` judges by them.
  static absl::StatusOr<std::unique_ptr<TlsCopies>> Make(const std::string& directory,
                                                         const TlsFiles& files,
                                                         std::shared_ptr<TlsPeers> peers,
                                                         OnWarning on_warning);
  // The copies stay until the process ends: gRPC reads them for as long as one of its channels or
  // servers has them, and does not say when that is over.
  ~TlsCopies();
  TlsCopies(const TlsCopies&) = delete;
  TlsCopies& operator=(const TlsCopies&) = delete;

  // Paths. The last two are "" where the process has no certificate.
  const std::string& authority() const { return authority_.path; }
  const std::string& certificate() const { return certificate_.path; }
  const std::string& key() const { return key_.path; }

 private:
  struct Copy {
    Descriptor memory;
    std::string path;

    // From now on the path has another text; whoever has it open keeps the one before.
    absl::Status Set(const std::string& text);
  };

  TlsCopies(std::string directory, TlsTexts texts, std::shared_ptr<TlsPeers> peers,
            OnWarning on_warning);
  absl::Status SetAll(const TlsTexts& texts);
  void Watch();
  void Look();
  void Refuse(const std::string& why);
  // Once for each state of the files.
  void WarnOnce(const std::string& text);
  void Warn(const std::string& text);

  const std::string directory_;
  const std::shared_ptr<TlsPeers> peers_;
  const OnWarning on_warning_;
  Copy authority_;
  Copy certificate_;
  Copy key_;

  // The thread's.
  TlsTexts texts_;
  std::string stamp_;  // What the files were like when they were last looked at.
  bool is_settled_ = false;
  std::string warned_;  // The stamp of those that were warned of.

  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_TLS_COPIES_H_
