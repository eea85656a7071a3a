// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/daemon/declaration.h"

#include <array>

#include "libs/base/bytes.h"
#include "libs/base/collective.h"
#include "libs/base/counted.h"
#include "libs/shm/layout/parts.h"

namespace talweg::shm {
namespace {

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80           ? 1
                          : (lead >> 5) == 0x06 ? 2
                          : (lead >> 4) == 0x0e ? 3
                          : (lead >> 3) == 0x1e ? 4
                                                : 0;
    if (length == 0 || i + length > text.size()) return false;
    uint32_t point = length == 1 ? lead : lead & (0x7fu >> length);
    for (size_t k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0) != 0x80) return false;
      point = (point << 6) | (next & 0x3f);
    }
    constexpr std::array<uint32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
    if (point < kSmallest[length] || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) {
      return false;
    }
    i += length;
  }
  return true;
}

// Returns why the ranks of a declaration, or its root, do not exist; "" if they do.
std::string GroupError(const Declare& declare, uint32_t rank, uint32_t job_size) {
  const RankList& ranks = declare.ranks;
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] >= job_size) {
      return "rank " + std::to_string(ranks[i]) + " of its group does not exist: the job has " +
             Counted(job_size, "rank");
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return "its group names rank " + std::to_string(ranks[i]) + " after rank " +
             std::to_string(ranks[i - 1]) + "; give each rank once, in ascending order";
    }
  }
  if (!ranks.empty() && ranks.Find(rank) == ranks.size()) {
    return "rank " + std::to_string(rank) + " declares it, and is not in its group of " +
           Counted(ranks.size(), "rank") + "; only they may declare it";
  }
  if (!declare.collective().has_root()) return "";
  if (declare.root_rank >= job_size) {
    return "root rank " + std::to_string(declare.root_rank) + " does not exist: the job has " +
           Counted(job_size, "rank");
  }
  if (!ranks.empty() && ranks.Find(declare.root_rank) == ranks.size()) {
    return "root rank " + std::to_string(declare.root_rank) + " is not in its group of " +
           Counted(ranks.size(), "rank");
  }
  return "";
}

}  // namespace

std::string DeclarationError(const Declare& declare, uint32_t rank, uint32_t job_size,
                             uint32_t number_count) {
  if (declare.name.empty()) return "a tensor's name must not be empty";
  if (declare.name.find('\0') != std::string_view::npos || !IsUtf8(declare.name)) {
    return "a tensor's name is not UTF-8 without NUL";
  }
  const std::string tensor = "tensor '" + std::string(declare.name) + "': ";
  const Collective collective = declare.collective();
  if (const std::string problem = Problem(collective); !problem.empty()) return tensor + problem;
  // If a standby's rank declares another tensor, the agent says what it has to wait for.
  const bool is_standby = rank >= job_size;
  const uint32_t numbers = collective.side || is_standby ? number_count : job_size;
  if (const std::string problem = GroupError(declare, rank, numbers); !problem.empty()) {
    return tensor + problem;
  }
  if (collective.side && declare.ranks.empty()) {
    return tensor + "a side tensor is of a group: name the ranks that take part in it";
  }
  const uint32_t rank_count = declare.ranks.empty() ? job_size : declare.ranks.size();
  if (!BufferShape::Fits(collective, rank_count)) {
    return tensor + Describe(collective) + " of " + Counted(rank_count, "rank") +
           " passes the limit of " + FormatBytes(kTensorBytesMax) +
           " a tensor; cut it into several";
  }
  return "";
}

std::string Printable(std::string_view text) {
  if (!IsUtf8(text)) return "?";
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

}  // namespace talweg::shm
