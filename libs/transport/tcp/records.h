// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_TCP_RECORDS_H_
#define TALWEG_LIBS_TRANSPORT_TCP_RECORDS_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

// What travels over an open connection: a header, and `length` bytes after it.
//
//   0      4        8       16        24
//   +------+--------+-------+---------+
//   | type | length | key   | address |
//   +------+--------+-------+---------+
namespace talweg::transport {

enum class TcpRecordType : uint32_t {
  kFrame = 1,
  kWrite = 2,      // `length` bytes belong to (key, address).
  kHeartbeat = 3,  // Shows that this side lives.
};

struct TcpRecordHeader {
  TcpRecordType type = TcpRecordType::kHeartbeat;
  uint32_t length = 0;
  uint64_t key = 0;
  uint64_t address = 0;
};
static_assert(sizeof(TcpRecordHeader) == 24);
static_assert(std::endian::native == std::endian::little);

// A longer write travels in several records.
inline constexpr size_t kWriteRecordBytesMax = size_t{1} << 30;

using TcpHeaderBytes = std::array<std::byte, sizeof(TcpRecordHeader)>;

inline TcpHeaderBytes ToBytes(const TcpRecordHeader& header) {
  return std::bit_cast<TcpHeaderBytes>(header);
}
inline TcpRecordHeader FromBytes(const TcpHeaderBytes& bytes) {
  return std::bit_cast<TcpRecordHeader>(bytes);
}

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_TCP_RECORDS_H_
