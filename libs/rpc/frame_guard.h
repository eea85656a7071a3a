// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RPC_FRAME_GUARD_H_
#define TALWEG_LIBS_RPC_FRAME_GUARD_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

namespace talweg::rpc {

// The limits of one connection of a gRPC server (docs/quotas.md, "Frames").
struct FrameLimits {
  // The metadata of one call, as HTTP/2 packs it. gRPC limits each of its frames to 8 KiB unpacked.
  size_t header_block_bytes_max = 16 << 10;
  size_t header_frames_max = 4;
  // Calls whose requests are not complete, and the bytes that the process keeps for them.
  size_t half_requests_max = 256;
  int64_t half_request_ns_max = 60'000'000'000;
  uint64_t half_bytes_max = 16 << 20;
  // Used instead of half_bytes_max while all connections together keep half_bytes_scarce or more.
  uint64_t half_bytes_max_when_scarce = 128 << 10;
  uint64_t half_bytes_scarce = 32 << 20;
  // Calls that the client resets: at once, and per second.
  uint32_t resets_max = 256;
  uint32_t resets_per_second = 128;
  // Frames that carry no part of a request: PING, SETTINGS, WINDOW_UPDATE, empty DATA and others.
  uint32_t control_frames_max = 65'536;
  uint32_t control_frames_per_second = 4096;
};

// The bytes that the process keeps for incomplete requests of all connections. Any thread.
using HalfBytes = std::atomic<uint64_t>;

// Reads the headers of a client's HTTP/2 frames before gRPC does, and says when the connection must
// end. gRPC 1.51 has none of these limits.
//
// No clock, lock or gRPC. One owner, or one lock around it.
class FrameGuard {
 public:
  enum class Verdict : uint8_t {
    kGood,
    kHeaderBlock,   // The metadata is too long, or comes in too many frames.
    kHalfRequests,  // Too many incomplete requests, or too many bytes of them.
    kSlowRequest,   // A request was not complete in time.
    kResets,
    kControlFrames,
  };

  // Both outlive this object.
  FrameGuard(const FrameLimits* limits, HalfBytes* half_bytes_of_all);
  // Takes this connection's bytes off `half_bytes_of_all`.
  ~FrameGuard();
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;

  // Checks the next bytes from the client. Unless it returns kGood, gRPC must see neither them nor
  // any later bytes. Time limits are checked only when a client sends; the server's PINGs make it
  // send something.
  Verdict OnBytes(std::span<const uint8_t> bytes, int64_t now_ns);

  uint64_t half_bytes() const { return half_bytes_; }

 private:
  // A limit at once, which time refills.
  struct Bucket {
    double level = 0;  // Taken and not refilled yet.
    int64_t at_ns = 0;
    bool Take(uint32_t count_max, uint32_t per_second, int64_t now_ns);
  };

  struct HalfRequest {
    uint64_t bytes = 0;  // The bytes that the process is assumed to keep for it.
    int64_t begin_ns;
  };

  Verdict OnFrame(int64_t now_ns);
  Verdict OnHeaders(uint32_t stream, bool is_new, int64_t now_ns);
  Verdict OnData(uint32_t stream, int64_t now_ns);
  Verdict Keep(uint32_t stream, uint64_t bytes, int64_t now_ns);
  bool IsOneTooOld(int64_t now_ns);
  void End(uint32_t stream);

  const FrameLimits& limits_;
  HalfBytes& half_bytes_of_all_;

  size_t preface_bytes_left_;
  std::array<uint8_t, 9> head_{};
  size_t head_bytes_ = 0;
  uint64_t payload_bytes_left_ = 0;

  // The current block of metadata, or the last one.
  size_t block_bytes_ = 0;
  size_t block_frames_ = 0;
  std::map<uint32_t, HalfRequest> half_requests_;  // By stream.
  int64_t next_look_ns_ = 0;                       // When their ages are checked again.
  uint64_t half_bytes_ = 0;
  Bucket resets_;
  Bucket control_frames_;
};

// For messages.
const char* Text(FrameGuard::Verdict verdict);

}  // namespace talweg::rpc

#endif  // TALWEG_LIBS_RPC_FRAME_GUARD_H_
