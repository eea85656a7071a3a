// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_WIRE_FIELDS_H_
#define TALWEG_LIBS_WIRE_FIELDS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "libs/base/ids.h"
#include "libs/wire/frames.h"

// The fields that entries are made of, as they lie in a frame.
namespace talweg::wire {

static_assert(std::endian::native == std::endian::little,
              "the codecs copy integers as they lie in memory, which is the wire's order");

// Entries begin at multiples of this.
inline constexpr size_t kAlignmentBytes = 8;

// Appends fields to bytes.
class FieldWriter {
 public:
  explicit FieldWriter(std::vector<std::byte>& out) : out_(out) {}

  template <typename Integer>
  void Put(Integer value) {
    static_assert(std::is_integral_v<Integer> || std::is_enum_v<Integer>);
    PutBytes(std::as_bytes(std::span(&value, 1)));
  }
  template <typename Tag, typename Integer>
  void Put(StrongId<Tag, Integer> id) {
    Put(id.value());
  }
  void Put(const RemoteRef& ref) {
    Put(ref.key);
    Put(ref.address);
  }
  void Put(const std::string& text) {
    Put(static_cast<uint32_t>(text.size()));
    PutBytes(std::as_bytes(std::span(text)));
  }
  template <typename Integer>
  void Put(const std::vector<Integer>& values) {
    Put(static_cast<uint32_t>(values.size()));
    PutBytes(std::as_bytes(std::span(values)));
  }
  void PutBytes(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void Pad() {
    out_.resize((out_.size() + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes);
  }

 private:
  std::vector<std::byte>& out_;
};

// Reads fields until one does not fit. From then on every Get leaves its argument unchanged, and
// ok() is false.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool ok() const { return ok_; }
  size_t remaining() const { return rest_.size(); }
  void Fail() { ok_ = false; }

  template <typename Value>
  void Get(Value& value) {
    if constexpr (std::is_same_v<Value, bool>) {
      uint8_t byte = 0;
      Get(byte);
      if (byte > 1) Fail();
      value = byte == 1;
    } else {
      static_assert(std::is_integral_v<Value> || std::is_enum_v<Value>);
      const std::span<const std::byte> bytes = GetBytes(sizeof(Value));
      if (ok_) std::memcpy(&value, bytes.data(), sizeof(Value));
    }
  }
  template <typename Tag, typename Integer>
  void Get(StrongId<Tag, Integer>& id) {
    Integer value = 0;
    Get(value);
    id = StrongId<Tag, Integer>(value);
  }
  void Get(RemoteRef& ref) {
    Get(ref.key);
    Get(ref.address);
  }
  void Get(std::string& text, size_t bytes_max) {
    uint32_t size = 0;
    Get(size);
    if (size > bytes_max) return Fail();
    const std::span<const std::byte> bytes = GetBytes(size);
    if (ok_) text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  template <typename Integer>
  void Get(std::vector<Integer>& values) {
    uint32_t count = 0;
    Get(count);
    if (count > rest_.size() / sizeof(Integer)) return Fail();
    const std::span<const std::byte> bytes = GetBytes(count * sizeof(Integer));
    if (!ok_) return;
    values.resize(count);
    if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  std::span<const std::byte> GetBytes(size_t count) {
    if (!ok_ || count > rest_.size()) {
      Fail();
      return {};
    }
    const std::span<const std::byte> bytes = rest_.first(count);
    rest_ = rest_.subspan(count);
    return bytes;
  }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace talweg::wire

#endif  // TALWEG_LIBS_WIRE_FIELDS_H_
