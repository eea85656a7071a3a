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

// What the rules say about one job.
struct Quota {
  view::JobQuota share;  // The part that aggregators get. Its `tenant` is the one that counts.
  uint64_t members_max = view::kNoLimit;
  uint64_t tenant_members_max = view::kNoLimit;
  uint64_t tenant_jobs_max = view::kNoLimit;
  // The tenant that a rule names. Empty: no rule does, so agents may name one.
  std::string tenant_of_rule;

  friend bool operator==(const Quota&, const Quota&) = default;
};

// Rules for jobs and tenants, from the scheduler's quotas_file (docs/quotas.md). A value.
class Quotas {
 public:
  // `text` has one rule on each line. The error names line, value and remedy.
  static std::variant<Quotas, std::string> Parse(std::string_view text);

  // Without rules there is no limit. `tenant` is what the job's agents have named.
  Quota For(std::string_view job, std::string_view tenant) const;

  // What the rules say about a tenant, whatever its jobs are.
  Quota OfTenant(std::string_view tenant) const;

  bool empty() const { return rules_.empty(); }
  friend bool operator==(const Quotas&, const Quotas&) = default;

 private:
  enum class Kind : uint8_t { kJob, kTenant };
  struct Rule {
    Kind kind = Kind::kJob;
    std::string name;        // Without its '*'.
    bool is_prefix = false;  // The rule is for all names with this prefix.
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

  // Returns what is wrong with a line, or "".
  std::string AddLine(std::string_view line);
  static std::string Set(Rule& rule, std::string_view key, std::string_view value);
  // The value in the most exact rule that has this setting.
  template <typename Value>
  std::optional<Value> Find(Kind kind, std::string_view name,
                            std::optional<Value> Rule::*setting) const;

  std::vector<Rule> rules_;  // Most exact first.
};

}  // namespace talweg::membership

#endif  // TALWEG_LIBS_MEMBERSHIP_QUOTAS_H_
