// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/records.h"

#include <algorithm>

namespace talweg::membership {
namespace {

template <typename Record, typename Key, typename KeyOf>
void Put(std::vector<Record>& records, const Record& record, const KeyOf& key_of) {
  const auto place =
      std::lower_bound(records.begin(), records.end(), key_of(record),
                       [&](const Record& other, const Key& key) { return key_of(other) < key; });
  if (place != records.end() && key_of(*place) == key_of(record)) {
    *place = record;
  } else {
    records.insert(place, record);
  }
}

}  // namespace

bool SameSecret(const SecretHash& a, const SecretHash& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.bytes.size(); ++i) {
    difference = static_cast<uint8_t>(difference | (a.bytes[i] ^ b.bytes[i]));
  }
  return difference == 0;
}

void Apply(const StoreWrite& write, Snapshot& snapshot) {
  if (write.start_count) snapshot.start_count = *write.start_count;
  if (write.job_next) snapshot.job_next = *write.job_next;
  for (const JobRecord& job : write.jobs) {
    Put<JobRecord, JobId>(snapshot.jobs, job, [](const JobRecord& record) { return record.id; });
  }
  for (const JobId id : write.jobs_removed) {
    std::erase_if(snapshot.jobs, [id](const JobRecord& record) { return record.id == id; });
  }
  for (const AggregatorRecord& aggregator : write.aggregators) {
    Put<AggregatorRecord, Incarnation>(
        snapshot.aggregators, aggregator,
        [](const AggregatorRecord& record) { return record.aggregator.incarnation; });
  }
  for (const Incarnation id : write.aggregators_removed) {
    std::erase_if(snapshot.aggregators, [id](const AggregatorRecord& record) {
      return record.aggregator.incarnation == id;
    });
  }
}

}  // namespace talweg::membership
