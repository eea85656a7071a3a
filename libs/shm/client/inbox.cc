// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/inbox.h"

#include <cstdio>
#include <cstring>
#include <variant>

#include "libs/shm/layout/control.h"

namespace talweg::shm {
namespace {

constexpr char kCannotTake[] = "what the agent at '%s' gives cannot be taken: %s";

}  // namespace

void Inbox::Read() {
  Message message;
  const char* reason = nullptr;
  while (!health_.is_lost(std::memory_order_relaxed)) {
    switch (link_.socket().Next(&message, &reason)) {
      case AgentSocket::Received::kNothing: return;
      case AgentSocket::Received::kEnded:
        health_.Lose(RankStatus::kAgentLost,
                     "the agent at '%s' has ended (its end of the socket is closed)%s", "");
        return;
      case AgentSocket::Received::kInvalid:
        health_.Lose(RankStatus::kProtocol,
                     "what came from '%s' is not a message of a Talweg agent: %s", reason);
        return;
      case AgentSocket::Received::kLimit:
        health_.Lose(RankStatus::kLimit, kCannotTake, reason);
        return;
      case AgentSocket::Received::kMessage: break;
    }
    if (const auto* declared = std::get_if<Declared>(&message.body)) {
      TakeDeclared(message, *declared);
    } else if (std::holds_alternative<Exported>(message.body) ||
               std::holds_alternative<Unexported>(message.body) ||
               std::holds_alternative<Placed>(message.body)) {
      answers_.TakeDeviceAnswer(message);
    } else if (const auto* membership = std::get_if<RankMembership>(&message.body)) {
      answers_.TakeMembership(message, *membership);
    } else if (const auto* told = std::get_if<Told>(&message.body)) {
      answers_.TakeTold(message, *told);
    } else if (const auto* welcome = std::get_if<Welcome>(&message.body)) {
      admission_.Take(*welcome);
    } else if (const auto* peer = std::get_if<Peer>(&message.body)) {
      LoseUnlessTaken(memory_.AdoptPeer(*peer),
                      "what the agent at '%s' says of another rank's memory makes no sense: %s");
    } else if (std::holds_alternative<Goodbye>(message.body)) {
      goodbye_.store(true);
    } else if (std::holds_alternative<Wake>(message.body)) {
      if (!link_.is_admitted()) continue;
      // Before the caller looks at the tensors again: the agent sends the next Wake only after
      // this.
      link_.control().rank_line().wakes_seen.store(++wakes_seen_, std::memory_order_seq_cst);
    } else if (const auto* lost = std::get_if<Lost>(&message.body)) {
      // The control segment says the same. The socket is still read, because a goodbye is still
      // answered.
      RankStatus over = RankStatus::kOk;
      if (link_.is_admitted() && health_.Over(&over)) continue;
      char text[kTextBytesMax + 1];
      std::snprintf(text, sizeof(text), "%.*s", TALWEG_SHM_PRINTED(lost->text));
      const auto value = static_cast<uint32_t>(lost->status);
      health_.Lose(value != 0 && value < kRankStatusCount ? lost->status : RankStatus::kJobFailed,
                   "the agent at '%s' says: %s", text);
      return;
    }
  }
}

void Inbox::TakeDeclared(const Message& message, const Declared& declared) {
  Problem wrong;
  {
    const MutexLock lock(state_mutex_);
    PendingAnswer* const pending = answers_.Find(message.request);
    for (uint32_t i = 0; i < declared.segment_count && wrong.status == RankStatus::kOk; ++i) {
      wrong = memory_.AdoptSegment(declared.segments[i]);
    }
    // A caller that has given up waiting asks again.
    if (pending != nullptr && wrong.status == RankStatus::kOk) {
      if (declared.status == RankStatus::kOk) {
        const char* const differs = pending->declare == nullptr
                                        ? "the question was another"
                                        : tensors_.Adopt(declared, *pending->declare);
        if (differs != nullptr) wrong = {RankStatus::kProtocol, differs};
      }
      pending->status = declared.status;
      pending->declared = declared;
      std::memcpy(pending->text, declared.text.data(), declared.text.size());
      pending->text[declared.text.size()] = '\0';
      if (wrong.status == RankStatus::kOk) pending->done.store(true);
    }
  }
  LoseUnlessTaken(wrong, "the answer of the agent at '%s' to a declaration makes no sense: %s");
}

void Inbox::LoseUnlessTaken(const Problem& wrong, const char* makes_no_sense) {
  if (wrong.status == RankStatus::kOk) return;
  health_.Lose(wrong.status, wrong.status == RankStatus::kProtocol ? makes_no_sense : kCannotTake,
               wrong.text);
}

}  // namespace talweg::shm
