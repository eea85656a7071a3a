// SPDX-License-Identifier: Apache-2.0
//
// A result stays while somebody reads it.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "clients/c/client_testing.h"
#include "clients/c/talweg.h"
#include "libs/shm/testing/fake_agent.h"

namespace talweg::c {
namespace {

using Catch::Matchers::Contains;
using shm::FakeAgent;

// A page whose first writer is stopped until the test lets it go. Only one may live at a time,
// because the signal handler knows it.
class GuardedPage {
 public:
  GuardedPage() {
    page_ = ::mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page_ == MAP_FAILED || ::pipe(came_.data()) != 0 || ::pipe(go_.data()) != 0) std::abort();
    struct sigaction action {};
    action.sa_sigaction = &OnFault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &before_);
  }
  GuardedPage(const GuardedPage&) = delete;
  GuardedPage& operator=(const GuardedPage&) = delete;
  ~GuardedPage() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(page_, kBytes);
    for (const int fd : {came_[0], came_[1], go_[0], go_[1]}) ::close(fd);
  }

  static constexpr size_t kBytes = 4096;
  void* data() const { return page_; }

  // Returns whether a writer has come, or Over() was called. Returns false after a generous time.
  bool AwaitWriter() {
    pollfd polled{came_[0], POLLIN, 0};
    return ::poll(&polled, 1, static_cast<int>(kGenerousNs / 1'000'000)) == 1;
  }
  void LetGo() { Put(go_[1]); }
  void Over() { Put(came_[1]); }

 private:
  static void Put(int fd) {
    const char byte = 0;
    [[maybe_unused]] const ssize_t ignored = ::write(fd, &byte, 1);
  }
  static void OnFault(int number, siginfo_t* fault, void*) {
    const int error = errno;
    if (fault->si_addr < page_ || fault->si_addr >= static_cast<char*>(page_) + kBytes) {
      ::signal(number, SIG_DFL);  // The fault is not ours: it happens again, and ends the process.
      return;
    }
    Put(came_[1]);
    char byte;
    while (::read(go_[0], &byte, 1) < 0 && errno == EINTR) {
    }
    ::mprotect(page_, kBytes, PROT_READ | PROT_WRITE);
    errno = error;
  }

  static inline void* page_ = nullptr;
  static inline std::array<int, 2> came_{};
  static inline std::array<int, 2> go_{};
  struct sigaction before_ {};
};

TEST_CASE("A result that a thread still reads is not given up to the next push") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 1));
  const TestClient client(agent.socket_path(), 0);
  constexpr size_t kCount = GuardedPage::kBytes / sizeof(int32_t);
  talweg_tensor tensor = 0;
  REQUIRE(talweg_declare(client.get(), "shared", TALWEG_I32, TALWEG_SUM, 0, kCount, 0, kGenerousNs,
                         &tensor) == TALWEG_OK);
  const std::vector<int32_t> sevens(kCount, 7);
  const std::vector<int32_t> nines(kCount, 9);
  talweg_round round = 0;
  REQUIRE(talweg_push_pull(client.get(), tensor, sevens.data(), 0, -1, &round) == TALWEG_OK);
  GuardedPage page;
  talweg_status read = TALWEG_INTERNAL;
  std::thread reader([&] {
    read = talweg_wait(client.get(), tensor, 1, page.data(), kGenerousNs);
    page.Over();
  });
  // One thread is in the middle of copying the result out. Another thread takes the round.
  CHECK(page.AwaitWriter());
  CHECK(talweg_wait(client.get(), tensor, 1, nullptr, kGenerousNs) == TALWEG_OK);
  CHECK(talweg_push_pull(client.get(), tensor, nines.data(), 0, -1, &round) == TALWEG_BUSY);
  CHECK_THAT(talweg_last_error(), Contains("'shared'") && Contains("round 1"));
  page.LetGo();
  reader.join();
  CHECK(read == TALWEG_OK);
  const auto* out = static_cast<const int32_t*>(page.data());
  CHECK(std::all_of(out, out + kCount, [](int32_t value) { return value == 7; }));
  CHECK(talweg_push_pull(client.get(), tensor, nines.data(), 0, -1, &round) == TALWEG_OK);
  CHECK(round == 2);
  CHECK(talweg_wait(client.get(), tensor, 2, nullptr, kGenerousNs) == TALWEG_OK);
}

TEST_CASE("A result read in place stays until the next push, and cannot be asked for after it") {
  const TestDirectory directory;
  FakeAgent agent(AgentOptions(directory, 2));
  const TestClient reader(agent.socket_path(), 0);
  const TestClient other(agent.socket_path(), 1);
  std::array<talweg_tensor, 2> tensor{};
  const std::array<talweg_client*, 2> clients = {reader.get(), other.get()};
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE(talweg_declare(clients[i], "t", TALWEG_I32, TALWEG_SUM, 0, 1, 0, kGenerousNs,
                           &tensor[i]) == TALWEG_OK);
  }
  talweg_round round = 0;
  int32_t value = 1;
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE(talweg_push_pull(clients[i], tensor[i], &value, 0, -1, &round) == TALWEG_OK);
  }
  for (size_t i = 0; i < 2; ++i) {
    REQUIRE(talweg_wait(clients[i], tensor[i], 1, nullptr, kGenerousNs) == TALWEG_OK);
  }
  const void* data = nullptr;
  uint64_t bytes = 0;
  REQUIRE(talweg_result(reader.get(), tensor[0], 1, &data, &bytes) == TALWEG_OK);
  // The other rank goes on, as far as it can without this one.
  value = 50;
  REQUIRE(talweg_push_pull(other.get(), tensor[1], &value, 0, -1, &round) == TALWEG_OK);
  agent.WaitUntil([](const FakeAgent::Seen& seen) { return seen.pushes == 3; });
  CHECK(*static_cast<const int32_t*>(data) == 2);
  REQUIRE(talweg_push_pull(reader.get(), tensor[0], &value, 0, -1, &round) == TALWEG_OK);
  // The result has been given up. A rank that asks again does not see what may be the next result.
  CHECK(talweg_result(reader.get(), tensor[0], 1, &data, &bytes) == TALWEG_INVALID_ARGUMENT);
  REQUIRE(talweg_wait(reader.get(), tensor[0], 2, nullptr, kGenerousNs) == TALWEG_OK);
  REQUIRE(talweg_wait(other.get(), tensor[1], 2, nullptr, kGenerousNs) == TALWEG_OK);
}

}  // namespace
}  // namespace talweg::c
