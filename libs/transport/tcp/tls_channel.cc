// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/status/status.h"
#include "libs/transport/tcp/channel.h"

namespace talweg::transport {
namespace {

// What a TLS record holds at most.
constexpr size_t kRecordBytes = 16 * 1024;
// What one call of SSL_write is given.
constexpr size_t kWriteBytes = 64 * 1024;
// Records are gathered up to this much for one call of the kernel.
constexpr size_t kGatheredBytes = 256 * 1024;
constexpr size_t kReadBufferBytes = 128 * 1024;
// AES-GCM under one key is safe for 2^24.5 full records (RFC 8446, 5.5).
constexpr uint64_t kRecordsMax = uint64_t{1} << 22;
constexpr std::string_view kPskIdentity = "talweg";
// TLS_AES_128_GCM_SHA256, whose hash is the one that the key is for.
constexpr unsigned char kPskCipher[] = {0x13, 0x01};

struct SslFreer {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

// While it lives, a write to a socket whose peer has gone is an error and no signal: OpenSSL's own
// writes raise SIGPIPE.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

// What OpenSSL has against it. Empties its queue.
std::string TakeOpensslError() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? "no reason given" : reason;
}

// A session that stands for the pre-shared key. Null without memory.
SSL_SESSION* NewPskSession(SSL* ssl) {
  const auto* const key = static_cast<const DataKey*>(SSL_get_app_data(ssl));
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kPskCipher);
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key->data()),
                                  key->size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

int UsePsk(SSL* ssl, const EVP_MD* hash, const unsigned char** identity, size_t* identity_bytes,
           SSL_SESSION** session) {
  *session = nullptr;
  // After a HelloRetryRequest the hash is fixed. Another than the key's cannot use it.
  if (hash != nullptr && !EVP_MD_is_a(hash, "SHA256")) return 1;
  *session = NewPskSession(ssl);
  *identity = reinterpret_cast<const unsigned char*>(kPskIdentity.data());
  *identity_bytes = kPskIdentity.size();
  return *session != nullptr ? 1 : 0;
}

int FindPsk(SSL* ssl, const unsigned char* identity, size_t identity_bytes, SSL_SESSION** session) {
  *session = nullptr;
  const std::string_view named(reinterpret_cast<const char*>(identity), identity_bytes);
  if (named != kPskIdentity) return 1;  // Without the key the handshake then fails.
  *session = NewPskSession(ssl);
  return *session != nullptr ? 1 : 0;
}

int GatherWrite(BIO* bio, const char* bytes, int size) {
  auto* const gathered = static_cast<std::vector<std::byte>*>(BIO_get_data(bio));
  const auto* const begin = reinterpret_cast<const std::byte*>(bytes);
  gathered->insert(gathered->end(), begin, begin + size);
  return size;
}

long GatherControl(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// A BIO that puts what it is given into a vector.
const BIO_METHOD* GatherMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "gather");
    TALWEG_CHECK(made != nullptr);
    BIO_meth_set_write(made, GatherWrite);
    BIO_meth_set_ctrl(made, GatherControl);
    return made;
  }();
  return method;
}

class TlsChannelImpl final : public TlsChannel {
 public:
  TlsChannelImpl(SSL_CTX* context, int socket, bool connects, const DataKey& key)
      : socket_(socket), key_(key), ssl_(SSL_new(context)) {
    TALWEG_CHECK(ssl_ != nullptr);
    SSL_set_app_data(ssl_.get(), &key_);
    TALWEG_CHECK(SSL_set_fd(ssl_.get(), socket) == 1);
    if (connects) {
      SSL_set_connect_state(ssl_.get());
      // A listener that would prove itself by a certificate fails: no authority is trusted. One
      // that listens asks for none, and has none.
      SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
    } else {
      SSL_set_accept_state(ssl_.get());
    }
  }

  absl::StatusOr<bool> Shake() override;
  void Queue(std::span<const std::byte> unit) override {
    units_.push_back(unit);
    queued_ += unit.size();
  }
  absl::Status Flush() override;
  uint64_t sent() const override { return sent_; }
  uint64_t unsent_bytes() const override { return queued_ - sent_ + gathered_.size() - gone_; }
  absl::StatusOr<bool> Receive(std::span<std::byte> unit) override;
  bool drained() const override { return drained_; }
  void OnReadable(bool /*is_ending*/) override { drained_ = false; }

 private:
  absl::StatusOr<bool> Encrypt();
  std::span<const std::byte> NextWrite();
  absl::StatusOr<bool> SendGathered();
  absl::Status UpdateKey(size_t bytes);

  const int socket_;
  const DataKey key_;
  const std::unique_ptr<SSL, SslFreer> ssl_;
  bool kernel_seals_ = false;

  std::deque<std::span<const std::byte>> units_;
  size_t front_taken_ = 0;  // How much of the first unit TLS has.
  uint64_t queued_ = 0;
  uint64_t sent_ = 0;
  std::vector<std::byte> small_;  // Small units, joined for one record.
  // What SSL_write is to be given, again if the socket was full.
  std::span<const std::byte> writing_;
  uint64_t records_ = 0;
  std::vector<std::byte> gathered_;
  size_t gone_ = 0;  // How much of gathered_ the kernel has.

  size_t received_ = 0;
  bool drained_ = true;
};

absl::StatusOr<bool> TlsChannelImpl::Shake() {
  const NoPipeSignal no_signal;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result != 1) {
    const int error = SSL_get_error(ssl_.get(), result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return false;
    return absl::UnauthenticatedError(
        "did not prove in a TLS handshake that it has this connection's key (" +
        TakeOpensslError() + ")");
  }
  if (SSL_session_reused(ssl_.get()) != 1) {
    return absl::UnauthenticatedError("made a TLS connection without this connection's key");
  }
  drained_ = false;  // Records may have come with the handshake.
  kernel_seals_ = BIO_get_ktls_send(SSL_get_wbio(ssl_.get())) != 0;
  if (!kernel_seals_) {
    BIO* const gather = BIO_new(GatherMethod());
    TALWEG_CHECK(gather != nullptr);
    BIO_set_data(gather, &gathered_);
    BIO_set_init(gather, 1);
    SSL_set0_wbio(ssl_.get(), gather);
  }
  return true;
}

absl::Status TlsChannelImpl::Flush() {
  while (true) {
    TALWEG_ASSIGN_OR_RETURN(const bool may_go_on, Encrypt());
    TALWEG_ASSIGN_OR_RETURN(const bool all_gone, SendGathered());
    if (!may_go_on || !all_gone || units_.empty()) return absl::OkStatus();
  }
}

// Returns whether the socket was not full: it is the kernel's to say only where the kernel seals.
absl::StatusOr<bool> TlsChannelImpl::Encrypt() {
  std::optional<NoPipeSignal> no_signal;
  if (kernel_seals_) no_signal.emplace();
  while (gathered_.size() < kGatheredBytes) {
    if (writing_.empty()) writing_ = NextWrite();
    if (writing_.empty()) return true;
    ERR_clear_error();
    size_t taken = 0;
    const int result = SSL_write_ex(ssl_.get(), writing_.data(), writing_.size(), &taken);
    if (result != 1) {
      const int error = SSL_get_error(ssl_.get(), result);
      if (error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_WANT_READ) return false;
      return absl::UnavailableError("TLS cannot send: " + TakeOpensslError());
    }
    writing_ = writing_.subspan(taken);
    sent_ += taken;
    for (size_t left = taken; left > 0;) {
      const size_t of_front = std::min(left, units_.front().size() - front_taken_);
      front_taken_ += of_front;
      left -= of_front;
      if (front_taken_ < units_.front().size()) break;
      units_.pop_front();
      front_taken_ = 0;
    }
    TALWEG_RETURN_IF_ERROR(UpdateKey(taken));
  }
  return true;
}

// What goes into SSL_write next. A record's worth of small units is joined first, as each call
// makes a record of its own.
std::span<const std::byte> TlsChannelImpl::NextWrite() {
  if (units_.empty()) return {};
  const std::span<const std::byte> front = units_.front().subspan(front_taken_);
  if (front.size() >= kRecordBytes || units_.size() == 1) {
    return front.first(std::min(front.size(), kWriteBytes));
  }
  small_.assign(front.begin(), front.end());
  for (size_t i = 1; i < units_.size() && small_.size() < kRecordBytes; ++i) {
    const auto part = units_[i].first(std::min(units_[i].size(), kRecordBytes - small_.size()));
    small_.insert(small_.end(), part.begin(), part.end());
  }
  return small_;
}

// Returns whether nothing is left.
absl::StatusOr<bool> TlsChannelImpl::SendGathered() {
  while (gone_ < gathered_.size()) {
    const ssize_t taken = send(socket_, gathered_.data() + gone_, gathered_.size() - gone_,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      return status::ErrnoStatus(errno, "send");
    }
    gone_ += static_cast<size_t>(taken);
  }
  gathered_.clear();
  gone_ = 0;
  return true;
}

absl::Status TlsChannelImpl::UpdateKey(size_t bytes) {
  records_ += (bytes + kRecordBytes - 1) / kRecordBytes;
  if (records_ < kRecordsMax) return absl::OkStatus();
  records_ = 0;
  ERR_clear_error();
  if (!kernel_seals_ && SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1) {
    return absl::OkStatus();
  }
  ERR_clear_error();
  return absl::ResourceExhaustedError(
      "the key of this TLS connection has sealed as much as it may; another connection follows");
}

absl::StatusOr<bool> TlsChannelImpl::Receive(std::span<std::byte> unit) {
  size_t turn_bytes = 0;
  while (received_ < unit.size()) {
    if (turn_bytes >= kTurnBytesMax) return false;
    ERR_clear_error();
    size_t got = 0;
    const int result =
        SSL_read_ex(ssl_.get(), unit.data() + received_, unit.size() - received_, &got);
    if (result == 1) {
      received_ += got;
      turn_bytes += got;
      continue;
    }
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE: drained_ = true; return false;
      case SSL_ERROR_ZERO_RETURN:
        return absl::UnavailableError("closed the connection, or its process ended");
      case SSL_ERROR_SYSCALL:
        if (errno != 0) return status::ErrnoStatus(errno, "receive");
        return absl::UnavailableError("closed the connection, or its process ended");
      default:
        return absl::DataLossError("sent what is no record of this TLS connection (" +
                                   TakeOpensslError() +
                                   "): somebody has changed, repeated or left out bytes on their "
                                   "way");
    }
  }
  received_ = 0;
  return true;
}

}  // namespace

TlsContext::TlsContext() : context_(SSL_CTX_new(TLS_method())) {
  TALWEG_CHECK(context_ != nullptr);
  TALWEG_CHECK(SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) == 1);
  TALWEG_CHECK(SSL_CTX_set_max_proto_version(context_, TLS1_3_VERSION) == 1);
  TALWEG_CHECK(SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256") == 1);
  TALWEG_CHECK(SSL_CTX_set1_groups_list(context_, "X25519:P-256") == 1);
  SSL_CTX_set_options(context_, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                    SSL_OP_ENABLE_KTLS | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_num_tickets(context_, 0);
  SSL_CTX_set_session_cache_mode(context_, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_psk_use_session_callback(context_, UsePsk);
  SSL_CTX_set_psk_find_session_callback(context_, FindPsk);
  SSL_CTX_set_read_ahead(context_, 1);
  SSL_CTX_set_default_read_buffer_len(context_, kReadBufferBytes);
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

std::unique_ptr<TlsChannel> TlsContext::NewChannel(int socket, bool connects,
                                                   const DataKey& pre_shared_key) const {
  return std::make_unique<TlsChannelImpl>(context_, socket, connects, pre_shared_key);
}

}  // namespace talweg::transport
