// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_SHM_LAYOUT_RANK_STATUS_H_
#define TALWEG_LIBS_SHM_LAYOUT_RANK_STATUS_H_

#include <cstdint>

namespace talweg::shm {

// The outcome of a rank's call. The values are part of shared memory, of the socket's messages and
// of the C ABI (talweg_status in clients/c/talweg.h): new ones are appended, none is renumbered.
enum class RankStatus : uint32_t {
  kOk = 0,
  kTimeout = 1,            // The caller's deadline has passed; the round stays open.
  kInvalidArgument = 2,    // The call makes no sense; it had no effect.
  kMismatch = 3,           // Ranks disagree on a tensor; the text names both sides.
  kBusy = 4,               // The tensor's last round has not been taken yet.
  kJobFailed = 5,          // The job is over; the text says why.
  kAgentLost = 6,          // The agent's end of the socket is closed.
  kForked = 7,             // The client belongs to the parent process.
  kVersionMismatch = 8,    // The agent speaks another major version; the text names both.
  kOutOfMemory = 9,        // A limit of memory is reached; the text names it.
  kUnsupported = 10,       // Known, but not to this agent, dtype or operation.
  kAborted = 11,           // The round was given up for all ranks.
  kNoAgent = 12,           // Nobody listens at the socket's path.
  kPermissionDenied = 13,  // The agent does not serve this user, or the socket may not be opened.
  kRankTaken = 14,         // Another process holds the wanted local rank, or all are taken.
  kClosed = 15,            // The client has been shut down.
  kLimit = 16,             // A configured limit (tensors, ranks, descriptors); the text names it.
  kPending = 17,           // The round is not complete yet (poll).
  kProtocol = 18,          // The other side sent something that is not a message.
  kInternal = 19,          // A defect of ours.
  kEventsLost = 20,        // GPU events were lost: place the tensor and push the round again.
};

inline constexpr uint32_t kRankStatusCount = 21;

// "kOk" -> "ok": a short name, static storage. "unknown" for a value that is no status.
constexpr const char* RankStatusName(RankStatus status) {
  switch (status) {
    case RankStatus::kOk: return "ok";
    case RankStatus::kTimeout: return "timeout";
    case RankStatus::kInvalidArgument: return "invalid argument";
    case RankStatus::kMismatch: return "mismatch";
    case RankStatus::kBusy: return "busy";
    case RankStatus::kJobFailed: return "job failed";
    case RankStatus::kAgentLost: return "agent lost";
    case RankStatus::kForked: return "forked";
    case RankStatus::kVersionMismatch: return "version mismatch";
    case RankStatus::kOutOfMemory: return "out of memory";
    case RankStatus::kUnsupported: return "unsupported";
    case RankStatus::kAborted: return "aborted";
    case RankStatus::kNoAgent: return "no agent";
    case RankStatus::kPermissionDenied: return "permission denied";
    case RankStatus::kRankTaken: return "rank taken";
    case RankStatus::kClosed: return "closed";
    case RankStatus::kLimit: return "limit";
    case RankStatus::kPending: return "pending";
    case RankStatus::kProtocol: return "protocol error";
    case RankStatus::kInternal: return "internal error";
    case RankStatus::kEventsLost: return "events lost";
  }
  return "unknown";
}

}  // namespace talweg::shm

#endif  // TALWEG_LIBS_SHM_LAYOUT_RANK_STATUS_H_
