// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/host_lookup.h"

#include <future>
#include <memory>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::runtime {
namespace {

TEST_CASE("HostLookup: names become literal addresses", "[runtime]") {
  const auto localhost = LookUpHost("localhost");
  REQUIRE(localhost.ok());
  CHECK(IsLiteralAddress(*localhost));
  CHECK((*localhost == "127.0.0.1" || *localhost == "::1"));
}

TEST_CASE("HostLookup: the error names a name that does not resolve", "[runtime]") {
  const auto nobody = LookUpHost("no-such-host.invalid");
  REQUIRE(absl::IsNotFound(nobody.status()));
  CHECK(std::string(nobody.status().message()).find("'no-such-host.invalid' does not resolve") !=
        std::string::npos);
}

TEST_CASE("HostLookup: a literal address needs no lookup", "[runtime]") {
  for (const char* literal : {"127.0.0.1", "::1", "fe80::1%lo", "2001:db8::7"}) {
    CHECK(IsLiteralAddress(literal));
  }
  for (const char* name : {"localhost", "10.0.0", "10.0.0.1.example", "", "[::1]"}) {
    CHECK_FALSE(IsLiteralAddress(name));
  }
}

TEST_CASE("HostLookup: lookups run one after the other, while the caller goes on", "[runtime]") {
  std::promise<void> let_go;
  const std::shared_future<void> released = let_go.get_future().share();
  HostLookup lookup([released](const std::string& host) -> absl::StatusOr<std::string> {
    released.wait();
    return host + "!";
  });
  std::vector<std::string> found;
  std::promise<void> both;
  lookup.Start("a", [&](const auto& literal) { found.push_back(*literal); });
  lookup.Start("b", [&](const auto& literal) {
    found.push_back(*literal);
    both.set_value();
  });
  let_go.set_value();  // Start() has returned before the lookup could.
  both.get_future().wait();
  CHECK(found == std::vector<std::string>{"a!", "b!"});
}

TEST_CASE("HostLookup: its destruction waits for no name server, and no callback follows",
          "[runtime]") {
  auto begun = std::make_shared<std::promise<void>>();
  auto let_go = std::make_shared<std::promise<void>>();
  auto over = std::make_shared<std::promise<void>>();
  bool told = false;
  {
    HostLookup lookup([=](const std::string&) -> absl::StatusOr<std::string> {
      begun->set_value();
      let_go->get_future().wait();
      return std::string("late");
    });
    // Runs when the thread has dropped the lookup and its callback.
    const std::shared_ptr<void> last(nullptr, [over](void*) { over->set_value(); });
    lookup.Start("slow", [&told, last](const auto&) { told = true; });
    begun->get_future().wait();
  }
  let_go->set_value();
  over->get_future().wait();
  CHECK_FALSE(told);
}

}  // namespace
}  // namespace talweg::runtime
