// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/quotas.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "libs/base/bytes.h"
#include "libs/base/counted.h"

namespace talweg::membership {
namespace {

constexpr size_t kQuotaNameBytesMax = 1024;
constexpr uint64_t kQuotaWeightMax = 1000;
constexpr char kBlanks[] = " \t\r";
constexpr char kLineForm[] = "a rule is 'job NAME SETTING=VALUE ...' or 'tenant NAME ...'";
constexpr char kJobSettings[] =
    "tenant, priority, weight, members_max, memory_bytes_max, tensors_max";
constexpr char kTenantSettings[] = "weight, jobs_max, members_max, memory_bytes_max, tensors_max";

// Takes the first word off `text`; returns "" if there is none.
std::string_view TakeWord(std::string_view& text) {
  const size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  text.remove_prefix(begin);
  const size_t length = std::min(text.find_first_of(kBlanks), text.size());
  const std::string_view word = text.substr(0, length);
  text.remove_prefix(length);
  return word;
}

std::string Quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

std::optional<uint64_t> ReadNumber(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::string SetNumber(std::optional<uint64_t>& place, std::string_view key, std::string_view value,
                      uint64_t max) {
  const std::optional<uint64_t> number = ReadNumber(value);
  if (!number || *number < 1 || *number > max) {
    return std::string(key) + " is " + Quoted(value) + "; give a number from 1 to " +
           std::to_string(max) + ", or leave it out for no limit";
  }
  place = number;
  return "";
}

std::string CheckName(std::string_view what, std::string_view name) {
  if (name.empty()) return "names no " + std::string(what) + "; " + kLineForm;
  if (name.size() > kQuotaNameBytesMax) {
    return "has a name of " + Counted(name.size(), "byte") + "; at most " +
           std::to_string(kQuotaNameBytesMax) + " are allowed";
  }
  const size_t star = name.find('*');
  if (star != std::string_view::npos && star + 1 != name.size()) {
    return "has '*' inside the name " + Quoted(name) + "; it may stand at the end alone";
  }
  return "";
}

}  // namespace

bool Quotas::Rule::Fits(Kind wanted, std::string_view whole) const {
  if (kind != wanted) return false;
  return is_prefix ? whole.starts_with(name) : whole == name;
}

std::variant<Quotas, std::string> Quotas::Parse(std::string_view text) {
  Quotas quotas;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    const std::string problem = quotas.AddLine(line);
    if (!problem.empty()) return "line " + std::to_string(number) + " " + problem;
  }
  std::stable_sort(quotas.rules_.begin(), quotas.rules_.end(), [](const Rule& a, const Rule& b) {
    if (a.is_prefix != b.is_prefix) return b.is_prefix;
    return a.name.size() > b.name.size();
  });
  return quotas;
}

std::string Quotas::AddLine(std::string_view line) {
  const std::string_view kind = TakeWord(line);
  if (kind.empty()) return "";
  if (kind != "job" && kind != "tenant") {
    return "begins with " + Quoted(kind) + "; " + kLineForm;
  }
  std::string_view name = TakeWord(line);
  if (const std::string problem = CheckName(kind, name); !problem.empty()) return problem;
  Rule rule{.kind = kind == "job" ? Kind::kJob : Kind::kTenant};
  if (name.ends_with('*')) {
    rule.is_prefix = true;
    name.remove_suffix(1);
  }
  rule.name = name;
  for (const Rule& other : rules_) {
    if (other.kind == rule.kind && other.name == rule.name && other.is_prefix == rule.is_prefix) {
      return "is a second rule of " + std::string(kind) + " " +
             Quoted(rule.name + (rule.is_prefix ? "*" : "")) + "; write its settings on one line";
    }
  }
  bool any = false;
  for (std::string_view word = TakeWord(line); !word.empty(); word = TakeWord(line)) {
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) {
      return "has " + Quoted(word) + ", which is not SETTING=VALUE";
    }
    const std::string problem = Set(rule, word.substr(0, equals), word.substr(equals + 1));
    if (!problem.empty()) return "has a wrong setting: " + problem;
    any = true;
  }
  if (!any) return "has no setting; " + std::string(kLineForm);
  rules_.push_back(std::move(rule));
  return "";
}

std::string Quotas::Set(Rule& rule, std::string_view key, std::string_view value) {
  const bool of_job = rule.kind == Kind::kJob;
  if (key == "weight") {
    std::optional<uint64_t> weight;
    const std::string problem = SetNumber(weight, key, value, kQuotaWeightMax);
    if (problem.empty()) rule.weight = static_cast<uint32_t>(*weight);
    return problem;
  }
  if (key == "members_max") return SetNumber(rule.members_max, key, value, UINT32_MAX);
  if (key == "tensors_max") return SetNumber(rule.tensors_max, key, value, UINT32_MAX);
  if (key == "memory_bytes_max") {
    const std::optional<uint64_t> bytes = ParseBytes(value);
    if (!bytes || *bytes == 0) {
      return "memory_bytes_max is " + Quoted(value) +
             "; give a number of bytes, or with a unit as 8GiB, or leave it out for no limit";
    }
    rule.memory_bytes_max = bytes;
    return "";
  }
  if (key == "jobs_max" && !of_job) return SetNumber(rule.jobs_max, key, value, UINT32_MAX);
  if (key == "tenant" && of_job) {
    if (value.empty() || value.find('*') != std::string_view::npos) {
      return "tenant is " + Quoted(value) + "; give one whole name";
    }
    rule.tenant = value;
    return "";
  }
  if (key == "priority" && of_job) {
    for (const auto& [name, priority] :
         {std::pair<std::string_view, view::Priority>{"low", view::Priority::kLow},
          {"normal", view::Priority::kNormal},
          {"high", view::Priority::kHigh}}) {
      if (value != name) continue;
      rule.priority = priority;
      return "";
    }
    return "priority is " + Quoted(value) + "; give low, normal or high";
  }
  return Quoted(key) + " is not a setting of a " + (of_job ? "job" : "tenant") + "; there are " +
         (of_job ? kJobSettings : kTenantSettings);
}

template <typename Value>
std::optional<Value> Quotas::Find(Kind kind, std::string_view name,
                                  std::optional<Value> Rule::*setting) const {
  for (const Rule& rule : rules_) {
    if (rule.Fits(kind, name) && rule.*setting) return rule.*setting;
  }
  return std::nullopt;
}

Quota Quotas::OfTenant(std::string_view tenant) const {
  Quota quota;
  view::JobQuota& share = quota.share;
  share.tenant = tenant;
  share.tenant_weight = Find(Kind::kTenant, tenant, &Rule::weight).value_or(1);
  share.tenant_limit = {
      Find(Kind::kTenant, tenant, &Rule::memory_bytes_max).value_or(view::kNoLimit),
      Find(Kind::kTenant, tenant, &Rule::tensors_max).value_or(view::kNoLimit)};
  quota.tenant_members_max =
      Find(Kind::kTenant, tenant, &Rule::members_max).value_or(view::kNoLimit);
  quota.tenant_jobs_max = Find(Kind::kTenant, tenant, &Rule::jobs_max).value_or(view::kNoLimit);
  return quota;
}

Quota Quotas::For(std::string_view job, std::string_view said) const {
  const std::string of_rule = Find(Kind::kJob, job, &Rule::tenant).value_or("");
  const std::string_view tenant = of_rule.empty() ? said : std::string_view(of_rule);
  Quota quota = tenant.empty() ? Quota() : OfTenant(tenant);
  quota.tenant_of_rule = of_rule;
  quota.members_max = Find(Kind::kJob, job, &Rule::members_max).value_or(view::kNoLimit);
  view::JobQuota& share = quota.share;
  share.priority = Find(Kind::kJob, job, &Rule::priority).value_or(view::Priority::kNormal);
  share.weight = Find(Kind::kJob, job, &Rule::weight).value_or(1);
  share.limit = {Find(Kind::kJob, job, &Rule::memory_bytes_max).value_or(view::kNoLimit),
                 Find(Kind::kJob, job, &Rule::tensors_max).value_or(view::kNoLimit)};
  // For others the job is its own tenant, of its weight.
  if (tenant.empty()) share.tenant_weight = share.weight;
  return quota;
}

}  // namespace talweg::membership
