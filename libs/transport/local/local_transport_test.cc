// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/local/local_transport.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"
#include "libs/runtime/clock.h"
#include "libs/runtime/manual_clock.h"
#include "libs/transport/local/handshake.h"
#include "libs/transport/local/ring.h"
#include "libs/transport/proof/connect_token.h"
#include "libs/transport/proof/data_key.h"
#include "libs/transport/testing/harness.h"
#include "libs/transport/testing/no_descriptors.h"

namespace talweg::transport {
namespace {

class LocalHarness final : public Harness {
 public:
  std::unique_ptr<Transport> NewTransport() override {
    auto transport = NewLocalTransport({}, &clock_, nullptr);
    TALWEG_CHECK(transport.ok());
    return *std::move(transport);
  }
  std::unique_ptr<Transport> NewWatchful(const runtime::Clock* clock,
                                         const Hearts& hearts) override {
    auto transport = NewLocalTransport(
        {.heartbeat_ns = hearts.heartbeat_ns, .silence_ns = hearts.silence_ns}, clock, nullptr);
    TALWEG_CHECK(transport.ok());
    return *std::move(transport);
  }
  std::string NobodysAddress() override {
    return "local:@talweg-nobody-listens-here#" + std::string(64, '0');
  }
  int ConnectRaw(const std::string& address) override {
    const size_t name = address.find(':') + 1;
    absl::StatusOr<Descriptor> socket =
        ConnectUnix(address.substr(name, address.rfind('#') - name));
    return socket.ok() ? socket->Release() : -1;
  }

 private:
  runtime::MonotonicClock clock_;
};

TEST_CASE("Local: a ring has one writer, and cannot be cut under its reader", "[transport]") {
  const auto ring = RingMapping::Create(kRingBytesMin);
  REQUIRE(ring.ok());
  const int fd = ring->memory_descriptor();
  const size_t bytes = kRingDataOffset + kRingBytesMin;
  // Tests what a peer holds, and what it gets when it opens that anew.
  const Descriptor anew(open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR));
  REQUIRE(anew.valid());
  for (const int handed_over : {fd, anew.get()}) {
    CHECK(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, handed_over, 0) == MAP_FAILED);
    CHECK(pwrite(handed_over, "x", 1, 0) == -1);
    CHECK(ftruncate(handed_over, 0) == -1);
    CHECK(ftruncate(handed_over, static_cast<off_t>(2 * bytes)) == -1);
    CHECK((fcntl(handed_over, F_GET_SEALS) & F_SEAL_SEAL) != 0);
  }
  const auto peers_view = RingMapping::Open(fd);
  REQUIRE(peers_view.ok());
  CHECK(mprotect(peers_view->control(), kRingDataOffset, PROT_READ | PROT_WRITE) == -1);
}

constexpr uid_t kNobody = 65534;

// Makes this process one of the user nobody. Only root can, and not in every sandbox.
bool BecomeNobody() {
  return setgroups(0, nullptr) == 0 && setgid(kNobody) == 0 && setuid(kNobody) == 0;
}

bool MayBecomeNobody() {
  const pid_t child = fork();
  TALWEG_CHECK(child >= 0);
  if (child == 0) _exit(BecomeNobody() ? 0 : 1);
  int status = 0;
  TALWEG_CHECK(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// A process of the user nobody that does `work`, and ends with 0 if that returns true. It must not
// be asked for anything where is_there() is false.
class Nobody {
 public:
  template <typename Work>
  explicit Nobody(const Work& work) {
    if (!MayBecomeNobody()) return;
    pid_ = fork();
    TALWEG_CHECK(pid_ >= 0);
    if (pid_ > 0) return;
    _exit(BecomeNobody() && work() ? 0 : 1);
  }
  ~Nobody() {
    if (!is_there()) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Nobody(const Nobody&) = delete;
  Nobody& operator=(const Nobody&) = delete;

  bool is_there() const { return pid_ > 0; }
  // Returns nullopt while it runs; then whether it has done its work.
  std::optional<bool> Result() {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == 0) return std::nullopt;
    pid_ = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_ = -1;
};

TEST_CASE("Local: another user who connects is turned away, and told why", "[transport]") {
  LocalHarness harness;
  const auto server = harness.NewTransport();
  const std::string address = *server->Listen({});
  Nobody stranger([&] {
    const Descriptor socket(harness.ConnectRaw(address));
    pollfd readable{socket.get(), POLLIN, 0};
    HandshakeMessage said;
    return poll(&readable, 1, 60'000) == 1 &&
           recv(socket.get(), &said, sizeof(said), 0) == sizeof(said) && said.refused == 1 &&
           std::string(said.text, sizeof(said.text)).find("runs as user 65534") !=
               std::string::npos;
  });
  if (!stranger.is_there()) {
    WARN("skipped: this process may not start one of another user");
    return;
  }
  RecordingSink events;
  std::optional<bool> is_told;
  while (!(is_told = stranger.Result())) server->Poll(events, 64);
  CHECK(*is_told);
  CHECK(events.accepted.empty());
}

TEST_CASE("Local: nothing is handed to another user who listens", "[transport]") {
  LocalHarness harness;
  std::array<int, 2> pipe_ends{};
  REQUIRE(pipe(pipe_ends.data()) == 0);
  const Descriptor from(pipe_ends[0]);
  Descriptor to(pipe_ends[1]);
  Nobody stranger([&] {
    const auto transport = harness.NewTransport();
    const std::string address = *transport->Listen({});
    const bool is_said =
        write(to.get(), address.data(), address.size()) == static_cast<ssize_t>(address.size());
    pause();
    return is_said;
  });
  if (!stranger.is_there()) {
    WARN("skipped: this process may not start one of another user");
    return;
  }
  to.Reset();
  std::array<char, 256> told{};
  const ssize_t bytes = read(from.get(), told.data(), told.size());
  REQUIRE(bytes > 0);
  const std::string address(told.data(), static_cast<size_t>(bytes));
  const auto client = harness.NewTransport();
  REQUIRE(client->Connect(address).ok());
  RecordingSink events;
  for (int i = 0; i < 1000 && events.disconnected.empty(); ++i) client->Poll(events, 64);
  REQUIRE(events.disconnected.size() == 1);
  CHECK(events.disconnected[0].second.find("runs as user 65534") != std::string::npos);
}

TEST_CASE("Local: a ring is refused if its peer could cut it", "[transport]") {
  const auto ring = RingMapping::Create(kRingBytesMin);
  REQUIRE(ring.ok());
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_GROW}) {
    CAPTURE(seals);
    // These are the bytes of a ring that Open() accepts.
    const Descriptor copy(memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(copy.valid());
    REQUIRE(ftruncate(copy.get(), static_cast<off_t>(kRingDataOffset + kRingBytesMin)) == 0);
    REQUIRE(pwrite(copy.get(), ring->control(), sizeof(RingControl), 0) == sizeof(RingControl));
    REQUIRE(fcntl(copy.get(), F_ADD_SEALS, seals) == 0);
    const auto opened = RingMapping::Open(copy.get());
    CHECK(opened.status().message() == "the peer's ring is not sealed");
    REQUIRE(fcntl(copy.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
    CHECK(RingMapping::Open(copy.get()).ok());
  }
}

TEST_CASE("Local: a key belongs to one region as long as the region lives", "[transport]") {
  const runtime::MonotonicClock clock;
  const auto transport = NewLocalTransport({}, &clock, nullptr);
  REQUIRE(transport.ok());
  std::array<std::byte, 16> bytes{};
  CHECK(absl::IsInvalidArgument(
      (*transport)->RegisterAs({}, {.key = 7, .address = 0}, std::nullopt).status()));
  for (int i = 0; i < 2; ++i) {
    const auto region = (*transport)->RegisterAs(bytes, {.key = 7, .address = 4096}, std::nullopt);
    REQUIRE(region.ok());
    CHECK(region->Ref().key == 7);
    const auto other = (*transport)->RegisterAs(bytes, {.key = 7, .address = 0}, std::nullopt);
    CHECK(absl::IsAlreadyExists(other.status()));
  }
}

const PeerIdentity kMember = {
    .job = JobId(3), .epoch = Epoch(7), .node = NodeRank(1), .incarnation = Incarnation(0x7f3a)};
const PeerIdentity kOther = {
    .job = JobId(3), .epoch = Epoch(7), .node = NodeRank(0), .incarnation = Incarnation(0x1111)};

// Returns a token that its member would show at this listener.
ConnectToken TokenFor(const std::string& address, const PeerIdentity& member, uint32_t count) {
  const std::string own = AddressForMember(address, member);
  const auto key = ParseAddressKey(own.substr(own.rfind('#') + 1));
  REQUIRE(key);
  return MakeConnectToken(key->key, {.identity = member, .count = count});
}

// Sends by hand what a peer sends. Returns how the server answers: "", or its refusal.
std::string SayByHand(Endpoint& server, const std::string& address,
                      std::span<const std::byte> proof) {
  LocalHarness harness;
  const Descriptor socket(harness.ConnectRaw(address));
  const Descriptor doorbell(eventfd(0, EFD_CLOEXEC));
  const auto ring = RingMapping::Create(kRingBytesMin);
  REQUIRE(ring.ok());
  REQUIRE(SendHandshake(socket.get(), ring->memory_descriptor(), doorbell.get(), proof).ok());
  absl::Status answer;
  REQUIRE(PollUntil({&server}, [&] {
    const auto received = ReceiveHandshake(socket.get());
    answer = received.status();
    return !received.ok() || received->has_value();
  }));
  return std::string(answer.message());
}

TEST_CASE("Local: a member proves who it is", "[transport]") {
  LocalHarness harness;
  Endpoint server{harness.NewTransport()};
  const std::string address = *server.transport->Listen({});
  Endpoint client{harness.NewTransport()};
  for (size_t i = 0; i < 2; ++i) {  // It can connect again.
    REQUIRE(client.transport->Connect(AddressForMember(address, kMember)).ok());
    REQUIRE(PollUntil({&client, &server}, [&] {
      return server.sink.accepted.size() == i + 1 && client.sink.connected.size() == i + 1;
    }));
    CHECK(server.transport->ProvenIdentity(server.sink.accepted[i]) == kMember);
    CHECK_FALSE(client.transport->ProvenIdentity(client.sink.connected[i]));
  }
}

TEST_CASE(
    "Local: a peer without a key, with another member's key, or with a used token, is refused",
    "[transport]") {
  LocalHarness harness;
  Endpoint server{harness.NewTransport()};
  const std::string address = *server.transport->Listen({});
  const ConnectToken token = TokenFor(address, kMember, 5);
  CHECK(SayByHand(server, address, {}).find("not made with a key") != std::string::npos);
  ConnectToken forged = MakeConnectToken(MemberKey(NewDataKey(), kMember), {.identity = kMember});
  CHECK(SayByHand(server, address, forged).find("not made with a key") != std::string::npos);
  // It sends another's name and its own key.
  const std::string own = AddressForMember(address, kMember);
  const auto key = ParseAddressKey(own.substr(own.rfind('#') + 1));
  forged = MakeConnectToken(key->key, {.identity = kOther, .count = 1});
  CHECK(SayByHand(server, address, forged).find("not made with a key") != std::string::npos);
  CHECK(server.sink.accepted.empty());
  CHECK(SayByHand(server, address, token).empty());
  CHECK(server.sink.accepted.size() == 1);
  CHECK(SayByHand(server, address, token).find("was used before") != std::string::npos);
  CHECK(SayByHand(server, address, TokenFor(address, kOther, 5)).empty());
  server.transport->SetAdmission([](const PeerIdentity& peer) {
    return std::string(peer == kOther ? "node 0 has left" : "");
  });
  CHECK(SayByHand(server, address, TokenFor(address, kOther, 6)) == "it refused: node 0 has left");
  CHECK(SayByHand(server, address, TokenFor(address, kMember, 6)).empty());
}

TEST_CASE("Local: a process with a listener's name, but not its key, is found out", "[transport]") {
  LocalHarness harness;
  const std::string name = "@talweg-test-" + std::to_string(getpid());
  const auto listener = ListenUnix(name);
  REQUIRE(listener.ok());
  const std::string address = "local:" + name + "#" + AddressKey{.key = NewDataKey()}.ToString();
  Endpoint client{harness.NewTransport()};
  REQUIRE(client.transport->Connect(AddressForMember(address, kMember)).ok());
  const Descriptor accepted(accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  const Descriptor doorbell(eventfd(0, EFD_CLOEXEC));
  const auto ring = RingMapping::Create(kRingBytesMin);
  const ConnectAnswer answer{};
  REQUIRE(SendHandshake(accepted.get(), ring->memory_descriptor(), doorbell.get(), answer).ok());
  REQUIRE(PollUntil({&client}, [&] { return !client.sink.disconnected.empty(); }));
  CHECK(client.sink.connected.empty());
  const std::string& reason = client.sink.disconnected[0].second;
  CHECK(reason == "connect to local:" + name + ": whoever answered does not hold its key");
}

TEST_CASE("Local: a process of an older release is told to upgrade", "[transport]") {
  LocalHarness harness;
  Endpoint server{harness.NewTransport()};
  const std::string address = *server.transport->Listen({});
  const Descriptor socket(harness.ConnectRaw(address));
  const HandshakeMessage hello = {.version = 1};
  REQUIRE(send(socket.get(), &hello, sizeof(hello), 0) == sizeof(hello));
  HandshakeMessage answer;
  REQUIRE(PollUntil({&server}, [&] {
    return recv(socket.get(), &answer, sizeof(answer), MSG_DONTWAIT) == sizeof(answer);
  }));
  CHECK(answer.refused == 1);
  CHECK(std::string(answer.text).find("version 1 of the local transport") != std::string::npos);
  // The older release's address has no key.
  const auto status = harness.NewTransport()->Connect("local:@x").status();
  CHECK(std::string(status.message()).find("install the same release") != std::string::npos);
}

TEST_CASE("Local: a peer without heartbeats is not watched", "[transport]") {
  runtime::ManualClock clock{1'000'000'000};
  auto transport = NewLocalTransport({}, &clock, nullptr);
  REQUIRE(transport.ok());
  Endpoint server{*std::move(transport)};
  const auto address = server.transport->Listen({});
  REQUIRE(address.ok());
  LocalHarness harness;
  const Descriptor socket(harness.ConnectRaw(*address));
  const Descriptor doorbell(eventfd(0, EFD_CLOEXEC));
  const auto ring = RingMapping::Create(kRingBytesMin);
  REQUIRE(ring.ok());
  const bool counts = GENERATE(false, true);
  if (!counts) ring->control()->beats = 0;
  REQUIRE(SendHandshake(socket.get(), ring->memory_descriptor(), doorbell.get(),
                        TokenFor(*address, kMember, 1))
              .ok());
  REQUIRE(PollUntil({&server}, [&] { return server.sink.accepted.size() == 1; }));
  for (int i = 0; i < 20; ++i) {
    clock.Advance(2'000'000'000);
    server.Poll();
  }
  CHECK(server.sink.disconnected.size() == (counts ? 1 : 0));
}

}  // namespace

std::unique_ptr<Harness> NewHarness() { return std::make_unique<LocalHarness>(); }

TEST_CASE("Local: a peer that connects when no descriptor is left hears so", "[transport]") {
  LocalHarness harness;
  Endpoint server{harness.NewTransport()};
  const Descriptor unlucky(harness.ConnectRaw(*server.transport->Listen({})));
  {
    const NoDescriptors none;
    server.Poll();
  }
  CHECK_FALSE(IsReadable(server.transport->WaitDescriptor()));
  HandshakeMessage answer;
  REQUIRE(recv(unlucky.get(), &answer, sizeof(answer), MSG_DONTWAIT) == sizeof(answer));
  CHECK(std::string(answer.text).find("ulimit -n") != std::string::npos);
}

TEST_CASE("Local: of many peers that connect at once, some wait for the next turn", "[transport]") {
  LocalHarness harness;
  Endpoint server{harness.NewTransport()};
  const std::string address = *server.transport->Listen({});
  std::vector<Descriptor> many;
  for (int i = 0; i < 100; ++i) many.emplace_back(harness.ConnectRaw(address));
  REQUIRE(many.back().valid());
  server.Poll();
  CHECK(IsReadable(server.transport->WaitDescriptor()));
  server.Poll();
  CHECK_FALSE(IsReadable(server.transport->WaitDescriptor()));
}

TEST_CASE("Local: the error names a full table of descriptors", "[transport]") {
  int ends[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  const Descriptor ours(ends[0]);
  const Descriptor theirs(ends[1]);
  const Descriptor doorbell(eventfd(0, EFD_CLOEXEC));
  REQUIRE(SendHandshake(theirs.get(), doorbell.get(), doorbell.get(), {}).ok());
  const auto received = [&] {
    const NoDescriptors none;
    return ReceiveHandshake(ours.get());
  }();
  REQUIRE_FALSE(received.ok());
  CHECK(received.status().code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(received.status().message()).find("ulimit -n") != std::string::npos);
}

}  // namespace talweg::transport
