// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_TESTS_SIM_SCALE_H_
#define TALWEG_TESTS_SIM_SCALE_H_

#include <cstdint>
#include <string>
#include <vector>

// How the cost of a loss and of a join grows with the number of members.
//
// The real cores run for the scheduler, with its real messages, for the aggregators, and for the
// first `cores` members. The other members are stand-ins, because every member core holds a view of
// all members. A stand-in sends what a core in its place sends.
//
// Time is virtual. A process handles one message after another. A message costs sender and receiver
// the same, and then travels for a while. The bytes of contributions and results do not travel in
// messages, and cost nothing here.
namespace talweg::sim {

struct ScaleOptions {
  uint32_t members = 100;
  uint32_t cores = 2;
  uint32_t aggregators = 4;
  uint32_t tensors = 8;  // Each has a slice at every aggregator.
  int64_t message_ns = 10'000;
  int64_t byte_ps = 800;  // 10 Gbit/s.
  int64_t delay_ns = 50'000;
};

struct Traffic {
  uint64_t messages = 0;
  uint64_t bytes = 0;

  friend bool operator==(const Traffic&, const Traffic&) = default;
};

struct StationCost {
  Traffic in;
  Traffic out;
  double cpu_s = 0;  // In the scheduler's core, and to make its messages.
};

struct ScaleEvent {
  StationCost scheduler;
  std::vector<StationCost> aggregators;
  int64_t took_ns = 0;  // Until the last process has handled the last message.
};

struct ScaleResult {
  // A member dies while all others have contributed to a round: until all have its result.
  ScaleEvent loss;
  // It comes back between two steps: until it may push.
  ScaleEvent join;
  std::string problem;  // What did not happen; empty if all did.
};

ScaleResult MeasureScale(const ScaleOptions& options);

}  // namespace talweg::sim

#endif  // TALWEG_TESTS_SIM_SCALE_H_
