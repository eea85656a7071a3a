// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/sim/scale.h"

// Prints what one loss and one join cost with 100, 1,000 and 5,000 members and 4 aggregators, and
// with 50 to 200 members and as many aggregators. Arguments are other numbers of members; "N="
// means N members and N aggregators.
namespace {

using talweg::sim::ScaleEvent;
using talweg::sim::StationCost;

struct Size {
  unsigned members;
  unsigned aggregators;
};

void PrintStation(const char* event, const Size& size, const char* name, const StationCost& cost,
                  double took_ms) {
  std::printf("%-5s %7u %11u  %-12s %10llu %12llu %10llu %14llu %9.3f %10.1f\n", event,
              size.members, size.aggregators, name,
              static_cast<unsigned long long>(cost.in.messages),
              static_cast<unsigned long long>(cost.in.bytes),
              static_cast<unsigned long long>(cost.out.messages),
              static_cast<unsigned long long>(cost.out.bytes), cost.cpu_s, took_ms);
}

void Print(const char* name, const Size& size, const ScaleEvent& event) {
  const double took_ms = static_cast<double>(event.took_ns) * 1e-6;
  PrintStation(name, size, "scheduler", event.scheduler, took_ms);
  const StationCost* busiest = &event.aggregators.front();
  for (const StationCost& cost : event.aggregators) {
    if (cost.out.bytes > busiest->out.bytes) busiest = &cost;
  }
  PrintStation(name, size, "aggregator", *busiest, took_ms);
}

}  // namespace

int main(int argc, char** argv) {
  const talweg::sim::ScaleOptions defaults;
  std::vector<Size> sizes;
  for (int i = 1; i < argc; ++i) {
    char* end = nullptr;
    const auto members = static_cast<unsigned>(std::strtoul(argv[i], &end, 10));
    const bool as_many = std::strcmp(end, "=") == 0;
    if (members < 2 || members > 100'000 || (*end != 0 && !as_many)) {
      std::fprintf(stderr,
                   "'%s' is not a number of members: write N or N=, where N is 2 to 100000\n",
                   argv[i]);
      return 2;
    }
    sizes.push_back({members, as_many ? members : defaults.aggregators});
  }
  if (sizes.empty()) {
    for (const unsigned members : {100, 1000, 5000}) {
      sizes.push_back({members, defaults.aggregators});
    }
    for (const unsigned members : {50, 100, 200}) sizes.push_back({members, members});
  }
  std::printf(
      "%u tensors; a message costs its sender and its receiver %lld ns each and %lld ps a "
      "byte, and travels for %lld ns\n",
      defaults.tensors, static_cast<long long>(defaults.message_ns),
      static_cast<long long>(defaults.byte_ps), static_cast<long long>(defaults.delay_ns));
  std::printf("%-5s %7s %11s  %-12s %10s %12s %10s %14s %9s %10s\n", "event", "members",
              "aggregators", "process", "messages<", "bytes<", "messages>", "bytes>", "cpu s",
              "took ms");
  for (const Size& size : sizes) {
    talweg::sim::ScaleOptions options;
    options.members = size.members;
    options.aggregators = size.aggregators;
    const talweg::sim::ScaleResult result = talweg::sim::MeasureScale(options);
    if (!result.problem.empty()) {
      std::fprintf(stderr, "%u members, %u aggregators: %s\n", size.members, size.aggregators,
                   result.problem.c_str());
      return 1;
    }
    Print("loss", size, result.loss);
    Print("join", size, result.join);
    std::fflush(stdout);
  }
  return 0;
}
