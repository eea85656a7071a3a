// SPDX-License-Identifier: Apache-2.0
//
// The library's exported functions: two handlers that XLA calls, and the functions that Python
// calls.

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "clients/c/talweg.h"
#include "clients/jax/collection.h"
#include "clients/jax/frame.h"
#include "clients/jax/rounds.h"
#include "clients/jax/xla_ffi.h"

namespace talweg::jax {
namespace {

#define TALWEG_JAX_EXPORT __attribute__((visibility("default")))

// It is never destroyed: XLA's threads outlive static objects.
Rounds& ProcessRounds() {
  static Rounds* const rounds = new Rounds;
  return *rounds;
}

xla::Error* NoCall(const xla::CallFrame& frame, const char* what) {
  return MakeError(*frame.api, xla::ErrorCode::kInternal,
                   std::string("Talweg (status 19, internal): ") + what +
                       ": the program was not written by this release of talweg.jax; compile it "
                       "again");
}

// The argument is what this rank gives, or nothing if it gives nothing. The result is the round's
// ticket.
xla::Error* Start(xla::CallFrame& frame) {
  const auto name = StringAttribute(frame, "name");
  const auto numbers = IntegersAttribute(frame, "call");
  const auto factors = NumbersAttribute(frame, "factors");
  const xla::Buffer* ticket = BufferAt(frame.results, 0);
  if (!name || !numbers || !factors || ticket == nullptr) {
    return NoCall(frame, "a call without name, numbers, factors or ticket");
  }
  std::optional<Call> call = Call::From(*name, *numbers, *factors);
  if (!call) {
    return NoCall(frame, "a call of other numbers");
  }
  const xla::Buffer* given = BufferAt(frame.arguments, 0);
  const uint64_t number =
      ProcessRounds().Start(*std::move(call), given == nullptr ? nullptr : given->data);
  std::memcpy(ticket->data, &number, sizeof(number));
  return nullptr;
}

// The arguments are tickets, and the results are what each of their rounds gives. Returns before
// the rounds are over.
xla::Error* Collect(xla::CallFrame& frame) {
  auto collection = std::make_unique<Collection>(*frame.api);
  for (int64_t index = 0;; ++index) {
    const xla::Buffer* ticket = BufferAt(frame.arguments, index);
    if (ticket == nullptr) {
      break;
    }
    const xla::Buffer* result = BufferAt(frame.results, index);
    uint64_t number = 0;
    std::memcpy(&number, ticket->data, sizeof(number));
    std::optional<OpenRound> round = ProcessRounds().Take(number);
    if (!round) {  // The other rounds are collected all the same.
      round.emplace().start = {.status = TALWEG_INVALID_ARGUMENT,
                               .text =
                                   "a handle of push_pull_async() was collected already: keep "
                                   "the results of synchronize()"};
    }
    if (result == nullptr) {
      return NoCall(frame, "a ticket without a result");
    }
    collection->Add(*std::move(round), result->data);
  }
  return Collection::Run(std::move(collection), &frame.future);
}

xla::Error* Handle(xla::CallFrame* frame, xla::Error* (*execute)(xla::CallFrame&)) {
  if (AnswersMetadata(*frame) || frame->stage != xla::Stage::kExecute) {
    return nullptr;
  }
  return execute(*frame);
}

}  // namespace

extern "C" {

TALWEG_JAX_EXPORT xla::Error* talweg_jax_start(xla::CallFrame* frame) {
  return Handle(frame, Start);
}

TALWEG_JAX_EXPORT xla::Error* talweg_jax_collect(xla::CallFrame* frame) {
  return Handle(frame, Collect);
}

// Makes the client do all rounds from now on. Null: rounds fail, or are those of a lone rank.
TALWEG_JAX_EXPORT void talweg_jax_use(talweg_client* client, int alone) {
  ProcessRounds().Use(client, alone != 0);
}

// Returns the versions that these handlers were built for, and those of the XLA that has registered
// one of them: major and minor version, bytes of a call's frame, bytes of the table of functions.
// XLA's are -1 before a registration.
TALWEG_JAX_EXPORT void talweg_jax_versions(int64_t own[4], int64_t of_xla[4]) {
  own[0] = xla::kMajorVersion;
  own[1] = xla::kMinorVersion;
  own[2] = xla::kCallFrameBytes;
  own[3] = sizeof(xla::Api);
  const XlaVersion version = VersionOfXla();
  of_xla[0] = version.major_version;
  of_xla[1] = version.minor_version;
  of_xla[2] = static_cast<int64_t>(version.frame_bytes);
  of_xla[3] = static_cast<int64_t>(version.api_bytes);
}

}  // extern "C"

}  // namespace talweg::jax
