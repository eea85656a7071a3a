// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/link_life.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libs/aggregation/link_share.h"
#include "libs/base/bytes.h"
#include "libs/base/random.h"
#include "services/aggregator/shared_link.h"

namespace talweg::sim {
namespace {

using aggregation::LinkShare;
using aggregator::SharedLink;

constexpr int64_t kNsPerMs = 1'000'000;
constexpr double kSlice = 64.0 * kKiB;
// A member has at most this many slices without a result: two rounds of its tensors.
constexpr uint64_t kAheadSlices = 128;
// A lane looks at its waiting credit this often, even if nobody wakes it.
constexpr int64_t kTickMs = 100;
// The life runs this long before anything is judged.
constexpr int64_t kWarmUpMs = 10'000;
constexpr int64_t kLifeMs = 40'000;

// What a life is about.
enum class Kind : uint8_t {
  kBusy,     // Every job always wants the link, at one of its lanes at least.
  kSlow,     // One job of large weight has slow members.
  kPausing,  // Jobs come and go, as trainers compute.
};

struct Member {
  double tcp = 1;       // How TCP sees its connection beside others.
  double own_link = 0;  // Bytes a millisecond; 0: as fast as the aggregator's.
  double window = 0;    // At most this much is in flight, counting credit that is held back.
  double in_flight = 0;
  double queue_in = 0;   // On its way here.
  double queue_out = 0;  // Results on their way to it.
  double part_in = 0;    // The part of a slice that has arrived here.
  double part_out = 0;
  uint64_t slices_sent = 0;
  uint64_t slices_in = 0;
  uint64_t slices_out = 0;
  double held = 0;
};

// A job at one lane. Its slices there are summed among themselves.
struct Place {
  size_t lane = 0;
  std::vector<Member> members;
  uint64_t summed = 0;
  SharedLink::Turn turn;
  bool is_on = true;
  int64_t turns_at_ms = 0;
  bool has_said_wants = false;
  bool is_late = false;  // Something waits, and the lane has already looked at it once.
};

struct Job {
  JobId id;
  view::JobQuota quota;
  std::vector<Place> places;
  bool is_on = true;
  int64_t turns_at_ms = 0;
  bool has_pauses = false;  // It pauses at one of its lanes.
  bool wants = false;
  double moved = 0;  // Since the warm-up, both ways.
};

class Life {
 public:
  explicit Life(uint64_t seed) : random_(seed) {
    kind_ = static_cast<Kind>(random_.Below(3));
    link_ = Pick({6'250, 25'000, 125'000});
    const size_t lane_count = 1 + random_.Below(3);
    for (size_t i = 0; i < lane_count; ++i) {
      lanes_.push_back(std::make_unique<SharedLink::Lane>(&share_, [this] { ++wakes_; }));
    }
    const size_t job_count = 2 + random_.Below(3);
    for (size_t i = 0; i < job_count; ++i) jobs_.push_back(MakeJob(i));
    if (kind_ == Kind::kSlow) {
      jobs_.front().quota.weight = jobs_.front().quota.tenant_weight = 8;
      for (Place& place : jobs_.front().places) {
        const size_t count = 8 * place.members.size() * jobs_.front().places.size();
        for (Member& member : place.members) member.own_link = link_ / static_cast<double>(count);
      }
    }
    for (Job& job : jobs_) {
      for (Place& place : job.places) {
        place.turn.use = share_.Begin(lanes_[place.lane].get(), job.id);
      }
      share_.SetQuota(job.id, job.quota);
    }
  }
  ~Life() {
    for (const Job& job : jobs_) {
      for (const Place& place : job.places) share_.End(place.turn.use);
    }
  }

  LinkResult Run() {
    for (now_ms_ = 1; now_ms_ <= kLifeMs && result_.violation.empty(); ++now_ms_) Pass();
    if (result_.violation.empty()) CheckAfterwards();
    return result_;
  }

 private:
  double Pick(const std::vector<double>& of) { return of[random_.Below(of.size())]; }

  Job MakeJob(size_t index) {
    Job job{.id = JobId{index + 1}};
    job.quota.weight = static_cast<uint32_t>(1 + random_.Below(5));
    job.quota.tenant_weight = job.quota.weight;
    // There are two priorities at most, so that the job with the least still moves a slice in a
    // life.
    if (random_.OneIn(4)) job.quota.priority = view::Priority::kHigh;
    if (random_.OneIn(3)) {
      job.quota.tenant = "tenant";
      job.quota.tenant_weight = 2;
    }
    job.has_pauses = random_.OneIn(3);
    const size_t members = 1 + random_.Below(4);
    // A job is at all lanes, or at one.
    const size_t only = random_.OneIn(2) ? random_.Below(lanes_.size()) : lanes_.size();
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      if (only < lanes_.size() && lane != only) continue;
      Place& place = job.places.emplace_back(Place{.lane = lane});
      for (size_t i = 0; i < members; ++i) {
        place.members.push_back({.tcp = Pick({0.7, 1, 1.4}),
                                 .window = Pick({4, 8}) * kSlice + Pick({0, 10, 20}) * link_});
      }
    }
    return job;
  }

  int64_t NowNs() const { return now_ms_ * kNsPerMs; }

  bool TurnsNow(int64_t& at_ms) {
    if (now_ms_ < at_ms) return false;
    at_ms = now_ms_ + static_cast<int64_t>(50 + random_.Below(1500));
    return true;
  }

  // Jobs come and go; or a job pauses at one lane, and not at the first one meanwhile.
  void Turn(Job& job) {
    if (kind_ == Kind::kPausing && TurnsNow(job.turns_at_ms)) job.is_on = !job.is_on;
    for (Place& place : job.places) {
      const bool may_pause = kind_ == Kind::kBusy && job.has_pauses &&
                             &place == &job.places.back() && job.places.size() > 1;
      if (may_pause && TurnsNow(place.turns_at_ms)) place.is_on = !place.is_on;
      if (!place.is_on) ++result_.coverage["a job pauses at one lane"];
    }
  }

  void Pass() {
    for (Job& job : jobs_) {
      Turn(job);
      for (Place& place : job.places) Send(job, place);
    }
    const double in = Carry(&Member::queue_in, &Member::part_in);
    const double out = Carry(&Member::queue_out, &Member::part_out);
    bool wanted = false;
    size_t wanting = 0;
    for (Job& job : jobs_) {
      job.wants = false;
      for (Place& place : job.places) {
        Receive(job, place);
        job.wants |= place.turn.wants = MoreWaits(job, place);
      }
      if (job.wants) ++wanting;
      wanted |= job.is_on;
    }
    Give();
    if (now_ms_ <= kWarmUpMs) return;
    if (wanted) {
      carried_ += in + out;
      ++judged_ms_;
    }
    Cover(wanting);
  }

  static bool MoreWaits(const Job& job, const Place& place) {
    return std::any_of(place.members.begin(), place.members.end(), [&](const Member& member) {
      return (job.is_on && place.is_on && member.slices_sent < member.slices_out + kAheadSlices) ||
             member.queue_out > 0;
    });
  }

  static void Send(const Job& job, Place& place) {
    for (Member& member : place.members) {
      while (job.is_on && place.is_on && member.in_flight + kSlice <= member.window &&
             member.slices_sent < member.slices_out + kAheadSlices) {
        member.in_flight += kSlice;
        member.queue_in += kSlice;
        ++member.slices_sent;
      }
    }
  }

  // Carries one direction of the link for a millisecond. Each connection gets what TCP gives it.
  double Carry(double Member::*queue, double Member::*part) {
    double room = link_;
    double carried = 0;
    // The members with bytes to carry, and how much the own link of each still takes.
    std::vector<std::pair<Member*, double>> busy;
    for (Job& job : jobs_) {
      for (Place& place : job.places) {
        for (Member& member : place.members) {
          if (member.*queue > 0)
            busy.emplace_back(&member, member.own_link > 0 ? member.own_link : link_);
        }
      }
    }
    while (!busy.empty() && room > 1) {
      double tcp = 0;
      for (const auto& [member, own] : busy) tcp += member->tcp;
      const double each = room / tcp;
      for (auto& [member, own] : busy) {
        const double bytes = std::min({each * member->tcp, own, member->*queue});
        member->*queue -= bytes;
        member->*part += bytes;
        own -= bytes;
        room -= bytes;
        carried += bytes;
      }
      std::erase_if(busy,
                    [&](const auto& each) { return each.second < 1 || each.first->*queue < 1; });
    }
    return carried;
  }

  void Receive(Job& job, Place& place) const {
    for (Member& member : place.members) {
      while (member.part_in >= kSlice - 1) {
        member.part_in -= kSlice;
        ++member.slices_in;
        place.turn.held_bytes += static_cast<uint64_t>(kSlice);
        member.held += kSlice;
        Moved(job);
        place.turn.received_bytes += static_cast<uint64_t>(kSlice);
      }
      while (member.part_out >= kSlice - 1) {
        member.part_out -= kSlice;
        ++member.slices_out;
        Moved(job);
        place.turn.sent_bytes += static_cast<uint64_t>(kSlice);
      }
    }
    const auto least = [](const Member& a, const Member& b) { return a.slices_in < b.slices_in; };
    const uint64_t all =
        std::min_element(place.members.begin(), place.members.end(), least)->slices_in;
    for (; place.summed < all; ++place.summed) {
      for (Member& member : place.members) member.queue_out += kSlice;
    }
  }

  void Moved(Job& job) const {
    if (now_ms_ > kWarmUpMs) job.moved += kSlice;
  }

  // Each lane passes once. Lanes that are woken pass again until no lane is woken any more.
  void Give() {
    for (size_t lane = 0; lane < lanes_.size(); ++lane) Settle(lane, now_ms_ % kTickMs == 0);
    while (wakes_ > 0) {
      wakes_ = 0;
      for (size_t lane = 0; lane < lanes_.size(); ++lane) Settle(lane, false);
    }
    for (const Job& job : jobs_) {
      const bool is_alone = std::none_of(jobs_.begin(), jobs_.end(), [&](const Job& other) {
        return &other != &job && other.wants;
      });
      if (is_alone && Holds(job)) Fail("a job that is alone waits for credit");
    }
  }
  void Settle(size_t lane, bool look_again) {
    const bool may_have_room = lanes_[lane]->TakeWoken() || look_again;
    std::vector<Place*> places;
    std::vector<SharedLink::Turn*> turns;
    for (Job& job : jobs_) {
      for (Place& place : job.places) {
        if (place.lane != lane || !HasNews(place, may_have_room)) continue;
        places.push_back(&place);
        turns.push_back(&place.turn);
      }
    }
    if (turns.empty()) return;
    share_.Settle(turns, NowNs());
    for (Place* const place : places) {
      place->has_said_wants = place->turn.wants;
      place->is_late = place->turn.held_bytes > 0;
      double given = static_cast<double>(place->turn.given_bytes);
      for (Member& member : place->members) {
        const double bytes = std::min(member.held, given);
        member.held -= bytes;
        member.in_flight -= bytes;
        given -= bytes;
      }
    }
  }
  static bool HasNews(const Place& place, bool may_have_room) {
    const SharedLink::Turn& turn = place.turn;
    return turn.received_bytes + turn.sent_bytes > 0 || turn.wants != place.has_said_wants ||
           (turn.held_bytes > 0 && (may_have_room || !place.is_late));
  }
  static bool Holds(const Job& job) {
    return std::any_of(job.places.begin(), job.places.end(),
                       [](const Place& place) { return place.turn.held_bytes > 0; });
  }

  void Cover(size_t wanting) {
    if (std::any_of(jobs_.begin(), jobs_.end(), Holds)) ++result_.coverage["credit is held"];
    const auto is_at_some = [&](const Job& job) { return job.places.size() < lanes_.size(); };
    if (std::any_of(jobs_.begin(), jobs_.end(), is_at_some)) {
      ++result_.coverage["a job is not at all lanes"];
    }
    if (wanting == 1) ++result_.coverage["a job is alone"];
    if (wanting < 2) return;
    ++result_
          .coverage[share_.phase() == LinkShare::Phase::kSharing ? "jobs share the link"
                                                                 : "what it carries is measured"];
    if (kind_ == Kind::kSlow) ++result_.coverage["a job is slow for another reason"];
  }

  void CheckAfterwards() {
    const double possible = 2 * link_ * static_cast<double>(judged_ms_);
    const double used = carried_ / possible;
    // Jobs that come and go do not fill both directions when they begin and end.
    if (used < (kind_ == Kind::kPausing ? 0.6 : 0.75)) {
      Fail("the link carries " + Percent(used) + " of what it could");
    }
    if (kind_ != Kind::kBusy) return;
    for (const Job& job : jobs_) {
      const double part = PartOf(job);
      const double got = job.moved / carried_;
      // A job gets whole slices, so it may get a few slices less.
      if (got < 0.6 * part - 8 * kSlice / carried_) {
        Fail("job " + std::to_string(job.id.value()) + " has " + Percent(got) +
             " of the link, and should have " + Percent(part));
      }
    }
  }

  // Returns the job's part by the rules, while everybody wants the link. High priority has 16 times
  // the weight of normal.
  double PartOf(const Job& of) const {
    std::map<view::Priority, double> levels;
    std::map<std::string, double> tenants;  // The weights of the tenants with the same priority.
    double jobs = 0;                        // The weights of the jobs of the same tenant.
    const auto tenant_of = [](const Job& job) {
      return job.quota.tenant.empty() ? std::to_string(job.id.value()) : job.quota.tenant;
    };
    for (const Job& job : jobs_) {
      levels[job.quota.priority] = job.quota.priority == view::Priority::kHigh ? 16 : 1;
      if (job.quota.priority != of.quota.priority) continue;
      tenants[tenant_of(job)] = job.quota.tenant_weight;
      if (tenant_of(job) == tenant_of(of)) jobs += job.quota.weight;
    }
    const auto sum = [](const auto& weights) {
      double all = 0;
      for (const auto& [name, weight] : weights) all += weight;
      return all;
    };
    return levels.at(of.quota.priority) / sum(levels) * of.quota.tenant_weight / sum(tenants) *
           of.quota.weight / jobs;
  }

  static std::string Percent(double of) {
    return std::to_string(static_cast<int>(of * 1000) / 10.0).substr(0, 4) + " %";
  }
  void Fail(const std::string& text) {
    if (result_.violation.empty()) {
      result_.violation = text + " at " + std::to_string(now_ms_) + " ms";
    }
  }

  Random random_;
  Kind kind_ = Kind::kBusy;
  double link_ = 0;  // Bytes a millisecond, each way.
  SharedLink share_;
  int wakes_ = 0;
  std::vector<std::unique_ptr<SharedLink::Lane>> lanes_;
  std::vector<Job> jobs_;
  int64_t now_ms_ = 0;
  double carried_ = 0;
  int64_t judged_ms_ = 0;  // The time in which somebody wanted the link.
  LinkResult result_;
};

}  // namespace

LinkResult LiveOnLink(uint64_t seed) { return Life(seed).Run(); }

}  // namespace talweg::sim
