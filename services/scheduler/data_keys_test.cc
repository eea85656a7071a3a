// SPDX-License-Identifier: Apache-2.0
// Who is given which key of the data plane.
#include <vector>

#include <catch2/catch.hpp>

#include "libs/rpc/admin_client.h"
#include "libs/rpc/scheduler_client.h"
#include "libs/transport/tcp/data_key.h"
#include "services/scheduler/daemon_testing.h"
#include "services/scheduler/testing.h"

namespace talweg::scheduler {
namespace {

TEST_CASE("Scheduler: each member gets its own keys of data connections", "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  const std::string listener(64, 'a');
  PoolMember a0(daemon.address(), "a0", 200, "tcp://127.0.0.1:1/tls/" + listener + ",local:@x");
  a0.events.Next<rpc::Registered>();
  Member first(Link(daemon.address()), Spec(0, 2, 2));
  Member second(Link(daemon.address()), Spec(1, 2, 2));
  std::vector<transport::DataKey> keys;
  for (Member* member : {&first, &second}) {
    const View view = member->events.Next<rpc::ViewPublished>().view;
    const std::string& address = view.aggregators.at(0).data_address;
    CHECK(address.ends_with(",local:@x"));
    CHECK_FALSE(address.find(listener) != std::string::npos);
    const auto parsed = transport::ParseTcpAddress(address.substr(0, address.find(',')));
    REQUIRE(parsed.ok());
    CHECK(parsed->security == transport::DataSecurity::kTls);
    const uint32_t node = static_cast<uint32_t>(keys.size());
    CHECK(parsed->identity == transport::PeerIdentity{.job = view.job,
                                                      .epoch = view.epoch,
                                                      .node = NodeRank{node},
                                                      .incarnation = Incarnation{100 + node}});
    keys.push_back(parsed->key);
  }
  CHECK(keys[0] != keys[1]);
  const View served = a0.events.Next<rpc::JobViewPublished>().view;
  CHECK(served.aggregators.at(0).data_address == "tcp://127.0.0.1:1,local");
  rpc::SchedulerAdminClient admin(daemon.address(), 30 * kSecond);
  v1::GetJobRequest by_name;
  by_name.set_name("mnist");
  CHECK_FALSE(Contains(admin.GetJob(by_name)->DebugString(), "/tls"));
  CHECK_FALSE(Contains(admin.ListAggregators()->DebugString(), "/tls"));
}

TEST_CASE("Scheduler: it may let in one data_security alone", "[scheduler]") {
  SchedulerOptions options;
  options.data_security = "keyed";
  const Daemon daemon(store::MakeMemoryStore(), options);
  rpc::JoinSpec spec = Spec(0, 1, 1);
  spec.data_security = "none";
  Member open(Link(daemon.address()), spec);
  const std::string text = Message(open.Refusal());
  CHECK(Contains(text, "data_security=none"));
  CHECK(Contains(text, "data_security=keyed"));
  PoolMember fabric(daemon.address(), "a0", 200);
  CHECK(Contains(Message(fabric.events.Next<rpc::RegistrationRefused>().status),
                 "aggregator a0 runs with data_security=none"));
  PoolMember keyed(daemon.address(), "a0", 201, "tcp://h:1/keyed/" + std::string(64, 'a'));
  keyed.events.Next<rpc::Registered>();
  spec.data_security = "keyed";
  Member member(Link(daemon.address()), spec);
  member.events.Next<rpc::ViewPublished>();
}

}  // namespace
}  // namespace talweg::scheduler
