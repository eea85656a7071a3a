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

// How the bytes of a connection are protected. The Hello carries these values.
enum class DataSecurity : uint8_t { kNone = 1, kKeyed = 2, kTls = 3 };

// "none", "keyed", "tls".
const char* DataSecurityName(DataSecurity security);
std::optional<DataSecurity> DataSecurityNamed(std::string_view name);

// A secret: never logged, shown or compared byte by byte. The destructor wipes it.
struct DataKey : std::array<std::byte, 32> {
  DataKey() : array{} {}
  // Wipes `made`.
  explicit DataKey(std::array<std::byte, 32>&& made);
  DataKey(const DataKey&) = default;
  DataKey& operator=(const DataKey&) = default;
  ~DataKey();
};

// Returns a key from the kernel's random generator.
DataKey NewDataKey();

// Returns the seed of one member's keys at the listener with key `listener`, for all epochs;
// ignores `identity.epoch`. The seed reveals nothing about `listener`.
DataKey MemberSeed(const DataKey& listener, const PeerIdentity& identity);
// Returns the key of the member with that seed in one epoch. The key reveals nothing about the
// seed.
DataKey KeyInEpoch(const DataKey& seed, Epoch epoch);
// Returns the key of one member at that listener, in the epoch of `identity`.
DataKey MemberKey(const DataKey& listener, const PeerIdentity& identity);

// Derives a key for one use only.
DataKey KeyFor(const DataKey& key, std::string_view use);

// The key at the end of an address. Numbers are decimal, keys hexadecimal.
//
//   s<listener key>
//     Listen returns it, and the scheduler gets it.
//   s<job>.<epoch>.<node>.<incarnation>.<member's seed>
//     The scheduler derives it for a member.
//   <job>.<epoch>.<node>.<incarnation>.<member's key>
//     The member derives it to connect in a view.
//   <listener key>
//     A listener of an older release returns it.
struct AddressKey {
  std::optional<PeerIdentity> identity;  // nullopt: `key` is the listener's.
  DataKey key;
  // `key` is not a member's key: members' seeds, or the member's keys, are derived from it.
  bool is_seed = false;

  std::string ToString() const;
};
std::optional<AddressKey> ParseAddressKey(std::string_view text);

// "local:<name>#<key>". In other addresses the key follows the last '/'.
inline constexpr char kLocalKeyMark = '#';

// "tcp://<host>:<port>/<security>/<key>".
struct TcpAddress {
  std::string host_port;
  DataSecurity security = DataSecurity::kNone;
  AddressKey key;

  std::string ToString() const;
};

// INVALID_ARGUMENT: not such an address. The text shows nothing that follows the port.
absl::StatusOr<TcpAddress> ParseTcpAddress(const std::string& address);

// Returns `data_address` (several joined by commas) for that member: with the member's key of the
// epoch in place of each listener key. Addresses without a listener key stay as they are.
std::string AddressForMember(const std::string& data_address, const PeerIdentity& identity);
// The same with the member's seed, which is good in later epochs, too. A listener of an older
// release has no seeds, so its address gets the member's key of the epoch.
std::string SeedAddressForMember(const std::string& data_address, const PeerIdentity& identity);
// Returns whether the result of SeedAddressForMember for this address is good in all epochs.
bool HasSeeds(const std::string& data_address);
// Returns an address with the member's key of that epoch, from one with the member's seeds.
std::string AddressInEpoch(const std::string& data_address, Epoch epoch);

// Returns how the listener at that address protects data: "none", "keyed" or "tls". "" if the
// address has no network.
std::string SecurityOf(const std::string& data_address);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_PROOF_DATA_KEY_H_
