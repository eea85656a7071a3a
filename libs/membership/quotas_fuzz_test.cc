// SPDX-License-Identifier: Apache-2.0
//
// Reads any text. Rules that can be read give every job possible values, and an error names a line.
#include "libs/membership/quotas.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <variant>

namespace talweg::membership {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = Quotas::Parse(text);
  if (const auto* problem = std::get_if<std::string>(&parsed)) {
    if (!problem->starts_with("line ")) std::abort();
    return 0;
  }
  const auto& quotas = std::get<Quotas>(parsed);
  for (const std::string_view job : {"", "a", "vision-1", "*"}) {
    const Quota quota = quotas.For(job, "t");
    const view::JobQuota& share = quota.share;
    const bool possible = share.weight >= 1 && share.tenant_weight >= 1 && !share.tenant.empty() &&
                          share.priority >= view::Priority::kLow &&
                          share.priority <= view::Priority::kHigh && quota.members_max >= 1 &&
                          quota.tenant_jobs_max >= 1;
    if (!possible) std::abort();
  }
  return 0;
}

}  // namespace talweg::membership
