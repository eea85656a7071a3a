// SPDX-License-Identifier: Apache-2.0
// The node's own sums: on this thread where gradients lie in host memory, in the GPUs' stage else.
#include <cstring>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/status/status.h"
#include "libs/telemetry/log.h"
#include "services/agent/agent.h"
#include "services/agent/combine.h"

namespace talweg::agent {
namespace {

// Between two looks at the network and the rings the reducer works on so much.
constexpr uint64_t kReduceBytesPerPass = 512 * kKiB;

}  // namespace

absl::Status Agent::OpenGpuFront() {
  std::string why;
  TALWEG_ASSIGN_OR_RETURN(gpu_platform_, OpenGpus(config_, &why));
  const bool is_fake = gpu_platform_ != nullptr && !config_.test_fake_gpus.empty();
  Log(is_fake ? LogLevel::kWarning : LogLevel::kInfo, "GPUs: ", why);
  return absl::OkStatus();
}

void Agent::Do(pipeline::ReduceSlice& effect) {
  if (gpus_ != nullptr && gpus_->stage().TakesPart(effect.target.tensor, effect.target.round)) {
    gpus_->stage().Reduce(effect);
  } else {
    reduces_.push_back(std::move(effect));
  }
}

int Agent::ReduceSome() {
  uint64_t bytes = 0;
  int count = 0;
  while (!reduces_.empty() && bytes < kReduceBytesPerPass) {
    const pipeline::ReduceSlice reduce = std::move(reduces_.front());
    reduces_.pop_front();
    ++count;
    if (!member_->ReduceWanted(reduce.ticket)) continue;
    if (!memory_->Shared(reduce.target.tensor)) bytes += reduce.target.length_bytes;
    RunReduce(reduce);
  }
  return count;
}

void Agent::RunReduce(const pipeline::ReduceSlice& reduce) {
  const pipeline::SliceBytes& target = reduce.target;
  if (memory_->Shared(target.tensor)) {
    // The round is over, and what is left is done where the bytes are wanted.
    return OnReduced(reduce.ticket, 0);
  }
  const pipeline::TensorSpec& spec = memory_->spec(target.tensor);
  std::vector<const std::byte*> inputs;
  for (const LocalRank rank : reduce.inputs) {
    inputs.push_back(memory_->Contribution(target, rank).data());
    TALWEG_CHECK(inputs.back() != nullptr);  // It pushed, so it has a buffer.
  }
  const std::span<std::byte> output = memory_->Writable(target);
  const bool traced = timeline_.Wants(target.round);
  const int64_t begin_ns = traced ? NowNs() : 0;
  CombineRanks(spec.collective.dtype, spec.collective.op, reduce.is_final, inputs, output);
  if (traced) timeline_.OnReduced(target.tensor, target.round, begin_ns, NowNs());
  OnReduced(reduce.ticket, target.length_bytes * inputs.size());
}

void Agent::Do(const pipeline::CopyOwn& effect) {
  pipeline::SliceBytes target = effect.source;
  target.memory = pipeline::Memory::kResult;
  const std::span<const std::byte> bytes = memory_->Readable(effect.source);
  if (!bytes.empty()) std::memcpy(memory_->Writable(target).data(), bytes.data(), bytes.size());
}

void Agent::OnGradientReady(LocalRank rank, pipeline::TensorIndex tensor, Round round,
                            int32_t priority) {
  OnRankPush({.rank = rank, .tensor = tensor, .round = round, .priority = priority});
}

void Agent::OnReduced(uint64_t ticket, uint64_t bytes) {
  bytes_reduced_ += bytes;
  Deliver([this, ticket](pipeline::Effects& out) { member_->OnReduced(ticket, NowNs(), out); });
}

void Agent::OnUnexported(LocalRank rank, uint32_t request) {
  desk_->ReplyUnexported(rank, request);
}

void Agent::OnEventsLost(LocalRank rank) { desk_->TellEventsLost(rank); }

void Agent::OnGpuFailed(const std::string& text) {
  // What a NIC still reads on a GPU that is lost nobody can vouch for.
  if (gpus_->stage().AnyDirect()) link_->CloseAll();
  OnRankFailure(text);
}

void Agent::OnGpuNote(const std::string& text) { Log(LogLevel::kWarning, "GPUs: ", text); }

}  // namespace talweg::agent
