// SPDX-License-Identifier: Apache-2.0
// The functions that a sink need not have if its server takes no devices.
#include "libs/base/check.h"
#include "libs/shm/daemon/rank_server.h"

namespace talweg::shm {

void RankEventSink::OnRankPushOnDevice(RankConnectionId, LocalRank, TensorIndex, Round, int32_t,
                                       const DevicePlace&) {
  TALWEG_CHECK(false);
}
void RankEventSink::OnRankExport(RankConnectionId, RequestId, const RankExport&) {
  TALWEG_CHECK(false);
}
void RankEventSink::OnRankUnexport(RankConnectionId, RequestId, uint32_t) { TALWEG_CHECK(false); }
void RankEventSink::OnRankPlace(RankConnectionId, RequestId, TensorIndex, uint32_t,
                                RoundSignature) {
  TALWEG_CHECK(false);
}

}  // namespace talweg::shm
