// SPDX-License-Identifier: Apache-2.0

// A rank for tests: rank_process SOCKET LOCAL_RANK WHAT. It declares "t" (i32, one element, sum),
// prints what it has done as one line, and then does WHAT:
//   hold       pushes round 1 and waits for it without limit
//   idle       pushes nothing and waits for its standard input to end
//   fork       does as idle, with a forked child that keeps everything open and waits likewise
//   rounds     does ten rounds without checking them, then says goodbye
// It exits with the status of the call that failed.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "clients/c/talweg.h"

namespace {

constexpr int64_t kForever = -1;

void Say(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
}

void Check(talweg_status status) {
  if (status == TALWEG_OK) return;
  std::fprintf(stderr, "rank_process: %s: %s\n", talweg_status_name(status), talweg_last_error());
  std::exit(status);
}

void AwaitEndOfInput() {
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: rank_process SOCKET LOCAL_RANK hold|idle|fork|rounds\n");
    return 100;
  }
  talweg_options options;
  talweg_options_init(&options);
  options.agent_socket = argv[1];
  options.local_rank = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  talweg_client* client = nullptr;
  Check(talweg_connect(&options, &client));
  talweg_tensor tensor = 0;
  Check(talweg_declare(client, "t", TALWEG_I32, TALWEG_SUM, 0, 1, 0, kForever, &tensor));
  const char* what = argv[3];
  talweg_round round = 0;
  int32_t value = 1;
  if (std::strcmp(what, "hold") == 0) {
    Check(talweg_push_pull(client, tensor, &value, 0, kForever, &round));
    Say("pushed");
    Check(talweg_wait(client, tensor, round, &value, kForever));
  } else if (std::strcmp(what, "rounds") == 0) {
    for (int i = 0; i < 10; ++i) {
      value = i;
      Check(talweg_push_pull(client, tensor, &value, 0, kForever, &round));
      Check(talweg_wait(client, tensor, round, &value, kForever));
    }
    Say("done");
  } else {
    if (std::strcmp(what, "fork") == 0 && ::fork() == 0) {
      AwaitEndOfInput();
      ::_exit(0);
    }
    Say("idle");
    AwaitEndOfInput();
  }
  Check(talweg_shutdown(client, kForever));
  talweg_free(client);
  return 0;
}
