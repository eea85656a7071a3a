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

// The key of one member at the listener that holds `listener`. It shows nothing of that one.
DataKey MemberKey(const DataKey& listener, const PeerIdentity& identity);

// A key for one use alone, made of another.
DataKey KeyFor(const DataKey& key, std::string_view use);

// The key at the end of an address. "<listener key>" is what Listen returns, and what the scheduler
// is told. "<job>.<epoch>.<node>.<incarnation>.<member key>" is what it makes of that for one
// member. Numbers are decimal, keys hexadecimal.
struct AddressKey {
  std::optional<PeerIdentity> identity;  // nullopt: `key` is the listener's.
  DataKey key{};

  std::string ToString() const;
};
std::optional<AddressKey> ParseAddressKey(std::string_view text);

// "local:<name>#<key>". In other addresses the key is what follows the last '/'.
inline constexpr char kLocalKeyMark = '#';

// "tcp://<host>:<port>/<security>/<key>".
struct TcpAddress {
  std::string host_port;
  DataSecurity security = DataSecurity::kNone;
  std::optional<PeerIdentity> identity;  // nullopt: `key` is the listener's.
  DataKey key{};

  std::string ToString() const;
};

// INVALID_ARGUMENT: it is none. The text shows nothing that follows the port.
absl::StatusOr<TcpAddress> ParseTcpAddress(const std::string& address);

// A data address (several joined by commas) as that member may have it: with the member's own key
// in place of each listener key. What has no such key stays as it is.
std::string AddressForMember(const std::string& data_address, const PeerIdentity& identity);

// "none", "keyed" or "tls": how whoever listens there carries data over a network. "" for an
// address without one.
std::string SecurityOf(const std::string& data_address);

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_PROOF_DATA_KEY_H_
