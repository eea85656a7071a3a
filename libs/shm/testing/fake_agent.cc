// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/testing/fake_agent.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "libs/base/check.h"
#include "libs/base/counted.h"
#include "libs/base/descriptor.h"
#include "libs/base/signature_text.h"
#include "libs/shm/daemon/arrival_log.h"

namespace talweg::shm {
namespace {

constexpr auto kDeadline = std::chrono::seconds(60);
constexpr int kBeatEveryMs = kBeatEveryNs / 1'000'000;

struct Bf16 {
  uint16_t bits;
};

double ToWide(Bf16 value) {
  const uint32_t bits = uint32_t{value.bits} << 16;
  float out;
  std::memcpy(&out, &bits, sizeof(out));
  return out;
}
template <typename T>
T ToWide(T value)
  requires std::is_arithmetic_v<T>
{
  return value;
}
double ToWide(_Float16 value) { return static_cast<double>(value); }

template <typename T>
auto FromWide(auto value) {
  if constexpr (std::is_same_v<T, Bf16>) {
    // Rounds to nearest, and ties to even.
    const float narrow = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof(bits));
    return Bf16{static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
  } else {
    return static_cast<T>(value);
  }
}

template <typename Wide, typename Operation>
Wide Bitwise(Wide a, Wide b, Operation operation) {
  if constexpr (std::is_integral_v<Wide>) {
    return static_cast<Wide>(operation(a, b));
  } else {
    TALWEG_CHECK(!"an integer or a bool");
    return a;
  }
}

template <typename T>
void ReduceAs(Op op, const std::vector<std::span<const std::byte>>& inputs,
              std::span<std::byte> out) {
  const size_t count = out.size() / sizeof(T);
  for (size_t i = 0; i < count; ++i) {
    auto at = [&](size_t input) {
      T value;
      std::memcpy(&value, inputs[input].data() + i * sizeof(T), sizeof(T));
      return ToWide(value);
    };
    auto sum = at(0);
    using Wide = decltype(sum);
    for (size_t k = 1; k < inputs.size(); ++k) {
      const Wide value = at(k);
      switch (op) {
        case Op::kMin: sum = std::min(sum, value); break;
        case Op::kMax: sum = std::max(sum, value); break;
        case Op::kProduct: sum = static_cast<Wide>(1u * sum * value); break;
        case Op::kBitAnd: sum = Bitwise(sum, value, std::bit_and<>()); break;
        case Op::kBitOr: sum = Bitwise(sum, value, std::bit_or<>()); break;
        case Op::kBitXor: sum = Bitwise(sum, value, std::bit_xor<>()); break;
        default: sum = static_cast<Wide>(sum + value); break;
      }
    }
    if constexpr (std::is_floating_point_v<Wide>) {
      if (op == Op::kAverage) sum /= static_cast<Wide>(inputs.size());
    }
    const T result = FromWide<T>(sum);
    std::memcpy(out.data() + i * sizeof(T), &result, sizeof(T));
  }
}

void Reduce(DType dtype, Op op, const std::vector<std::span<const std::byte>>& inputs,
            std::span<std::byte> out) {
  switch (dtype) {
    case DType::kF32: return ReduceAs<float>(op, inputs, out);
    case DType::kF64: return ReduceAs<double>(op, inputs, out);
    case DType::kF16: return ReduceAs<_Float16>(op, inputs, out);
    case DType::kBF16: return ReduceAs<Bf16>(op, inputs, out);
    case DType::kI8: return ReduceAs<int8_t>(op, inputs, out);
    case DType::kU8:
    case DType::kBool: return ReduceAs<uint8_t>(op, inputs, out);
    case DType::kI16:
    case DType::kU16: return ReduceAs<uint16_t>(op, inputs, out);
    case DType::kI32:
    case DType::kU32: return ReduceAs<uint32_t>(op, inputs, out);
    case DType::kI64:
    case DType::kU64: return ReduceAs<uint64_t>(op, inputs, out);
    case DType::kUnspecified: break;
  }
  TALWEG_CHECK(false);
}

// Signed minimum and maximum need signed types; sums and products need types that wrap.
void ReduceAny(DType dtype, Op op, const std::vector<std::span<const std::byte>>& inputs,
               std::span<std::byte> out) {
  const bool ordered = op == Op::kMin || op == Op::kMax;
  if (ordered && dtype == DType::kI16) return ReduceAs<int16_t>(op, inputs, out);
  if (ordered && dtype == DType::kI32) return ReduceAs<int32_t>(op, inputs, out);
  if (ordered && dtype == DType::kI64) return ReduceAs<int64_t>(op, inputs, out);
  Reduce(dtype, op, inputs, out);
}

struct FakeTensor {
  RankDeclaration declaration;
  uint32_t by_rank = 0;
  TensorIndex index;
  std::array<ResultBuffer, 2> results;
  Location arrivals_location;
  ArrivalLog arrivals;
  std::optional<SharedPlace> shared;
  std::map<uint32_t, ContributionBuffer> contributions;  // By local rank.
  struct Push {
    RoundSignature signature = 0;
    std::vector<uint32_t> lengths;  // By part; empty: all are full.
  };
  std::map<uint32_t, Push> pushed;  // By local rank.
  Round completed;

  // The job is this node, so a rank's number in the job is its local rank.
  uint32_t RankAt(uint32_t place) const {
    return declaration.ranks.empty() ? place : declaration.ranks[place];
  }
  uint32_t root_place() const {
    uint32_t place = 0;
    while (RankAt(place) != declaration.root_rank) ++place;
    return place;
  }
  bool IsWorld() const { return declaration.ranks.empty(); }
  uint64_t Length(uint32_t rank, uint32_t part) const {
    const Push& push = pushed.at(rank);
    return push.lengths.empty() ? declaration.collective.part_bytes() : push.lengths[part];
  }
};

std::string Describe(const RankDeclaration& declaration) {
  std::string text = Describe(declaration.collective);
  if (declaration.collective.has_root()) text += ", root " + std::to_string(declaration.root_rank);
  for (const uint32_t rank : declaration.ranks) text += " " + std::to_string(rank);
  return text;
}

std::string Words(RoundSignature signature) {
  return signature == 0 ? "without a signature" : DescribeSignature(signature);
}

}  // namespace

class FakeAgent::Impl final : public RankEventSink {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {
    Outcome<std::unique_ptr<RankServer>> server = RankServer::Create(options_.server);
    if (!server.ok()) {
      std::fprintf(stderr, "fake agent: %s\n", server.failure().text.c_str());
      std::abort();
    }
    server_ = std::move(server).value();
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() override {
    Do([this] { stop_ = true; });
    thread_.join();
  }

  const Options& options() const { return options_; }

  // Runs `work` on the agent's thread and waits for it.
  void Do(const std::function<void()>& work) {
    std::unique_lock lock(mutex_);
    bool done = false;
    work_.push_back([&] {
      work();
      done = true;
    });
    TALWEG_CHECK(::eventfd_write(wake_.get(), 1) == 0);
    changed_.wait(lock, [&] { return done; });
  }

  void ReleaseRounds() {
    options_.holds_rounds = false;
    for (auto& [name, tensor] : tensors_) CompleteIfReady(tensor);
  }

  void HoldRounds() { options_.holds_rounds = true; }

  void Arrive(const std::string& name, uint64_t offset, uint64_t length,
              std::optional<std::byte> as) {
    FakeTensor& tensor = tensors_.at(name);
    TALWEG_CHECK(tensor.pushed.size() == tensor.declaration.rank_count);
    const Round round = tensor.completed.Next();
    std::vector<std::byte> sum(tensor.declaration.shape().total_bytes());
    SumInto(tensor, sum);
    if (as) std::fill(sum.begin(), sum.end(), *as);
    std::memcpy(tensor.results[round.value() & 1].bytes.data() + offset, sum.data() + offset,
                length);
    server_->PublishArrival(tensor.index, tensor.arrivals.Add(round, offset, length));
  }

  void AbortRound(const std::string& name, RankStatus status, const std::string& text) {
    FakeTensor& tensor = tensors_.at(name);
    Publish(tensor, status, text);
  }

  RankServer& server() { return *server_; }
  void set_paused(bool paused) { paused_ = paused; }

  Seen TakeSeen() {
    Seen seen = seen_;
    seen.counters = server_->counters();
    return seen;
  }

  void OnRankHello(RankConnectionId connection, const RankHello& hello) override {
    ++seen_.hellos;
    seen_.last_client_name = hello.client_name;
    asking_.emplace_back(connection, hello);
    if (options_.waits_for_all && asking_.size() < options_.server.local_rank_count) return;
    for (const auto& [id, asked] : std::exchange(asking_, {})) {
      server_->Welcome(id, {.rank = Rank(asked.local_rank.value()),
                            .size = options_.server.local_rank_count,
                            .local_size = options_.server.local_rank_count,
                            .node_rank = NodeRank(0),
                            .node_count = 1,
                            .job_name = options_.job_name});
      local_ranks_[id] = asked.local_rank.value();
    }
  }

  void OnRankDeclare(RankConnectionId connection, RequestId request,
                     const RankDeclaration& declaration) override {
    if (declaration.name == options_.unanswered_name) return;
    const uint32_t local_rank = local_ranks_.at(connection);
    const auto [it, is_new] = tensors_.try_emplace(declaration.name);
    FakeTensor& tensor = it->second;
    if (is_new) {
      tensor.declaration = declaration;
      tensor.by_rank = local_rank;
      tensor.index = TensorIndex(static_cast<uint32_t>(tensors_.size() - 1));
      if (tensor.index.value() >= options_.server.tensors_max) {
        server_->RefuseDeclaration(connection, request, RankStatus::kLimit,
                                   "tensor '" + declaration.name + "' is one too many");
        tensors_.erase(it);
        return;
      }
      const bool ranks_sum = options_.ranks_sum && tensor.IsWorld();
      const BufferShape shape = declaration.shape();
      if (ranks_sum) {
        Outcome<SharedPlace> place =
            server_->PlanContribution(shape, options_.knows_in_place && declaration.in_place);
        if (!place.ok()) {
          server_->RefuseDeclaration(connection, request, place.failure().status,
                                     place.failure().text);
          tensors_.erase(it);
          return;
        }
        tensor.shared = place.value();
      }
      const bool one_place = options_.one_place && declaration.one_place;
      if (one_place) {
        Outcome<ResultBuffer> place = server_->AllocateOnePlace(connection, shape.total_bytes());
        TALWEG_CHECK(place.ok() && options_.server.local_rank_count == 1);
        TALWEG_CHECK(place.value().unbacked.Back().ok());
        tensor.results = {place.value(), place.value()};
        tensor.contributions[local_rank] = {place.value().location, place.value().bytes};
      }
      for (ResultBuffer& result : tensor.results) {
        if (ranks_sum || one_place) break;
        Outcome<ResultBuffer> buffer = server_->AllocateResult(shape.total_bytes());
        if (!buffer.ok()) {
          server_->RefuseDeclaration(connection, request, buffer.failure().status,
                                     buffer.failure().text);
          tensors_.erase(it);
          return;
        }
        result = buffer.value();
        TALWEG_CHECK(result.unbacked.Back().ok());
      }
      const uint64_t log_bytes = ArrivalsBytes(declaration.bytes());
      if (options_.tells_arrivals && !ranks_sum && log_bytes > 0) {
        const Outcome<ResultBuffer> log = server_->AllocateResult(log_bytes);
        TALWEG_CHECK(log.ok() && log.value().unbacked.Back().ok());
        tensor.arrivals_location = log.value().location;
        tensor.arrivals = ArrivalLog(log.value().bytes);
      }
    }
    const RankDeclaration& agreed = tensor.declaration;
    if (agreed.collective != declaration.collective || agreed.root_rank != declaration.root_rank ||
        agreed.ranks != declaration.ranks) {
      server_->RefuseDeclaration(connection, request, RankStatus::kMismatch,
                                 "tensor '" + declaration.name + "': rank " +
                                     std::to_string(tensor.by_rank) + " declared " +
                                     Describe(agreed) + ", rank " + std::to_string(local_rank) +
                                     " declares " + Describe(declaration));
      return;
    }
    if (!tensor.contributions.contains(local_rank)) {
      Outcome<ContributionBuffer> buffer = Contribution(connection, tensor);
      if (!buffer.ok()) {
        server_->RefuseDeclaration(connection, request, buffer.failure().status,
                                   buffer.failure().text);
        return;
      }
      tensor.contributions[local_rank] = buffer.value();
    }
    server_->ReplyDeclared(connection, request,
                           {.tensor = tensor.index,
                            .tensor_bytes = declaration.bytes(),
                            .completed_round = tensor.completed,
                            .contribution = tensor.contributions[local_rank].location,
                            .result = {tensor.results[0].location, tensor.results[1].location},
                            .arrivals = tensor.arrivals_location,
                            .shared = tensor.shared});
    by_index_[tensor.index.value()] = &tensor;
  }

  void OnRankPush(RankConnectionId, const PushedRound& push) override {
    ++seen_.pushes;
    FakeTensor& tensor = *by_index_.at(push.tensor.value());
    TALWEG_CHECK(push.round == tensor.completed.Next());
    tensor.pushed[push.local_rank.value()] = {
        push.signature, std::vector<uint32_t>(push.lengths.begin(), push.lengths.end())};
    CompleteIfReady(tensor);
  }

  void OnRankGone(RankConnectionId connection, const RankGone& gone) override {
    ++(gone.clean ? seen_.gone_clean : seen_.gone_unclean);
    seen_.last_gone = gone.text;
    for (auto& [name, tensor] : tensors_) tensor.contributions.erase(gone.local_rank.value());
    std::erase_if(asking_, [&](const auto& asked) { return asked.first == connection; });
    server_->Release(connection);
    if (!gone.clean) server_->FailAll(RankStatus::kJobFailed, "the job has failed: " + gone.text);
  }

 private:
  Outcome<ContributionBuffer> Contribution(RankConnectionId connection, const FakeTensor& tensor) {
    if (!tensor.shared) {
      Outcome<ContributionBuffer> buffer =
          server_->AllocateContribution(connection, tensor.declaration.shape().total_bytes());
      if (buffer.ok()) TALWEG_CHECK(buffer.value().unbacked.Back().ok());
      return buffer;
    }
    Outcome<Location> location = server_->PlaceContribution(connection, *tensor.shared);
    if (!location.ok()) return location.failure();
    return ContributionBuffer{location.value(), {}};
  }

  void CompleteIfReady(FakeTensor& tensor) {
    const uint32_t count = tensor.declaration.rank_count;
    if (options_.holds_rounds || tensor.pushed.size() < count) return;
    if (tensor.contributions.size() < count) return;
    if (!tensor.shared) {
      if (const std::string difference = Difference(tensor); !difference.empty()) {
        return Publish(tensor, RankStatus::kMismatch, difference);
      }
      SumInto(tensor, tensor.results[tensor.completed.Next().value() & 1].bytes);
    }
    Publish(tensor, RankStatus::kOk, "");
  }

  // Returns the first two ranks that have said different things, and what they said; "" if there
  // are none. Ranks that sum compare for themselves.
  static std::string Difference(const FakeTensor& tensor) {
    const Collective& collective = tensor.declaration.collective;
    uint32_t first = tensor.RankAt(0);
    for (const auto& [rank, push] : tensor.pushed) {
      if (tensor.pushed.at(first).signature == kFitsAll) first = rank;
    }
    for (const auto& [rank, push] : tensor.pushed) {
      const std::string who = "rank " + std::to_string(first) + " has pushed ";
      const std::string other = ", rank " + std::to_string(rank) + " has pushed ";
      const RoundSignature signature = tensor.pushed.at(first).signature;
      if (!Fit(push.signature, signature))
        return who + Words(signature) + other + Words(push.signature);
      if (collective.copies()) continue;
      for (uint32_t part = 0; part < tensor.declaration.shape().part_count; ++part) {
        const uint64_t bytes = tensor.Length(first, part);
        if (tensor.Length(rank, part) == bytes) continue;
        return who + Counted(bytes, "byte") + other + Counted(tensor.Length(rank, part), "byte");
      }
    }
    return "";
  }

  // Sums each part as its collective says, and writes the table of lengths.
  static void SumInto(const FakeTensor& tensor, std::span<std::byte> out) {
    const RankDeclaration& declaration = tensor.declaration;
    const Collective& collective = declaration.collective;
    const BufferShape shape = declaration.shape();
    const uint32_t root = collective.has_root() ? tensor.root_place() : 0;
    for (uint32_t part = 0; part < shape.part_count; ++part) {
      std::vector<std::span<const std::byte>> inputs;
      uint64_t bytes = 0;
      for (uint32_t place = 0; place < declaration.rank_count; ++place) {
        if (!collective.Gives(part, place, declaration.rank_count, root)) continue;
        const uint32_t rank = tensor.RankAt(place);
        bytes = tensor.Length(rank, part);
        inputs.push_back(
            tensor.contributions.at(rank).bytes.subspan(shape.part_offset(part), bytes));
      }
      const std::span<std::byte> to = out.subspan(shape.part_offset(part), bytes);
      if (collective.copies()) {
        TALWEG_CHECK(inputs.size() == 1);
        std::copy(inputs[0].begin(), inputs[0].end(), to.begin());
      } else {
        ReduceAny(collective.dtype, collective.op, inputs, to);
      }
      const auto length = static_cast<uint32_t>(bytes);
      std::memcpy(out.data() + shape.table_offset() + part * sizeof(length), &length,
                  sizeof(length));
    }
  }

  void Publish(FakeTensor& tensor, RankStatus status, const std::string& text) {
    tensor.completed = tensor.completed.Next();
    const uint64_t ranks = tensor.pushed.size();
    tensor.pushed.clear();
    server_->PublishCompletion({.tensor = tensor.index,
                                .round = tensor.completed,
                                .status = status,
                                .text = text,
                                .ranks_summed = ranks,
                                .sum_epoch = Epoch(1)});
  }

  void Run() {
    while (!stop_) {
      const int handled = paused_ ? 0 : server_->Poll(*this);
      if (!paused_) server_->Beat();
      using Until = RankServer::Until;
      const Until until = options_.ranks_sum ? Until::kAwaited : Until::kPushed;
      if (handled == 0 && (paused_ || server_->PrepareToSleep(until))) {
        std::array<pollfd, 2> fds = {pollfd{wake_.get(), POLLIN, 0},
                                     pollfd{server_->WaitDescriptor(), POLLIN, 0}};
        // Without beats only a doorbell ends this wait, so a missing one shows.
        ::poll(fds.data(), paused_ ? 1 : 2, options_.server.silence_ms == 0 ? -1 : kBeatEveryMs);
      }
      DoWork();
    }
    server_.reset();
  }

  void DoWork() {
    eventfd_t count;
    ::eventfd_read(wake_.get(), &count);
    const std::unique_lock lock(mutex_);
    if (work_.empty()) return;
    for (const auto& work : std::exchange(work_, {})) work();
    changed_.notify_all();
  }

  Options options_;
  std::unique_ptr<RankServer> server_;
  Descriptor wake_;
  std::vector<std::pair<RankConnectionId, RankHello>> asking_;
  std::map<RankConnectionId, uint32_t> local_ranks_;
  std::map<std::string, FakeTensor> tensors_;
  std::map<uint32_t, FakeTensor*> by_index_;
  Seen seen_;
  bool stop_ = false;
  bool paused_ = false;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::function<void()>> work_;
  std::thread thread_;
};

FakeAgent::FakeAgent(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
FakeAgent::~FakeAgent() = default;

const std::string& FakeAgent::socket_path() const { return impl_->options().server.socket_path; }

void FakeAgent::ReleaseRounds() {
  impl_->Do([this] { impl_->ReleaseRounds(); });
}

void FakeAgent::HoldRounds() {
  impl_->Do([this] { impl_->HoldRounds(); });
}

void FakeAgent::Arrive(const std::string& tensor, uint64_t offset_bytes, uint64_t length_bytes,
                       std::optional<std::byte> as) {
  impl_->Do([&] { impl_->Arrive(tensor, offset_bytes, length_bytes, as); });
}

void FakeAgent::AbortRound(const std::string& tensor, RankStatus status, const std::string& text) {
  impl_->Do([&] { impl_->AbortRound(tensor, status, text); });
}

void FakeAgent::FailAll(RankStatus status, const std::string& text) {
  impl_->Do([&] { impl_->server().FailAll(status, text); });
}

void FakeAgent::Pause() {
  impl_->Do([this] { impl_->set_paused(true); });
}

void FakeAgent::Resume() {
  impl_->Do([this] { impl_->set_paused(false); });
}

FakeAgent::Seen FakeAgent::seen() {
  Seen seen;
  impl_->Do([&] { seen = impl_->TakeSeen(); });
  return seen;
}

void FakeAgent::WaitUntil(const std::function<bool(const Seen&)>& done) {
  const auto give_up = std::chrono::steady_clock::now() + kDeadline;
  while (!done(seen())) {
    if (std::chrono::steady_clock::now() > give_up) {
      std::fprintf(stderr, "fake agent: what the test waits for has not come\n");
      std::abort();
    }
    std::this_thread::yield();
  }
}

}  // namespace talweg::shm
