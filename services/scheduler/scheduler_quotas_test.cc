// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <catch2/catch.hpp>

#include "libs/base/descriptor.h"
#include "libs/base/test_directory.h"
#include "libs/rpc/admin_client.h"
#include "libs/rpc/scheduler_client.h"
#include "services/scheduler/daemon_testing.h"
#include "services/scheduler/testing.h"

// The rules of docs/quotas.md in a whole daemon.
namespace talweg::scheduler {
namespace {

// Tells when somebody has read a file of the directory since this object was made.
class Reading {
 public:
  explicit Reading(const std::filesystem::path& directory) : watch_(inotify_init1(IN_CLOEXEC)) {
    REQUIRE(inotify_add_watch(watch_.get(), directory.c_str(), IN_CLOSE_NOWRITE) >= 0);
  }
  void Wait() const {
    pollfd readable = {.fd = watch_.get(), .events = POLLIN, .revents = 0};
    REQUIRE(poll(&readable, 1, 30'000) == 1);
  }

 private:
  const Descriptor watch_;
};

TEST_CASE("Scheduler: rules hold from the start, change with their file, and reach everybody",
          "[scheduler]") {
  const TestDirectory directory;
  const std::string path = directory.Path("quotas");
  const auto write = [&path](const std::string& text) {
    std::ofstream(path + ".new") << text;
    std::filesystem::rename(path + ".new", path);
  };
  write("tenant vision jobs_max=1\njob second weight=3\n");
  SchedulerOptions options;
  options.quotas_path = path;
  const Daemon daemon(store::MakeMemoryStore(), options);
  TestAggregator a0(daemon.address(), "a0", 200);
  a0.events.Next<rpc::Registered>();
  const auto spec = [](const std::string& job, uint64_t incarnation) {
    rpc::JoinSpec spec = Spec(0, 1, 1);
    spec.job_name = job;
    spec.spec.tenant = "vision";
    spec.member.id.incarnation = Incarnation{incarnation};
    return spec;
  };
  TestMember first(Link(daemon.address()), spec("first", 1));
  first.events.Next<rpc::ViewPublished>();
  CHECK(a0.events.Next<rpc::JobViewPublished>().quota.tenant == "vision");
  TestMember second(Link(daemon.address()), spec("second", 2));
  CHECK(Contains(second.events.Next<rpc::JoinDelayed>().text,
                 "job 'second' waits: tenant 'vision' has 1 of the jobs_max=1 jobs that it may "
                 "have"));
  rpc::SchedulerAdminClient admin(daemon.address(), 30 * kSecond);
  const auto jobs = admin.ListJobs();
  REQUIRE(jobs.ok());
  REQUIRE(jobs->waiting_size() == 1);
  CHECK(jobs->waiting(0).job_name() == "second");
  REQUIRE(jobs->tenants_size() == 1);
  CHECK(jobs->tenants(0).job_count() == 1);
  CHECK(jobs->tenants(0).jobs_max() == 1);
  CHECK(jobs->jobs(0).quota().tenant() == "vision");
  // A wrong file changes nothing: the second job still has to wait.
  const Reading reading(std::filesystem::path(path).parent_path());
  write("tenant vision jobs_max=none\n");
  reading.Wait();
  const auto after_wrong = admin.ListJobs();  // The thread answers that has read the rules.
  REQUIRE(after_wrong.ok());
  CHECK(after_wrong->waiting_size() == 1);
  REQUIRE(after_wrong->tenants_size() == 1);
  CHECK(after_wrong->tenants(0).jobs_max() == 1);
  write("tenant vision jobs_max=2\njob second weight=3\njob first priority=high\n");
  second.events.Next<rpc::ViewPublished>();
  // The first job's rule has changed while the job ran.
  rpc::JobQuotaPublished changed = a0.events.Next<rpc::JobQuotaPublished>();
  CHECK(changed.quota.priority == view::Priority::kHigh);
  const rpc::JobViewPublished published = a0.events.Next<rpc::JobViewPublished>();
  CHECK(published.job_name == "second");
  CHECK(published.quota.weight == 3);
}

TEST_CASE("Scheduler: wrong rules end the start", "[scheduler]") {
  const TestDirectory directory;
  std::ofstream(directory.Path("quotas")) << "job a weight=0\n";
  const runtime::MonotonicClock clock;
  auto loop = runtime::EventLoop::Create(&clock, {.spin_ns_max = 0});
  REQUIRE(loop.ok());
  SchedulerOptions options;
  options.quotas_path = directory.Path("quotas");
  const auto scheduler = Scheduler::Start(options, store::MakeMemoryStore(), &clock, loop->get(),
                                          [](const absl::Status&) {});
  CHECK(Contains(Message(scheduler.status()), "line 1 has a wrong setting: weight is '0'; give"));
}

}  // namespace
}  // namespace talweg::scheduler
