// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TELEMETRY_COUNTER_H_
#define TALWEG_LIBS_TELEMETRY_COUNTER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <vector>

namespace talweg::telemetry {

// A number that any thread may change and read. Counters are not ordered with each other: a reader
// may see a later change of one before an earlier change of another.
class Counter {
 public:
  void Add(uint64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  // For levels (bytes held now): the one owner sets the value.
  void Set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

struct CounterValue {
  std::string name;
  std::string help;
  uint64_t value = 0;

  friend bool operator==(const CounterValue&, const CounterValue&) = default;
};

// The counters of one daemon. Names are lower case with underscores and their unit last
// ("contribution_bytes"). A label follows the name: "refused{reason=wrong_epoch}". Thread-safe.
class CounterSet {
 public:
  // The counter of that name. The first call makes it, and it lives as long as the set. Not for hot
  // paths: keep the reference.
  Counter& Get(const std::string& name, const std::string& help = "");

  // All counters, by name.
  std::vector<CounterValue> Snapshot() const;

 private:
  struct Entry {
    std::string name;
    std::string help;
    Counter counter;
  };

  mutable std::mutex mutex_;
  std::deque<Entry> entries_;  // A deque: entries never move.
};

}  // namespace talweg::telemetry

#endif  // TALWEG_LIBS_TELEMETRY_COUNTER_H_
