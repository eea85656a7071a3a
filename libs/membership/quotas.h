// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_MEMBERSHIP_QUOTAS_H_
#define TALWEG_LIBS_MEMBERSHIP_QUOTAS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "libs/view/job_quota.h"

namespace talweg::membership {

// What the rules say of one job.
struct Quota {
  view::JobQuota share;  // The part that aggregators are told. Its `tenant` is the one that counts.
  uint64_t members_max = view::kNoLimit;
  uint64_t tenant_members_max = view::kNoLimit;
  uint64_t tenant_jobs_max = view::kNoLimit;
  // The tenant that a rule names. Empty: none does, so agents may say one.
  std::string tenant_of_rule;

  friend bool operator==(const Quota&, const Quota&) = default;
};

// Rules on jobs and tenants, as the scheduler's quotas_file has them (docs/quotas.md). A value.
class Quotas {
 public:
  // `text` has one rule on a line. The error names line, value and remedy.
  static std::variant<Quotas, std::string> Parse(std::string_view text);

  // Without rules there is no limit. `tenant` is what the job's agents say.
  Quota For(std::string_view job, std::string_view tenant) const;

  // What rules say of a tenant, whatever its jobs are.
  Quota OfTenant(std::string_view tenant) const;

  bool empty() const { return rules_.empty(); }
  friend bool operator==(const Quotas&, const Quotas&) = default;

 private:
  enum class Kind : uint8_t { kJob, kTenant };
  struct Rule {
    Kind kind = Kind::kJob;
    std::string name;        // Without its '*'.
    bool is_prefix = false;  // It stands for all names that begin so.
    std::optional<std::string> tenant;
    std::optional<view::Priority> priority;
    std::optional<uint32_t> weight;
    std::optional<uint64_t> memory_bytes_max;
    std::optional<uint64_t> tensors_max;
    std::optional<uint64_t> members_max;
    std::optional<uint64_t> jobs_max;

    bool Fits(Kind kind, std::string_view name) const;
    friend bool operator==(const Rule&, const Rule&) = default;
  };

  // What is wrong with a line, or "".
  std::string AddLine(std::string_view line);
  static std::string Set(Rule& rule, std::string_view key, std::string_view value);
  // What the most exact rule with this setting says.
  template <typename Value>
  std::optional<Value> Find(Kind kind, std::string_view name,
                            std::optional<Value> Rule::*setting) const;

  std::vector<Rule> rules_;  // The most exact first.
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_QUOTAS_H_
