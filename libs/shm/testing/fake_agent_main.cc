// SPDX-License-Identifier: Apache-2.0

// fake_agent SOCKET RANKS: the agent of a job of one node, for tests of clients. It prints "ready"
// when it listens, and ends when its standard input ends.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "libs/shm/testing/fake_agent.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: fake_agent SOCKET RANKS\n");
    return 2;
  }
  talweg::shm::FakeAgent::Options options;
  options.server.socket_path = argv[1];
  options.server.local_rank_count = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  talweg::shm::FakeAgent agent(options);
  std::printf("ready\n");
  std::fflush(stdout);
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
