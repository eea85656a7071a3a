// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_LAYOUT_FIELDS_H_
#define TALWEG_LIBS_SHM_LAYOUT_FIELDS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "libs/shm/layout/messages.h"

// The fields of a message's body, as docs/shared_memory.md lays them out.
namespace talweg::shm {

static_assert(std::endian::native == std::endian::little,
              "fields are copied as they lie in memory");

// Reads fields from a body. After the first field that does not fit, every field reads as 0.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : next_(bytes.data()), left_(bytes.size()) {}

  // Integers, and arrays of bytes.
  template <typename Integer>
  Integer Take() {
    Integer value = {};
    if (!Have(sizeof(value))) return value;
    std::memcpy(&value, next_, sizeof(value));
    Skip(sizeof(value));
    return value;
  }

  std::string_view TakeString(size_t bytes_max) {
    const uint32_t bytes = Take<uint32_t>();
    if (bytes > bytes_max) {
      too_long_ = true;
      ok_ = false;
    }
    if (!Have(bytes)) return {};
    const std::string_view text(reinterpret_cast<const char*>(next_), bytes);
    Skip(bytes);
    return text;
  }

  RankList TakeRanks() {
    const uint32_t count = Take<uint32_t>();
    if (count > kGroupRanksMax) {
      too_long_ = true;
      ok_ = false;
    }
    if (!Have(count * sizeof(uint32_t))) return {};
    const RankList ranks(next_, count);
    Skip(count * sizeof(uint32_t));
    return ranks;
  }

  MemberList TakeMembers() {
    const uint32_t count = Take<uint32_t>();
    if (count > kMembershipMembersMax) {
      too_long_ = true;
      ok_ = false;
    }
    if (!Have(count * sizeof(MembershipMember))) return {};
    const MemberList members(next_, count);
    Skip(count * sizeof(MembershipMember));
    return members;
  }

  bool ok() const { return ok_; }
  bool too_long() const { return too_long_; }
  // True where the body of an earlier version ends.
  bool AtEnd() const { return left_ == 0; }

 private:
  bool Have(size_t bytes) {
    ok_ = ok_ && bytes <= left_;
    return ok_;
  }
  void Skip(size_t bytes) {
    next_ += bytes;
    left_ -= bytes;
  }

  const std::byte* next_;
  size_t left_;
  bool ok_ = true;
  bool too_long_ = false;
};

// Writes fields into a body. After the first field that does not fit, nothing is written.
class Writer {
 public:
  explicit Writer(std::span<std::byte> out) : out_(out) {}

  template <typename Integer>
  void Put(Integer value) {
    PutBytes(&value, sizeof(value));
  }
  void PutString(std::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    PutBytes(text.data(), text.size());
  }
  void PutName(std::string_view name, size_t bytes_max) {
    ok_ = ok_ && name.size() <= bytes_max;
    if (ok_) PutString(name);
  }
  void PutRanks(const RankList& ranks) {
    ok_ = ok_ && ranks.size() <= kGroupRanksMax;
    if (!ok_) return;
    Put(ranks.size());
    PutBytes(ranks.bytes().data(), ranks.bytes().size());
  }
  void PutMembers(const MemberList& members) {
    ok_ = ok_ && members.size() <= kMembershipMembersMax;
    if (!ok_) return;
    Put(members.size());
    PutBytes(members.bytes().data(), members.bytes().size());
  }
  // Cuts between characters: a UTF-8 sequence is written whole or not at all.
  void PutText(std::string_view text) {
    size_t bytes = text.size();
    if (bytes > kTextBytesMax) {
      bytes = kTextBytesMax;
      while (bytes > 0 && (static_cast<unsigned char>(text.data()[bytes]) & 0xc0) == 0x80) --bytes;
    }
    PutString(std::string_view(text.data(), bytes));
  }

  bool ok() const { return ok_; }
  size_t used() const { return used_; }

 private:
  void PutBytes(const void* bytes, size_t count) {
    ok_ = ok_ && count <= out_.size() - used_;
    if (!ok_ || count == 0) return;
    std::memcpy(out_.data() + used_, bytes, count);
    used_ += count;
  }

  std::span<std::byte> out_;
  size_t used_ = 0;
  bool ok_ = true;
};

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_LAYOUT_FIELDS_H_
