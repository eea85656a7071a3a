// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TELEMETRY_TRACE_FILE_H_
#define TALWEG_LIBS_TELEMETRY_TRACE_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

// The text of a timeline: trace event JSON, which Perfetto opens.
namespace talweg::telemetry {

// The parts of the time that a round of a tensor takes.
enum class TracePhase : uint8_t {
  kUnknown = 0,      // One that only a newer agent knows.
  kRanks = 1,        // From the first local rank's push to the last one's.
  kQueue = 2,        // From then until the first slice leaves, or is reduced.
  kLocalReduce = 3,  // From the first slice's reduction to the last one's.
  kPush = 4,         // From when the first slice leaves until the last one has left.
  kSum = 5,          // From then until the first result.
  kPull = 6,         // From the first result to the last.
};

// When a round of a tensor was in a phase. Times are of one clock, in nanoseconds.
struct TraceSpan {
  TracePhase phase = TracePhase::kUnknown;
  std::string_view tensor;
  uint64_t round = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  uint64_t bytes = 0;
};

// Writes the timeline of one process, with a row for each tensor.
class TraceFile {
 public:
  // `process_number` tells the processes of files that are joined apart.
  TraceFile(std::string_view process_name, uint32_t process_number);

  // A tensor's spans come in the order of their ends.
  void Add(const TraceSpan& span);
  // Returns the whole text. Call it last.
  std::string End() &&;

 private:
  struct Row {
    size_t number = 0;
    int64_t end_ns = 0;
  };

  const std::string process_;
  std::map<std::string, Row, std::less<>> rows_;
  std::string text_;
};

}  // namespace talweg::telemetry

#endif  // TALWEG_LIBS_TELEMETRY_TRACE_FILE_H_
