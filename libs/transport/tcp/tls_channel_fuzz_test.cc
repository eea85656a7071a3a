// SPDX-License-Identifier: Apache-2.0
// A peer that has the keys may send any records, and somebody on the path any bytes. Only memory
// that is due is written, and the channel either goes on or ends.
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/descriptor.h"
#include "libs/transport/tcp/channel.h"
#include "libs/transport/tcp/tls_records.h"

namespace talweg::transport {
namespace {

constexpr size_t kGuard = 64;
constexpr size_t kUnitMax = 40'000;

// Takes numbers and bytes from the input, as long as there are some.
class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : left_(bytes) {}

  bool empty() const { return left_.empty(); }
  size_t Number(size_t max) {
    size_t number = 0;
    for (const std::byte byte : Bytes(2)) number = 256 * number + static_cast<size_t>(byte);
    return number % (max + 1);
  }
  std::span<const std::byte> Bytes(size_t size) {
    const auto taken = left_.first(std::min(size, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::byte> left_;
};

TrafficSecret SecretOf(std::byte byte) {
  TrafficSecret secret;
  secret.bytes.fill(byte);
  return secret;
}

// Receives a unit of that size. The bytes around its place were given to nobody.
absl::StatusOr<bool> ReceiveUnit(Channel& channel, size_t unit) {
  static std::vector<std::byte> memory(2 * kGuard + kUnitMax);
  const auto before = std::span(memory).first(kGuard);
  const auto after = std::span(memory).subspan(kGuard + unit, kGuard);
  std::fill(before.begin(), before.end(), std::byte{0x5a});
  std::fill(after.begin(), after.end(), std::byte{0x5a});
  const auto whole = channel.Receive(std::span(memory).subspan(kGuard, unit));
  const auto untouched = [](std::byte byte) { return byte == std::byte{0x5a}; };
  TALWEG_CHECK(std::all_of(before.begin(), before.end(), untouched));
  TALWEG_CHECK(std::all_of(after.begin(), after.end(), untouched));
  return whole;
}

}  // namespace
}  // namespace talweg::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace talweg::transport;
  int made[2];
  TALWEG_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, made) == 0);
  const talweg::Descriptor ours(made[0]);
  const talweg::Descriptor theirs(made[1]);
  static const TrafficSecret our_secret = SecretOf(std::byte{1});
  static const TrafficSecret their_secret = SecretOf(std::byte{2});
  const auto channel = NewTlsRecordChannel(ours.get(), our_secret, their_secret, {});
  TlsSealer sealer(their_secret);
  static std::vector<std::byte> record(kTlsRecordBytesMax);

  Input input(std::as_bytes(std::span(data, size)));
  size_t unit = 1 + input.Number(kUnitMax - 1);
  while (!input.empty()) {
    const size_t kind = input.Number(7);
    if (kind == 0) {
      const auto bytes = input.Bytes(input.Number(50));
      send(theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    } else {
      const auto type = kind < 5 ? TlsContent::kData : static_cast<TlsContent>(input.Number(255));
      // A few bytes of input make long content.
      std::vector<std::byte> content(input.Number(kTlsContentBytesMax));
      const auto given = input.Bytes(std::min<size_t>(content.size(), input.Number(20)));
      std::copy(given.begin(), given.end(), content.begin());
      const std::span<const std::byte> part(content);
      const size_t bytes = sealer.Seal(type, std::span(&part, 1), record);
      send(theirs.get(), record.data(), bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (kind == 6) sealer.key().Update();
    }
    channel->OnReadable(false);
    while (true) {
      const auto whole = ReceiveUnit(*channel, unit);
      if (!whole.ok()) return 0;
      if (!*whole) break;
      unit = 1 + input.Number(kUnitMax - 1);
    }
    TALWEG_CHECK(channel->drained());
  }
  return 0;
}
