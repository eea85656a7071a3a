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

// Copies in memory of a directory's certificates, which gRPC reads instead of the files. Only good
// certificates are copied.
//
// gRPC uses whatever the files contain when it looks. A certificate that is overwritten in place is
// empty for a moment, and gRPC then ends the process; with a broken one it serves nobody. So the
// copies change only when the files have changed and are good as a whole.
//
// A thread of its own looks each second. It tells `peers` about changes, and makes them end
// connections whose certificates are expired.
class TlsCopies {
 public:
  // Called, on the thread of the copies, with the reason why a change is not used, once for each
  // change, and why connections end.
  using OnWarning = std::function<void(const std::string& text)>;

  // `files` was read from `directory`. `peers` judges by them.
  static absl::StatusOr<std::unique_ptr<TlsCopies>> Make(const std::string& directory,
                                                         const TlsFiles& files,
                                                         std::shared_ptr<TlsPeers> peers,
                                                         OnWarning on_warning);
  // The copies stay until the process ends: gRPC reads them as long as one of its channels or
  // servers uses them, and does not say when that ends.
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

    // From now on the path has another text. A reader that has it open keeps the text before.
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

  // Owned by the thread.
  TlsTexts texts_;
  std::string stamp_;  // The state of the files at the last look.
  bool is_settled_ = false;
  std::string warned_;  // The stamp of the last warning.

  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_TLS_COPIES_H_
