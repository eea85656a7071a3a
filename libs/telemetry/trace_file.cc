// SPDX-License-Identifier: Apache-2.0
#include "libs/telemetry/trace_file.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "libs/base/json.h"

namespace talweg::telemetry {
namespace {

std::string Microseconds(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03lld", static_cast<long long>(ns / 1000),
                static_cast<long long>(ns % 1000));
  return text;
}

std::string_view PhaseName(TracePhase phase) {
  switch (phase) {
    case TracePhase::kRanks: return "wait for local ranks";
    case TracePhase::kQueue: return "queue";
    case TracePhase::kLocalReduce: return "local reduce";
    case TracePhase::kPush: return "push";
    case TracePhase::kSum: return "sum";
    case TracePhase::kPull: return "pull";
    case TracePhase::kUnknown: break;
  }
  return "unknown";
}

}  // namespace

TraceFile::TraceFile(std::string_view process_name, uint32_t process_number)
    : process_("\"pid\":" + std::to_string(process_number)),
      text_(
          "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
          "{\"ph\":\"M\",\"name\":\"process_name\"," +
          process_ + ",\"args\":{\"name\":" + JsonString(process_name) + "}}") {}

void TraceFile::Add(const TraceSpan& span) {
  const auto [found, is_new] = rows_.try_emplace(std::string(span.tensor));
  Row& row = found->second;
  if (is_new) row.number = rows_.size();
  const std::string place = process_ + ",\"tid\":" + std::to_string(row.number);
  const std::string tensor = JsonString(span.tensor);
  if (is_new) {
    text_ += ",\n{\"ph\":\"M\",\"name\":\"thread_name\"," + place +
             ",\"args\":{\"name\":" + tensor + "}}";
  }
  // A row shows one span at a time, but slices of a tensor overlap: a later slice is reduced while
  // an earlier one is sent. Each span then begins where the span before it ends.
  const int64_t begin_ns = std::max(span.begin_ns, row.end_ns);
  const int64_t end_ns = std::max(span.end_ns, begin_ns);
  row.end_ns = end_ns;
  text_ += ",\n{\"ph\":\"X\",\"cat\":\"talweg\",\"name\":" + JsonString(PhaseName(span.phase)) +
           "," + place + ",\"ts\":" + Microseconds(begin_ns) +
           ",\"dur\":" + Microseconds(end_ns - begin_ns) + ",\"args\":{\"tensor\":" + tensor +
           ",\"round\":" + std::to_string(span.round) + ",\"bytes\":" + std::to_string(span.bytes) +
           "}}";
}

std::string TraceFile::End() && { return std::move(text_) + "\n]}\n"; }

}  // namespace talweg::telemetry
