// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_PROOF_DATA_KEY_H_
#define TALWEG_LIBS_TRANSPORT_PROOF_DATA_KEY_H_

#include <absl/status/statusor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "libs/transport/transport.h"

// Keys of data connections, and the addresses that carry them (docs/protocol.md, sections 9, 10).
namespace talweg::transport {

// What is done to the bytes of a connection. Its values stand in the Hello.
enum class DataSecurity : uint8_t { kNone = 1, kKeyed = 2, kTls = 3 };

// "none", "keyed", "tls".
const char* DataSecurityName(DataSecurity security);
std::optional<DataSecurity> DataSecurityNamed(std::string_view name);

// A secret: never logged, shown or compared byte by byte.
using DataKey = std::array<std::byte, 32>;

// Drawn by the kernel.
DataKey NewDataKey();

// What the keys of one member at the listener that holds `listener` are made of, in all epochs;
// that of `identity` does not count. It shows nothing of `listener`.
DataKey MemberSeed(const DataKey& listener, const PeerIdentity& identity);
// The key of the member with that seed in one epoch. It shows nothing of the seed.
DataKey KeyInEpoch(const DataKey& seed, Epoch epoch);
// The key of one member at that listener, in the epoch of `identity`.
DataKey MemberKey(const DataKey& listener, const PeerIdentity& identity);

// A key for one use alone, made of another.
DataKey KeyFor(const DataKey& key, std::string_view use);

// The key at the end of an address. Numbers are decimal, keys hexadecimal.
//
//   s<listener key>                                       what Listen returns, and the scheduler is
//   told s<job>.<epoch>.<node>.<incarnation>.<member's seed>   what the scheduler makes of that for
//   a member <job>.<epoch>.<node>.<incarnation>.<member's key>     what that makes of it to connect
//   in a view <listener key>                                        of a listener of an older
//   release
struct AddressKey {
  std::optional<PeerIdentity> identity;  // nullopt: `key` is the listener's.
  DataKey key{};
  bool is_seed = false;  // Members' seeds, or the member's keys, are made of `key`.

  std::string ToString() const;
};
std::optional<AddressKey> ParseAddressKey(std::string_view text);

// "local:<name>#<key>". In other addresses the key is what follows the last '/'.
inline constexpr char kLocalKeyMark = '#';

// "tcp://<host>:<port>/<security>/<key>".
struct TcpAddress {
  std::string host_port;
  DataSecurity security = DataSecurity::kNone;
  AddressKey key;

  std::string ToString() const;
};

// INVALID_ARGUMENT: it is none. The text shows nothing that follows the port.
absl::StatusOr<TcpAddress> ParseTcpAddress(const std::string& address);

// A data address (several joined by commas) as that member may have it: with the member's own key
// of the epoch in place of each listener key. What has no such key stays as it is.
std::string AddressForMember(const std::string& data_address, const PeerIdentity& identity);
// Likewise, with the member's seed, which is good in later epochs, too. A listener of an older
// release has no seeds: its place has the member's key of the epoch.
std::string SeedAddressForMember(const std::string& data_address, const PeerIdentity& identity);
// Whether the address that SeedAddressForMember makes of it is good in all epochs.
bool HasSeeds(const std::string& data_address);
// An address with the member's seeds, as it is good for connecting in that epoch.
std::string AddressInEpoch(const std::string& data_address, Epoch epoch);

// "none", "keyed" or "tls": how whoever listens there carries data over a network. "" for an
// address without one.
std::string SecurityOf(const std::string& data_address);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_PROOF_DATA_KEY_H_
