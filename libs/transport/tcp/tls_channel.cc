// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/status/status.h"
#include "libs/transport/tcp/channel.h"
#include "libs/transport/tcp/tls_records.h"

namespace talweg::transport {
namespace {

// The bytes for one call of SSL_write.
constexpr size_t kWriteBytes = 64 * 1024;
constexpr std::string_view kPskIdentity = "talweg";
// TLS_AES_128_GCM_SHA256, whose hash fits the pre-shared key.
constexpr unsigned char kPskCipher[] = {0x13, 0x01};

struct SslFreer {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslHandle = std::unique_ptr<SSL, SslFreer>;

// While it lives, a write to a socket whose peer is gone only returns an error. OpenSSL's own
// writes would raise SIGPIPE.
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

// Returns OpenSSL's error text, and empties its queue of errors.
std::string TakeOpensslError() {
  const unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? "no reason given" : reason;
}

// The input and output of OpenSSL's callbacks in a handshake.
struct Shaking {
  Shaking(int socket_to_read, const DataKey& pre_shared_key)
      : socket(socket_to_read), key(pre_shared_key) {}

  int socket;
  const DataKey key;
  // The secrets of each side's keys after the handshake.
  std::optional<TrafficSecret> connecting;
  std::optional<TrafficSecret> listening;
};

Shaking* ShakingOf(const SSL* ssl) { return static_cast<Shaking*>(SSL_get_app_data(ssl)); }

// Returns a session that stands for the pre-shared key, or null if there is no memory.
SSL_SESSION* NewPskSession(SSL* ssl) {
  const DataKey* const key = &ShakingOf(ssl)->key;
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
  // After a HelloRetryRequest the hash is fixed. If it is not the key's, the key cannot be used.
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

// OpenSSL gives secrets as lines of a key log: a label, the client's random, the secret.
void TakeSecret(const SSL* ssl, const char* text) {
  Shaking* const shaking = ShakingOf(ssl);
  if (shaking == nullptr) return;
  const std::string_view line(text);
  const auto take = [&](std::string_view label, std::optional<TrafficSecret>* secret) {
    if (!line.starts_with(label)) return;
    const size_t at = line.rfind(' ') + 1;
    size_t bytes = 0;
    TrafficSecret taken;
    if (OPENSSL_hexstr2buf_ex(reinterpret_cast<unsigned char*>(taken.bytes.data()),
                              taken.bytes.size(), &bytes, text + at, '\0') == 1 &&
        bytes == taken.bytes.size()) {
      *secret = taken;
    }
  };
  take("CLIENT_TRAFFIC_SECRET_0 ", &shaking->connecting);
  take("SERVER_TRAFFIC_SECRET_0 ", &shaking->listening);
}

int ReadSocket(BIO* bio, char* to, int size) {
  BIO_clear_retry_flags(bio);
  const int socket = *static_cast<const int*>(BIO_get_data(bio));
  const ssize_t got = recv(socket, to, static_cast<size_t>(size), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    BIO_set_retry_read(bio);
  }
  return static_cast<int>(got);
}

long ControlNothing(BIO*, int, long, void*) { return 0; }

// A BIO that reads a socket. OpenSSL's own would let the kernel open records, which this code does
// itself.
const BIO_METHOD* ReadMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "read");
    TALWEG_CHECK(made != nullptr);
    BIO_meth_set_read(made, ReadSocket);
    BIO_meth_set_ctrl(made, ControlNothing);
    return made;
  }();
  return method;
}

// OpenSSL writes records, and the kernel seals them. This channel opens the records that arrive.
class OpensslSealingChannel final : public Channel {
 public:
  OpensslSealingChannel(SslHandle ssl, std::unique_ptr<Channel> receiving, uint64_t records_max)
      : ssl_(std::move(ssl)), receiving_(std::move(receiving)), records_left_(records_max) {}

  void Queue(std::span<const std::byte> unit) override {
    units_.push_back(unit);
    queued_ += unit.size();
  }
  absl::Status Flush() override;
  uint64_t sent() const override { return sent_; }
  uint64_t unsent_bytes() const override { return queued_ - sent_; }
  absl::StatusOr<bool> Receive(std::span<std::byte> unit) override {
    return receiving_->Receive(unit);
  }
  bool drained() const override { return receiving_->drained(); }
  void OnReadable(bool is_ending) override { receiving_->OnReadable(is_ending); }

 private:
  std::span<const std::byte> NextWrite();

  const SslHandle ssl_;
  const std::unique_ptr<Channel> receiving_;
  uint64_t records_left_;

  std::deque<std::span<const std::byte>> units_;
  size_t front_taken_ = 0;  // How much of the first unit OpenSSL has.
  uint64_t queued_ = 0;
  uint64_t sent_ = 0;
  std::vector<std::byte> small_;  // Small units, joined for one record.
  // The bytes for SSL_write, which must get the same ones again if the socket was full.
  std::span<const std::byte> writing_;
};

absl::Status OpensslSealingChannel::Flush() {
  const NoPipeSignal no_signal;
  while (true) {
    if (writing_.empty()) writing_ = NextWrite();
    if (writing_.empty()) return absl::OkStatus();
    ERR_clear_error();
    size_t taken = 0;
    const int result = SSL_write_ex(ssl_.get(), writing_.data(), writing_.size(), &taken);
    if (result != 1) {
      const int error = SSL_get_error(ssl_.get(), result);
      if (error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_WANT_READ) return absl::OkStatus();
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
    const uint64_t records = (taken + kTlsContentBytesMax - 1) / kTlsContentBytesMax;
    if (records >= records_left_) {
      return absl::ResourceExhaustedError(
          "the key of this TLS connection has sealed as much as it may, and the kernel takes no "
          "other; another connection follows");
    }
    records_left_ -= records;
  }
}

// Returns the bytes for the next SSL_write. Joins small units into one record first, because each
// call makes a record.
std::span<const std::byte> OpensslSealingChannel::NextWrite() {
  if (units_.empty()) return {};
  const std::span<const std::byte> front = units_.front().subspan(front_taken_);
  if (front.size() >= kTlsContentBytesMax || units_.size() == 1) {
    return front.first(std::min(front.size(), kWriteBytes));
  }
  small_.assign(front.begin(), front.end());
  for (size_t i = 1; i < units_.size() && small_.size() < kTlsContentBytesMax; ++i) {
    const auto part =
        units_[i].first(std::min(units_[i].size(), kTlsContentBytesMax - small_.size()));
    small_.insert(small_.end(), part.begin(), part.end());
  }
  return small_;
}

class OpensslHandshake final : public TlsHandshake {
 public:
  OpensslHandshake(SSL_CTX* context, const TlsOptions& options, int socket, bool connects,
                   const DataKey& key)
      : options_(options), connects_(connects), shaking_(socket, key), ssl_(SSL_new(context)) {
    TALWEG_CHECK(ssl_ != nullptr);
    SSL_set_app_data(ssl_.get(), &shaking_);
    TALWEG_CHECK(SSL_set_wfd(ssl_.get(), socket) == 1);
    BIO* const read = BIO_new(ReadMethod());
    TALWEG_CHECK(read != nullptr);
    BIO_set_data(read, &shaking_.socket);
    BIO_set_init(read, 1);
    SSL_set0_rbio(ssl_.get(), read);
    if (connects) {
      SSL_set_connect_state(ssl_.get());
      // A listener that shows a certificate fails, because no authority is trusted. A listener asks
      // for no certificate, and has none.
      SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, nullptr);
    } else {
      SSL_set_accept_state(ssl_.get());
    }
  }

  absl::StatusOr<bool> Shake() override;
  std::unique_ptr<Channel> TakeChannel() override;

 private:
  const TlsOptions options_;
  const bool connects_;
  Shaking shaking_;
  SslHandle ssl_;
};

absl::StatusOr<bool> OpensslHandshake::Shake() {
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
  // Bytes that OpenSSL read after the handshake would be missing from the records that this channel
  // opens.
  if (!shaking_.connecting || !shaking_.listening || SSL_has_pending(ssl_.get()) == 1) {
    return absl::InternalError("made a TLS connection that OpenSSL does not hand over");
  }
  return true;
}

std::unique_ptr<Channel> OpensslHandshake::TakeChannel() {
  const TrafficSecret& ours = connects_ ? *shaking_.connecting : *shaking_.listening;
  const TrafficSecret& theirs = connects_ ? *shaking_.listening : *shaking_.connecting;
  if (options_.openssl_seals || BIO_get_ktls_send(SSL_get_wbio(ssl_.get())) != 0) {
    // The BIO outlives the handshake, and reads no more.
    SSL_set_app_data(ssl_.get(), nullptr);
    SSL_set0_rbio(ssl_.get(), nullptr);
    return std::make_unique<OpensslSealingChannel>(
        std::move(ssl_),
        NewTlsRecordChannel(shaking_.socket, std::nullopt, theirs, options_.records),
        options_.records.records_of_key_max);
  }
  ssl_.reset();
  return NewTlsRecordChannel(shaking_.socket, ours, theirs, options_.records);
}

}  // namespace

TlsContext::TlsContext(const TlsOptions& options)
    : options_(options), context_(SSL_CTX_new(TLS_method())) {
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
  // OpenSSL reads a header, then its record, so what follows the handshake stays in the socket.
  SSL_CTX_set_read_ahead(context_, 0);
  SSL_CTX_set_keylog_callback(context_, TakeSecret);
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

std::unique_ptr<TlsHandshake> TlsContext::NewHandshake(int socket, bool connects,
                                                       const DataKey& pre_shared_key) const {
  return std::make_unique<OpensslHandshake>(context_, options_, socket, connects, pre_shared_key);
}

}  // namespace talweg::transport
