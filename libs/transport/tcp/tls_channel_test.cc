// SPDX-License-Identifier: Apache-2.0
// TLS connections to a peer that is plain OpenSSL, and to one that breaks the rules.
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"
#include "libs/transport/tcp/channel.h"
#include "libs/transport/tcp/tls_records.h"

namespace talweg::transport {
namespace {

bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::vector<std::byte> Pattern(size_t size, uint32_t seed) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<std::byte>(seed >> 24);
  }
  return bytes;
}

struct Sockets {
  Sockets() {
    int made[2];
    TALWEG_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, made) == 0);
    ours = Descriptor(made[0]);
    theirs = Descriptor(made[1]);
  }

  Descriptor ours;
  Descriptor theirs;
};

// What both ends know before they begin.
const DataKey kKey = NewDataKey();
constexpr char kIdentity[] = "talweg";

unsigned int TellKey(SSL*, const char*, char* identity, unsigned int identity_max,
                     unsigned char* key, unsigned int key_max) {
  TALWEG_CHECK(identity_max >= sizeof(kIdentity) && key_max >= kKey.size());
  memcpy(identity, kIdentity, sizeof(kIdentity));
  memcpy(key, kKey.data(), kKey.size());
  return kKey.size();
}

unsigned int FindKey(SSL*, const char* identity, unsigned char* key, unsigned int key_max) {
  if (strcmp(identity, kIdentity) != 0) return 0;
  TALWEG_CHECK(key_max >= kKey.size());
  memcpy(key, kKey.data(), kKey.size());
  return kKey.size();
}

// OpenSSL with a pre-shared key and nothing else, as any program may use it.
class OpensslPeer {
 public:
  OpensslPeer(int socket, bool connects) : context_(SSL_CTX_new(TLS_method())) {
    TALWEG_CHECK(context_ != nullptr);
    TALWEG_CHECK(SSL_CTX_set_min_proto_version(context_, TLS1_3_VERSION) == 1);
    SSL_CTX_set_psk_client_callback(context_, TellKey);
    SSL_CTX_set_psk_server_callback(context_, FindKey);
    SSL_CTX_set_num_tickets(context_, 0);
    SSL_CTX_set_msg_callback(context_, CountUpdates);
    SSL_CTX_set_msg_callback_arg(context_, &updates_);
    SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    ssl_ = SSL_new(context_);
    TALWEG_CHECK(ssl_ != nullptr && SSL_set_fd(ssl_, socket) == 1);
    if (connects) {
      SSL_set_connect_state(ssl_);
    } else {
      SSL_set_accept_state(ssl_);
    }
  }
  ~OpensslPeer() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  OpensslPeer(const OpensslPeer&) = delete;
  OpensslPeer& operator=(const OpensslPeer&) = delete;

  SSL* ssl() { return ssl_; }
  bool Shake() {
    ERR_clear_error();
    return SSL_do_handshake(ssl_) == 1;
  }
  // Sends as much as the socket takes.
  size_t Write(std::span<const std::byte> bytes) {
    size_t taken = 0;
    ERR_clear_error();
    return SSL_write_ex(ssl_, bytes.data(), bytes.size(), &taken) == 1 ? taken : 0;
  }
  void Read(std::vector<std::byte>* into) {
    std::array<std::byte, 20'000> bytes;
    size_t got = 0;
    ERR_clear_error();
    while (SSL_read_ex(ssl_, bytes.data(), bytes.size(), &got) == 1) {
      into->insert(into->end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(got));
    }
  }
  bool failed() { return SSL_get_error(ssl_, -1) == SSL_ERROR_SSL; }
  // Returns how many new keys our side has announced.
  int updates() const { return updates_; }

 private:
  static void CountUpdates(int is_written, int, int type, const void* bytes, size_t size, SSL*,
                           void* count) {
    if (is_written == 0 && type == SSL3_RT_HANDSHAKE && size > 0 &&
        *static_cast<const unsigned char*>(bytes) == SSL3_MT_KEY_UPDATE) {
      ++*static_cast<int*>(count);
    }
  }

  SSL_CTX* const context_;
  SSL* ssl_ = nullptr;
  int updates_ = 0;
};

// Goes on until `done`. Fails after more turns than anything here takes.
bool Until(const std::function<bool()>& done) {
  for (int i = 0; i < 100'000; ++i) {
    if (done()) return true;
  }
  return false;
}

// Drives one channel: it sends, and reads units of the sizes that are due.
class Reader {
 public:
  explicit Reader(Channel* channel) : channel_(channel) {}

  void Expect(size_t bytes) { units_.emplace_back(bytes); }
  // Returns false once the connection is over.
  bool Turn() {
    channel_->OnReadable(false);
    while (status.ok() && whole_ < units_.size()) {
      const auto got = channel_->Receive(units_[whole_]);
      status = got.status();
      if (!got.ok() || !*got) break;
      ++whole_;
    }
    return status.ok();
  }
  bool AllCame() const { return whole_ == units_.size(); }
  std::vector<std::byte> All() const {
    std::vector<std::byte> all;
    for (const auto& unit : units_) all.insert(all.end(), unit.begin(), unit.end());
    return all;
  }

  absl::Status status;

 private:
  Channel* const channel_;
  std::vector<std::vector<std::byte>> units_;
  size_t whole_ = 0;
};

// Our side and OpenSSL's, after their handshake.
struct Ends {
  explicit Ends(bool we_connect = true, const TlsOptions& options = {}, int tickets = 0)
      : context(options), peer(sockets.theirs.get(), !we_connect) {
    SSL_set_num_tickets(peer.ssl(), static_cast<size_t>(tickets));
    const auto shaking = context.NewHandshake(sockets.ours.get(), we_connect, kKey);
    bool we_are_done = false;
    REQUIRE(Until([&] {
      const bool peer_is_done = peer.Shake();
      if (!we_are_done) {
        const auto done = shaking->Shake();
        REQUIRE(done.ok());
        we_are_done = *done;
      }
      return we_are_done && peer_is_done;
    }));
    channel = shaking->TakeChannel();
    reader.emplace(channel.get());
  }

  Sockets sockets;
  TlsContext context;
  OpensslPeer peer;
  std::unique_ptr<Channel> channel;
  std::optional<Reader> reader;
};

// Sends `units` in this order, and checks what OpenSSL gets.
void SendToPeer(Ends& ends, const std::vector<std::vector<std::byte>>& units) {
  std::vector<std::byte> all;
  const uint64_t before = ends.channel->sent();
  for (const auto& unit : units) {
    ends.channel->Queue(unit);
    all.insert(all.end(), unit.begin(), unit.end());
  }
  std::vector<std::byte> got;
  REQUIRE(Until([&] {
    const absl::Status status = ends.channel->Flush();
    INFO(status.message());
    REQUIRE(status.ok());
    ends.peer.Read(&got);
    REQUIRE_FALSE(ends.peer.failed());
    return got.size() >= all.size();
  }));
  CHECK(got == all);
  CHECK(ends.channel->sent() == before + all.size());
  CHECK(ends.channel->unsent_bytes() == 0);
}

// Checks what we get of OpenSSL's bytes, as units of those sizes.
void ReceiveFromPeer(Ends& ends, const std::vector<size_t>& sizes, uint32_t seed) {
  size_t total = 0;
  Reader reader(ends.channel.get());
  for (const size_t size : sizes) {
    reader.Expect(size);
    total += size;
  }
  const std::vector<std::byte> all = Pattern(total, seed);
  size_t sent = 0;
  REQUIRE(Until([&] {
    if (sent < all.size()) sent += ends.peer.Write(std::span(all).subspan(sent));
    INFO(reader.status.message());
    REQUIRE(reader.Turn());
    return reader.AllCame();
  }));
  CHECK(reader.All() == all);
}

TEST_CASE("Tls: OpenSSL reads what we write, and we read what it writes", "[transport]") {
  const bool we_connect = GENERATE(true, false);
  const bool openssl_seals = GENERATE(false, true);
  CAPTURE(we_connect, openssl_seals);
  Ends ends(we_connect, {.openssl_seals = openssl_seals});
  SendToPeer(
      ends, {Pattern(24, 1), Pattern(1, 2), Pattern(128, 3), Pattern(1'000'000, 4), Pattern(24, 5),
             Pattern(16 * 1024, 6), Pattern(16 * 1024 + 1, 7), Pattern(4096, 8), Pattern(4095, 9)});
  SendToPeer(ends, std::vector<std::vector<std::byte>>(1000, Pattern(100, 10)));
  ReceiveFromPeer(ends, {24, 1, 128, 1'000'000, 24, 16 * 1024, 16 * 1024 + 1, 4096}, 11);
  // These records carry zeros after their content.
  REQUIRE(SSL_set_block_padding(ends.peer.ssl(), 4096) == 1);
  ReceiveFromPeer(ends, {24, 100'000, 24, 5000, 1}, 12);
}

TEST_CASE("Tls: OpenSSL changes its key, and may ask us to change ours", "[transport]") {
  const bool we_connect = GENERATE(true, false);
  const bool asks = GENERATE(true, false);
  Ends ends(we_connect);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(SSL_key_update(ends.peer.ssl(),
                           asks ? SSL_KEY_UPDATE_REQUESTED : SSL_KEY_UPDATE_NOT_REQUESTED) == 1);
    ReceiveFromPeer(ends, {24, 100'000}, 1);
    SendToPeer(ends, {Pattern(24, 2), Pattern(50'000, 3)});
  }
  CHECK(ends.peer.updates() == (asks ? 3 : 0));
}

TEST_CASE("Tls: a key that has sealed enough is replaced by another", "[transport]") {
  Ends ends(true, {.records = {.records_of_key_max = 3}});
  SendToPeer(ends, {Pattern(10 * 16 * 1024, 1)});
  CHECK(ends.peer.updates() == 3);
  ReceiveFromPeer(ends, {100}, 2);
  SendToPeer(ends, {Pattern(16 * 1024, 1)});
  CHECK(ends.peer.updates() == 3);
  SendToPeer(ends, {Pattern(2 * 16 * 1024, 1)});
  CHECK(ends.peer.updates() == 4);
}

TEST_CASE("Tls: where OpenSSL seals, the connection ends with its key", "[transport]") {
  Ends ends(true, {.records = {.records_of_key_max = 3}, .openssl_seals = true});
  const std::vector<std::byte> unit = Pattern(4 * 16 * 1024, 1);
  ends.channel->Queue(unit);
  const absl::Status status = ends.channel->Flush();
  CHECK(absl::IsResourceExhausted(status));
}

TEST_CASE("Tls: where OpenSSL seals, a peer may change only its own key", "[transport]") {
  Ends ends(true, {.openssl_seals = true});
  REQUIRE(SSL_key_update(ends.peer.ssl(), SSL_KEY_UPDATE_NOT_REQUESTED) == 1);
  ReceiveFromPeer(ends, {100'000}, 1);
  REQUIRE(SSL_key_update(ends.peer.ssl(), SSL_KEY_UPDATE_REQUESTED) == 1);
  REQUIRE(ends.peer.Write(Pattern(10, 1)) == 10);
  ends.reader->Expect(10);
  CHECK_FALSE(ends.reader->Turn());
  CHECK(absl::IsResourceExhausted(ends.reader->status));
}

TEST_CASE("Tls: OpenSSL ends the connection", "[transport]") {
  Ends ends;
  ends.reader->Expect(10);
  SECTION("It sends a close_notify") {
    SSL_shutdown(ends.peer.ssl());
    CHECK_FALSE(ends.reader->Turn());
    CHECK(Contains(std::string(ends.reader->status.message()), "closed the connection"));
  }
  SECTION("It has got bytes that are no record") {
    const std::vector<std::byte> wrong(100, std::byte{3});
    std::vector<std::byte> record = {std::byte{23}, std::byte{3}, std::byte{3}, std::byte{0},
                                     std::byte{100}};
    record.insert(record.end(), wrong.begin(), wrong.end());
    REQUIRE(send(ends.sockets.ours.get(), record.data(), record.size(), MSG_NOSIGNAL) == 105);
    std::vector<std::byte> got;
    ends.peer.Read(&got);
    CHECK(ends.peer.failed());
    CHECK_FALSE(ends.reader->Turn());
    CHECK(Contains(std::string(ends.reader->status.message()), "TLS alert 20"));
  }
}

TEST_CASE("Tls: tickets are not accepted", "[transport]") {
  Ends ends(true, {}, /*tickets=*/1);
  REQUIRE(ends.peer.Write(Pattern(10, 1)) == 10);
  ends.reader->Expect(10);
  CHECK_FALSE(ends.reader->Turn());
  CHECK(Contains(std::string(ends.reader->status.message()), "not due"));
}

TEST_CASE("Tls: bytes that come along with the end of the handshake are not lost", "[transport]") {
  Sockets sockets;
  const TlsContext context;
  OpensslPeer peer(sockets.theirs.get(), /*connects=*/true);
  const auto shaking = context.NewHandshake(sockets.ours.get(), /*connects=*/false, kKey);
  REQUIRE(Until([&] {
    if (peer.Shake()) return true;
    REQUIRE(shaking->Shake().ok());
    return false;
  }));
  // We have not read the peer's last message yet. 100 bytes come after it.
  const std::vector<std::byte> early = Pattern(100, 1);
  REQUIRE(peer.Write(early) == early.size());
  const auto done = shaking->Shake();
  REQUIRE(done.ok());
  REQUIRE(*done);
  const auto channel = shaking->TakeChannel();
  Reader reader(channel.get());
  reader.Expect(early.size());
  REQUIRE(reader.Turn());
  CHECK(reader.All() == early);
}

TEST_CASE("Tls: a peer with another key gets nothing", "[transport]") {
  const bool we_connect = GENERATE(true, false);
  Sockets sockets;
  const TlsContext context;
  OpensslPeer peer(sockets.theirs.get(), !we_connect);
  DataKey other = kKey;
  other[0] ^= std::byte{1};
  const auto shaking = context.NewHandshake(sockets.ours.get(), we_connect, other);
  const bool over = Until([&] {
    CHECK_FALSE(peer.Shake());
    return !shaking->Shake().ok();
  });
  CHECK(over);
}

// Makes a secret of our own, because there is no handshake.
TrafficSecret SecretOf(std::byte byte) {
  TrafficSecret secret;
  secret.bytes.fill(byte);
  return secret;
}
const TrafficSecret kOurs = SecretOf(std::byte{1});
const TrafficSecret kTheirs = SecretOf(std::byte{2});

// A channel, and an attacker who holds the keys of its peer and sends what he likes.
struct Attacked {
  std::vector<std::byte> Record(TlsContent type, const std::vector<std::byte>& content) {
    const std::span<const std::byte> part(content);
    std::vector<std::byte> record(kTlsRecordBytesMax);
    record.resize(sealer.Seal(type, std::span(&part, 1), record));
    return record;
  }
  std::vector<std::byte> Data(size_t size, uint32_t seed) {
    return Record(TlsContent::kData, Pattern(size, seed));
  }
  void Send(std::span<const std::byte> bytes) {
    REQUIRE(send(sockets.theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
            static_cast<ssize_t>(bytes.size()));
  }
  // Returns the text that ends the connection when a unit of that size is due.
  std::string EndWith(size_t unit) {
    reader.Expect(unit);
    CHECK_FALSE(reader.Turn());
    return std::string(reader.status.message());
  }

  Sockets sockets;
  TlsSealer sealer{kTheirs};
  std::unique_ptr<Channel> channel =
      NewTlsRecordChannel(sockets.ours.get(), kOurs, kTheirs, TlsRecordOptions{});
  Reader reader{channel.get()};
};

TEST_CASE("Tls: a record that is not the next one ends the connection", "[transport]") {
  Attacked attacked;
  // The larger record is decrypted straight to its place.
  const size_t size = GENERATE(size_t{100}, size_t{16 * 1024});
  CAPTURE(size);
  const auto first = attacked.Data(size, 1);
  const auto second = attacked.Data(size, 2);
  SECTION("A record is changed") {
    auto changed = first;
    changed[kTlsHeaderBytes + 50] ^= std::byte{1};
    attacked.Send(changed);
    CHECK(Contains(attacked.EndWith(size), "on their way"));
    const auto all = attacked.reader.All();
    CHECK(std::all_of(all.begin(), all.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
  SECTION("A record is repeated") {
    attacked.Send(first);
    attacked.Send(first);
    attacked.reader.Expect(size);
    CHECK(Contains(attacked.EndWith(size), "on their way"));
    CHECK_FALSE(attacked.reader.AllCame());
  }
  SECTION("Two records are swapped") {
    attacked.Send(second);
    attacked.Send(first);
    CHECK(Contains(attacked.EndWith(size), "on their way"));
  }
  SECTION("A record is cut, and the next one follows") {
    attacked.Send(std::span(first).first(first.size() - 1));
    attacked.Send(second);
    CHECK(Contains(attacked.EndWith(size), "on their way"));
  }
  SECTION("The end of the connection cuts a record") {
    attacked.Send(std::span(first).first(first.size() - 1));
    shutdown(attacked.sockets.theirs.get(), SHUT_WR);
    attacked.channel->OnReadable(true);
    CHECK(Contains(attacked.EndWith(size), "closed the connection"));
  }
  SECTION("A record is of the other direction") {
    TlsSealer ours(kOurs);
    const std::vector<std::byte> content = Pattern(size, 1);
    const std::span<const std::byte> part(content);
    std::vector<std::byte> record(kTlsRecordBytesMax);
    record.resize(ours.Seal(TlsContent::kData, std::span(&part, 1), record));
    attacked.Send(record);
    CHECK(Contains(attacked.EndWith(size), "on their way"));
  }
}

TEST_CASE("Tls: an invalid header ends the connection at once", "[transport]") {
  Attacked attacked;
  const auto header = GENERATE(
      std::array<uint8_t, 5>{23, 3, 3, 0x40, 0x12}, std::array<uint8_t, 5>{23, 3, 3, 0xff, 0xff},
      std::array<uint8_t, 5>{23, 3, 3, 0, 16}, std::array<uint8_t, 5>{21, 3, 3, 0, 2},
      std::array<uint8_t, 5>{20, 3, 3, 0, 1}, std::array<uint8_t, 5>{22, 3, 3, 0, 100});
  attacked.Send(std::as_bytes(std::span(header)));
  CHECK(Contains(attacked.EndWith(100), "on their way"));
}

TEST_CASE("Tls: a message that is not due ends the connection", "[transport]") {
  Attacked attacked;
  const auto bytes = [](std::initializer_list<int> values) {
    std::vector<std::byte> made;
    for (const int value : values) made.push_back(static_cast<std::byte>(value));
    return made;
  };
  const auto ended_by = [&](TlsContent type, const std::vector<std::byte>& content) {
    attacked.Send(attacked.Record(type, content));
    return attacked.EndWith(100);
  };
  const TlsContent handshake = TlsContent::kHandshake;
  SECTION("A KeyUpdate asks for something that does not exist") {
    CHECK(Contains(ended_by(handshake, bytes({24, 0, 0, 1, 2})), "not due"));
  }
  SECTION("A KeyUpdate has more bytes after it") {
    CHECK(Contains(ended_by(handshake, bytes({24, 0, 0, 1, 0, 24, 0, 0, 1, 0})), "not due"));
  }
  SECTION("A KeyUpdate is cut in half") {
    CHECK(Contains(ended_by(handshake, bytes({24, 0, 0})), "not due"));
  }
  SECTION("A message is empty") { CHECK(Contains(ended_by(handshake, {}), "not due")); }
  SECTION("It is a Finished") {
    CHECK(Contains(ended_by(handshake, bytes({20, 0, 0, 1, 0})), "not due"));
  }
  SECTION("A message is long") {
    CHECK(Contains(ended_by(handshake, Pattern(16 * 1024, 1)), "not due"));
  }
  SECTION("An alert has another size") {
    CHECK(Contains(ended_by(TlsContent::kAlert, bytes({1, 0, 0})), "not due"));
  }
  SECTION("A record has no type") {
    CHECK(Contains(ended_by(static_cast<TlsContent>(0), bytes({0, 0, 0})), "not due"));
  }
  SECTION("A record has an unknown type") {
    CHECK(Contains(ended_by(static_cast<TlsContent>(24), bytes({1})), "not due"));
  }
}

TEST_CASE("Tls: a series of records without data is limited", "[transport]") {
  Attacked attacked;
  const bool updates = GENERATE(true, false);
  const auto send_some = [&](int count) {
    for (int i = 0; i < count; ++i) {
      if (updates) {
        attacked.Send(attacked.Record(
            TlsContent::kHandshake,
            {std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1}, std::byte{1}}));
        attacked.sealer.key().Update();
      } else {
        attacked.Send(attacked.Data(0, 1));
      }
    }
  };
  for (int i = 0; i < 3; ++i) {
    send_some(32);
    attacked.Send(attacked.Data(10, 1));
    attacked.reader.Expect(10);
    REQUIRE(attacked.reader.Turn());
    REQUIRE(attacked.reader.AllCame());
  }
  send_some(33);
  CHECK(Contains(attacked.EndWith(10), "without data"));
}

TEST_CASE("Tls: records may come in pieces of any size", "[transport]") {
  const size_t step = GENERATE(1, 2, 4, 5, 6, 1000, 16 * 1024 + 1);
  CAPTURE(step);
  Attacked attacked;
  std::vector<std::byte> all;
  std::vector<std::byte> sent;
  for (const size_t size : {24, 16 * 1024, 1, 5000, 300, 16 * 1024}) {
    const std::vector<std::byte> content = Pattern(size, static_cast<uint32_t>(size));
    all.insert(all.end(), content.begin(), content.end());
    const auto record = attacked.Record(TlsContent::kData, content);
    sent.insert(sent.end(), record.begin(), record.end());
  }
  // Some units are parts of records, others have several.
  for (const size_t size : {24, 16 * 1024 - 100, 101, 5300, 1, 16 * 1024 - 1}) {
    attacked.reader.Expect(size);
  }
  for (size_t at = 0; at < sent.size(); at += step) {
    attacked.Send(std::span(sent).subspan(at, std::min(step, sent.size() - at)));
    REQUIRE(attacked.reader.Turn());
  }
  CHECK(attacked.reader.AllCame());
  CHECK(attacked.reader.All() == all);
}

TEST_CASE("Tls: a full socket takes the rest later", "[transport]") {
  Sockets sockets;
  const TlsRecordOptions often = {.records_of_key_max = 5};
  const auto sending = NewTlsRecordChannel(sockets.ours.get(), kOurs, kTheirs, often);
  const auto receiving = NewTlsRecordChannel(sockets.theirs.get(), kTheirs, kOurs, often);
  const std::vector<std::byte> unit = Pattern(4'000'000, 1);
  sending->Queue(unit);
  REQUIRE(sending->Flush().ok());
  CHECK(sending->sent() < unit.size());
  CHECK(sending->unsent_bytes() > 1'000'000);
  Reader reader(receiving.get());
  reader.Expect(unit.size());
  REQUIRE(Until([&] {
    REQUIRE(reader.Turn());
    REQUIRE(sending->Flush().ok());
    return reader.AllCame();
  }));
  CHECK(reader.All() == unit);
  CHECK(sending->unsent_bytes() == 0);
}

}  // namespace
}  // namespace talweg::transport
