// SPDX-License-Identifier: Apache-2.0
#include "libs/rpc/frame_guard.h"

#include <algorithm>

namespace talweg::rpc {
namespace {

constexpr size_t kPrefaceBytes = 24;
// Kinds of frames, as RFC 9113 numbers them.
constexpr uint8_t kData = 0;
constexpr uint8_t kHeaders = 1;
constexpr uint8_t kReset = 3;
constexpr uint8_t kContinuation = 9;
constexpr uint8_t kEndStream = 1;
// What gRPC keeps for a call beside its message: the call itself, and the metadata of one frame. 8
// KiB of metadata, as gRPC counts it, can be 240 fields of 70 bytes.
constexpr uint64_t kCallBytes = 8 << 10;
constexpr uint64_t kHeaderFrameBytes = 16 << 10;
constexpr int64_t kLookEveryNs = 1'000'000'000;

}  // namespace

const char* Text(FrameGuard::Verdict verdict) {
  switch (verdict) {
    case FrameGuard::Verdict::kGood: return "good";
    case FrameGuard::Verdict::kHeaderBlock: return "the metadata of a call is too long";
    case FrameGuard::Verdict::kHalfRequests: return "requests that do not end take too much memory";
    case FrameGuard::Verdict::kSlowRequest: return "a request that does not end in time";
    case FrameGuard::Verdict::kResets: return "too many calls that are reset";
    case FrameGuard::Verdict::kControlFrames: return "too many frames that carry nothing";
  }
  return "";
}

bool FrameGuard::Bucket::Take(uint32_t count_max, uint32_t per_second, int64_t now_ns) {
  const double passed_s = static_cast<double>(std::max<int64_t>(0, now_ns - at_ns)) * 1e-9;
  level = std::max(0.0, level - passed_s * per_second);
  at_ns = now_ns;
  level += 1;
  return level <= count_max;
}

FrameGuard::FrameGuard(const FrameLimits* limits, HalfBytes* half_bytes_of_all)
    : limits_(*limits),
      half_bytes_of_all_(*half_bytes_of_all),
      preface_bytes_left_(kPrefaceBytes) {}

FrameGuard::~FrameGuard() { half_bytes_of_all_ -= half_bytes_; }

FrameGuard::Verdict FrameGuard::OnBytes(std::span<const uint8_t> bytes, int64_t now_ns) {
  if (IsOneTooOld(now_ns)) return Verdict::kSlowRequest;
  // gRPC itself checks the preface.
  const size_t preface = std::min(preface_bytes_left_, bytes.size());
  preface_bytes_left_ -= preface;
  bytes = bytes.subspan(preface);
  while (!bytes.empty()) {
    if (payload_bytes_left_ > 0) {
      const size_t passed = std::min<uint64_t>(payload_bytes_left_, bytes.size());
      payload_bytes_left_ -= passed;
      bytes = bytes.subspan(passed);
      continue;
    }
    const size_t taken = std::min(head_.size() - head_bytes_, bytes.size());
    std::copy_n(bytes.begin(), taken, head_.begin() + static_cast<ptrdiff_t>(head_bytes_));
    head_bytes_ += taken;
    bytes = bytes.subspan(taken);
    if (head_bytes_ < head_.size()) break;
    head_bytes_ = 0;
    payload_bytes_left_ = uint64_t{head_[0]} << 16 | uint64_t{head_[1]} << 8 | head_[2];
    if (const Verdict verdict = OnFrame(now_ns); verdict != Verdict::kGood) return verdict;
  }
  return Verdict::kGood;
}

FrameGuard::Verdict FrameGuard::OnFrame(int64_t now_ns) {
  const uint32_t stream =
      (uint32_t{head_[5]} << 24 | uint32_t{head_[6]} << 16 | uint32_t{head_[7]} << 8 | head_[8]) &
      0x7FFFFFFF;
  switch (head_[3]) {
    case kHeaders: return OnHeaders(stream, /*is_new=*/true, now_ns);
    case kContinuation: return OnHeaders(stream, /*is_new=*/false, now_ns);
    case kData: return OnData(stream, now_ns);
    case kReset:
      End(stream);
      return resets_.Take(limits_.resets_max, limits_.resets_per_second, now_ns) ? Verdict::kGood
                                                                                 : Verdict::kResets;
    default:
      return control_frames_.Take(limits_.control_frames_max, limits_.control_frames_per_second,
                                  now_ns)
                 ? Verdict::kGood
                 : Verdict::kControlFrames;
  }
}

FrameGuard::Verdict FrameGuard::OnHeaders(uint32_t stream, bool is_new, int64_t now_ns) {
  if (is_new) block_bytes_ = block_frames_ = 0;
  block_bytes_ += payload_bytes_left_;
  ++block_frames_;
  if (block_bytes_ > limits_.header_block_bytes_max || block_frames_ > limits_.header_frames_max) {
    return Verdict::kHeaderBlock;
  }
  if (is_new && (head_[4] & kEndStream) != 0) {
    End(stream);
    return Verdict::kGood;
  }
  if (!is_new && !half_requests_.contains(stream)) return Verdict::kGood;
  return Keep(stream, kHeaderFrameBytes, now_ns);
}

FrameGuard::Verdict FrameGuard::OnData(uint32_t stream, int64_t now_ns) {
  const bool is_end = (head_[4] & kEndStream) != 0;
  if (payload_bytes_left_ == 0 && !is_end &&
      !control_frames_.Take(limits_.control_frames_max, limits_.control_frames_per_second,
                            now_ns)) {
    return Verdict::kControlFrames;
  }
  if (is_end) End(stream);
  if (!half_requests_.contains(stream)) return Verdict::kGood;
  return Keep(stream, payload_bytes_left_, now_ns);
}

FrameGuard::Verdict FrameGuard::Keep(uint32_t stream, uint64_t bytes, int64_t now_ns) {
  const auto [found, is_new] = half_requests_.try_emplace(stream, HalfRequest{.begin_ns = now_ns});
  if (is_new) bytes += kCallBytes;
  found->second.bytes += bytes;
  half_bytes_ += bytes;
  const uint64_t of_all = half_bytes_of_all_ += bytes;
  const bool is_scarce = of_all >= limits_.half_bytes_scarce;
  const bool is_much =
      half_bytes_ > (is_scarce ? limits_.half_bytes_max_when_scarce : limits_.half_bytes_max);
  return is_much || half_requests_.size() > limits_.half_requests_max ? Verdict::kHalfRequests
                                                                      : Verdict::kGood;
}

bool FrameGuard::IsOneTooOld(int64_t now_ns) {
  if (now_ns < next_look_ns_) return false;
  next_look_ns_ = now_ns + kLookEveryNs;
  return std::any_of(half_requests_.begin(), half_requests_.end(), [&](const auto& entry) {
    return now_ns - entry.second.begin_ns > limits_.half_request_ns_max;
  });
}

void FrameGuard::End(uint32_t stream) {
  const auto found = half_requests_.find(stream);
  if (found == half_requests_.end()) return;
  half_bytes_ -= found->second.bytes;
  half_bytes_of_all_ -= found->second.bytes;
  half_requests_.erase(found);
}

}  // namespace talweg::rpc
