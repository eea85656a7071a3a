// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/rank_marks.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

namespace talweg::cli {

void RankMarks::Remove(uint32_t node, uint32_t local_rank) const {
  unlink(OutlivesPath(plan_, node, local_rank).c_str());
  unlink(NeedsPath(plan_, node, local_rank).c_str());
  unlink(FailsPath(plan_, node, local_rank).c_str());
}

bool RankMarks::AllOutlive(uint32_t node) const {
  for (uint32_t i = 0; i < plan_.ranks_per_node[node]; ++i) {
    if (access(OutlivesPath(plan_, node, i).c_str(), F_OK) != 0) return false;
  }
  return true;
}

bool RankMarks::AnyHasBegun(uint32_t node) const {
  for (uint32_t i = 0; i < plan_.ranks_per_node[node]; ++i) {
    struct stat found;
    if (stat(OutlivesPath(plan_, node, i).c_str(), &found) == 0 && found.st_size > 0) return true;
  }
  return false;
}

bool RankMarks::AnyNeedsAgent(uint32_t node) const {
  for (uint32_t i = 0; i < plan_.ranks_per_node[node]; ++i) {
    if (access(NeedsPath(plan_, node, i).c_str(), F_OK) == 0) return true;
  }
  return false;
}

std::optional<int64_t> RankMarks::FailsSince(uint32_t node, uint32_t local_rank) const {
  struct stat found;
  if (stat(FailsPath(plan_, node, local_rank).c_str(), &found) != 0) return std::nullopt;
  return int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec;
}

std::optional<int> RankMarks::FailsWith(uint32_t node, uint32_t local_rank) const {
  std::ifstream file(FailsPath(plan_, node, local_rank));
  int exit_status = 0;
  if (!(file >> exit_status) || exit_status < 1 || exit_status > 255) return std::nullopt;
  return exit_status;
}

}  // namespace talweg::cli
