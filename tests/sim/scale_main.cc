// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/sim/scale.h"

// Prints what one loss and one join cost with 100, 1,000 and 5,000 members, or with as many as its
// arguments say.
namespace {

using talweg::sim::ScaleEvent;
using talweg::sim::StationCost;

void PrintStation(const char* event, unsigned members, const char* name, const StationCost& cost,
                  double took_ms) {
  std::printf("%-5s %7u  %-12s %10llu %12llu %10llu %14llu %9.3f %10.1f\n", event, members, name,
              static_cast<unsigned long long>(cost.in.messages),
              static_cast<unsigned long long>(cost.in.bytes),
              static_cast<unsigned long long>(cost.out.messages),
              static_cast<unsigned long long>(cost.out.bytes), cost.cpu_s, took_ms);
}

void Print(const char* name, unsigned members, const ScaleEvent& event) {
  const double took_ms = static_cast<double>(event.took_ns) * 1e-6;
  PrintStation(name, members, "scheduler", event.scheduler, took_ms);
  const StationCost* busiest = &event.aggregators.front();
  for (const StationCost& cost : event.aggregators) {
    if (cost.out.bytes > busiest->out.bytes) busiest = &cost;
  }
  PrintStation(name, members, "aggregator", *busiest, took_ms);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<unsigned> counts;
  for (int i = 1; i < argc; ++i) {
    counts.push_back(static_cast<unsigned>(std::strtoul(argv[i], nullptr, 10)));
    if (counts.back() >= 2 && counts.back() <= 100'000) continue;
    std::fprintf(stderr, "'%s' is no number of members from 2 to 100000\n", argv[i]);
    return 2;
  }
  if (counts.empty()) counts = {100, 1000, 5000};
  const talweg::sim::ScaleOptions defaults;
  std::printf(
      "%u aggregators, %u tensors; a message costs sender and receiver %lld ns each, and "
      "%lld ps a byte, and travels %lld ns\n",
      defaults.aggregators, defaults.tensors, static_cast<long long>(defaults.message_ns),
      static_cast<long long>(defaults.byte_ps), static_cast<long long>(defaults.delay_ns));
  std::printf("%-5s %7s  %-12s %10s %12s %10s %14s %9s %10s\n", "event", "members", "process",
              "messages<", "bytes<", "messages>", "bytes>", "cpu s", "took ms");
  for (const unsigned members : counts) {
    talweg::sim::ScaleOptions options;
    options.members = members;
    const talweg::sim::ScaleResult result = talweg::sim::MeasureScale(options);
    if (!result.problem.empty()) {
      std::fprintf(stderr, "%u members: %s\n", members, result.problem.c_str());
      return 1;
    }
    Print("loss", members, result.loss);
    Print("join", members, result.join);
    std::fflush(stdout);
  }
  return 0;
}
