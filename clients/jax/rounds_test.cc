// SPDX-License-Identifier: Apache-2.0
#include "clients/jax/rounds.h"

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::jax {
namespace {

constexpr std::array<double, 2> kNoFactors{1, 1};

// An f32 sum of three elements, of whole shares.
std::vector<int64_t> Numbers() { return {1, 1, 1, 1, 0, 7, 3, 0, 1, 1, 5, 0, 12, 12}; }

}  // namespace

TEST_CASE("Call: it reads what talweg.jax writes", "[jax]") {
  std::vector<int64_t> numbers{1, 6, 3, 1, 2, -4, 10, 2, 1, 2, -2, 1, 0, 5, 40, 40, 24};
  const std::optional<Call> call = Call::From("w", numbers, std::array<double, 2>{0.5, 2});

  REQUIRE(call.has_value());
  CHECK(call->name == "w");
  CHECK(call->dtype == TALWEG_F32);
  CHECK(call->op == TALWEG_COPY);
  CHECK(call->gives == TALWEG_SHARE_OWN);
  CHECK(call->gets == TALWEG_SHARE_WHOLE);
  CHECK(call->root_rank == 2);
  CHECK(call->priority == -4);
  CHECK(call->element_count == 10);
  CHECK(call->ranks == std::vector<uint32_t>{0, 5});
  CHECK(call->signature == ~uint64_t{1});
  CHECK(call->compares);
  CHECK(call->GivenBytes() == 40);
  CHECK(call->got == std::vector<uint64_t>{40, 24});
  CHECK(call->prescale == 0.5);
  CHECK(call->postscale == 2);
}

TEST_CASE("Call: numbers that do not fit together are refused", "[jax]") {
  std::vector<int64_t> numbers = Numbers();
  REQUIRE(Call::From("w", numbers, kNoFactors).has_value());
  CHECK(!Call::From("w", numbers, std::array<double, 1>{1}).has_value());
  for (const int64_t ranks : {int64_t{1}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    numbers[7] = ranks;
    CHECK(!Call::From("w", numbers, kNoFactors).has_value());
  }
  for (size_t length = 0; length < Numbers().size(); ++length) {
    numbers = Numbers();
    numbers.resize(length);
    CHECK(!Call::From("w", numbers, kNoFactors).has_value());
  }
}

TEST_CASE("Rounds: a lone rank gets what it gives, scaled, and only once", "[jax]") {
  Rounds rounds;
  rounds.Use(nullptr, /*alone=*/true);
  const std::array<float, 3> given{1, 2, 3};
  const uint64_t ticket =
      rounds.Start(*Call::From("w", Numbers(), std::array<double, 2>{2, 5}), given.data());

  std::optional<OpenRound> round = rounds.Take(ticket);
  REQUIRE(round.has_value());
  CHECK(round->IsOver());
  std::array<float, 3> got{};
  REQUIRE(round->Collect(got.data()).ok());
  CHECK(got == std::array<float, 3>{10, 20, 30});
  CHECK(!rounds.Take(ticket).has_value());
}

TEST_CASE("Rounds: without a job the collection names the function to call", "[jax]") {
  Rounds rounds;
  const std::array<float, 3> given{};
  const uint64_t ticket = rounds.Start(*Call::From("w", Numbers(), kNoFactors), given.data());

  std::optional<OpenRound> round = rounds.Take(ticket);
  REQUIRE(round.has_value());
  std::array<float, 3> got{};
  const Outcome outcome = round->Collect(got.data());
  CHECK(outcome.status == TALWEG_CLOSED);
  CHECK(outcome.text ==
        "'w': Talweg is not initialized in this process: call talweg.jax.init() first");
}

}  // namespace talweg::jax
