// SPDX-License-Identifier: Apache-2.0
#include "clients/c/abi.h"

using talweg::c::FromC;
using talweg::c::Invalid;
using talweg::c::LastError;
using talweg::c::ToC;

extern "C" talweg_status talweg_waits_for(talweg_client* client, talweg_tensor tensor,
                                          talweg_round round, char* text, size_t text_bytes,
                                          int64_t timeout_ns) {
  if (client == nullptr) return Invalid("talweg_waits_for: `client` is NULL");
  if (text == nullptr || text_bytes == 0) {
    return Invalid("talweg_waits_for: `text` is NULL, or has no room: pass a buffer");
  }
  return ToC(FromC(client)->WaitsFor(tensor, round, text, text_bytes, timeout_ns, LastError()));
}
