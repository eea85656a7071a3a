// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/admission.h"

#include <cstring>

namespace talweg::shm {

void Admission::Begin(uint64_t cache_bytes, ErrorText& error) {
  cache_bytes_ = cache_bytes;
  error_ = &error;
}

RankStatus Admission::End() {
  error_ = nullptr;
  return status_;
}

void Admission::Take(const Welcome& welcome) {
  if (error_ == nullptr || answered_.load()) return;
  status_ = Admit(welcome, *error_);
  answered_.store(true);
}

RankStatus Admission::Admit(const Welcome& welcome, ErrorText& error) {
  if (welcome.major != kProtocolMajor || welcome.status == RankStatus::kVersionMismatch) {
    return error.Fail(
        RankStatus::kVersionMismatch,
        "this libtalweg speaks version %u.%u of the rank protocol, the agent at '%s' %u.%u; "
        "install the same release of both%s%.*s",
        kProtocolMajor, kProtocolMinor, link_.path(), welcome.major, welcome.minor,
        welcome.text.empty() ? "" : ": ", TALWEG_SHM_PRINTED(welcome.text));
  }
  if (welcome.status != RankStatus::kOk) {
    const auto value = static_cast<uint32_t>(welcome.status);
    return error.Fail(value < kRankStatusCount ? welcome.status : RankStatus::kInternal, "%.*s",
                      TALWEG_SHM_PRINTED(welcome.text));
  }
  if (RankStatus status = link_.MapControl(welcome, error); status != RankStatus::kOk) {
    return status;
  }
  health_.WatchAgent(link_.control().header().silence_ms);
  identity_.rank = welcome.rank;
  identity_.size = welcome.size;
  identity_.number = welcome.number;
  identity_.is_standby = (welcome.flags & kWelcomeStandby) != 0;
  identity_.local_rank = welcome.local_rank;
  identity_.local_size = welcome.local_size;
  identity_.node_rank = welcome.node_rank;
  identity_.node_count = welcome.node_count;
  streaming_.Begin(cache_bytes_, identity_.local_size);
  std::memcpy(identity_.job_name, welcome.job_name.data(), welcome.job_name.size());
  if (!tensors_.Begin(welcome.tensors_max) || !memory_.Begin()) {
    return error.Fail(RankStatus::kOutOfMemory, "no memory for the client");
  }
  return RankStatus::kOk;
}

}  // namespace talweg::shm
