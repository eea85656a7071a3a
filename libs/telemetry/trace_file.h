// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TELEMETRY_TRACE_FILE_H_
#define TALWEG_LIBS_TELEMETRY_TRACE_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

// The text of a timeline: trace event JSON, which Perfetto opens.
namespace talweg::telemetry {

// A part of the time that a round of a tensor takes. Times are of one clock, in nanoseconds.
struct TraceSpan {
  std::string_view what;
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
