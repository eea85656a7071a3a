// SPDX-License-Identifier: Apache-2.0
//
// A member of a job that does nothing, for tests to kill: member_process ADDRESS NODE MEMBERS.
// Exits at the end of its standard input.
#include <unistd.h>

#include <cstdlib>

#include "libs/rpc/scheduler_client.h"

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto node = static_cast<uint32_t>(std::atoi(argv[2]));
  const auto members = static_cast<uint32_t>(std::atoi(argv[3]));
  talweg::rpc::SchedulerClient client({.address = argv[1]}, [](const talweg::rpc::MemberEvent&) {});
  client.JoinJob({.job_name = "mnist",
                  .spec = {.min_members = members, .max_members = members},
                  .member = {.id = {talweg::NodeRank{node}, talweg::Incarnation{100 + node}},
                             .rank_count = 2,
                             .name = "host-" + std::to_string(node)}});
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
