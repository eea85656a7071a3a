// SPDX-License-Identifier: Apache-2.0
#include "libs/status/status.h"

#include <cerrno>
#include <memory>

#include <catch2/catch.hpp>

namespace talweg::status {
namespace {

absl::StatusOr<std::unique_ptr<int>> Make(bool fail) {
  if (fail) return absl::NotFoundError("no such number");
  return std::make_unique<int>(7);
}

absl::Status Check(bool fail, int& reached) {
  TALWEG_RETURN_IF_ERROR(Make(fail));
  TALWEG_RETURN_IF_ERROR(absl::OkStatus());
  ++reached;
  TALWEG_RETURN_IF_ERROR(absl::AbortedError("stop"));
  ++reached;
  return absl::OkStatus();
}

absl::StatusOr<int> Sum(bool fail_second) {
  TALWEG_ASSIGN_OR_RETURN(std::unique_ptr<int> first, Make(false));
  TALWEG_ASSIGN_OR_RETURN(const auto second, Make(fail_second));
  return *first + *second;
}

TEST_CASE("TALWEG_RETURN_IF_ERROR leaves at the first failure", "[status]") {
  int reached = 0;
  CHECK(Check(true, reached) == absl::NotFoundError("no such number"));
  CHECK(reached == 0);
  CHECK(Check(false, reached) == absl::AbortedError("stop"));
  CHECK(reached == 1);
}

TEST_CASE("TALWEG_ASSIGN_OR_RETURN moves the value or leaves", "[status]") {
  CHECK(Sum(false).value() == 14);
  CHECK(Sum(true).status() == absl::NotFoundError("no such number"));
}

TEST_CASE("ErrnoStatus names the call and the system's reason", "[status]") {
  const absl::Status status = ErrnoStatus(EADDRINUSE, "bind 127.0.0.1:7447");
  CHECK(status.code() == absl::StatusCode::kAlreadyExists);
  CHECK(StatusText(status) == "ALREADY_EXISTS: bind 127.0.0.1:7447: Address already in use");
}

TEST_CASE("Annotate keeps the code", "[status]") {
  CHECK(Annotate(absl::OkStatus(), "opening") == absl::OkStatus());
  CHECK(Annotate(absl::DataLossError("torn"), "opening the store") ==
        absl::DataLossError("opening the store: torn"));
}

}  // namespace
}  // namespace talweg::status
