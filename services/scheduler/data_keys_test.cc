// SPDX-License-Identifier: Apache-2.0
// Which process gets which keys of the data plane.
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/rpc/admin_client.h"
#include "libs/rpc/scheduler_client.h"
#include "libs/transport/proof/data_key.h"
#include "services/scheduler/daemon_testing.h"
#include "services/scheduler/testing.h"

namespace talweg::scheduler {
namespace {

TEST_CASE("Scheduler: each member gets its own keys of data connections", "[scheduler]") {
  const Daemon daemon(store::MakeMemoryStore());
  const std::vector<std::string> places = {"tcp://127.0.0.1:1/tls/", "fi:tcp://127.0.0.1:2/"};
  const std::vector<std::string> listeners = {"s" + std::string(64, 'a'),
                                              "s" + std::string(64, 'b')};
  TestAggregator a0(daemon.address(), "a0", 200,
                    places[0] + listeners[0] + "," + places[1] + listeners[1] + ",local:@x");
  a0.events.Next<rpc::Registered>();
  TestMember first(Link(daemon.address()), Spec(0, 2, 2));
  TestMember second(Link(daemon.address()), Spec(1, 2, 2));
  std::set<transport::DataKey> keys;
  uint32_t node = 0;
  for (TestMember* member : {&first, &second}) {
    const view::View view = member->events.Next<rpc::ViewPublished>().view;
    const transport::PeerIdentity identity = {.job = view.job,
                                              .epoch = view.epoch,
                                              .node = NodeRank{node},
                                              .incarnation = Incarnation{100 + node}};
    ++node;
    std::string rest = view.aggregators.at(0).data_address;
    for (size_t i = 0; i < places.size(); ++i) {
      REQUIRE(rest.starts_with(places[i]));
      const size_t end = rest.find(',');
      const auto key = transport::ParseAddressKey(
          std::string_view(rest).substr(places[i].size(), end - places[i].size()));
      REQUIRE(key);
      CHECK(key->identity == identity);
      const auto listener = transport::ParseAddressKey(listeners[i]);
      CHECK(key->is_seed);
      CHECK(key->key == transport::MemberSeed(listener->key, identity));
      keys.insert(key->key);
      rest.erase(0, end + 1);
    }
    CHECK(rest == "local:@x");
  }
  CHECK(keys.size() == 4);
  const view::View served = a0.events.Next<rpc::JobViewPublished>().view;
  CHECK(served.aggregators.at(0).data_address == "tcp://127.0.0.1:1,fi:tcp://127.0.0.1:2,local");
  rpc::SchedulerAdminClient admin(daemon.address(), 30 * kSecond);
  v1::GetJobRequest by_name;
  by_name.set_name("mnist");
  for (const std::string& shown :
       {admin.GetJob(by_name)->DebugString(), admin.ListAggregators()->DebugString()}) {
    CHECK(Contains(shown, "tcp://127.0.0.1:1,fi:tcp://127.0.0.1:2"));
    CHECK_FALSE(Contains(shown, "tcp://127.0.0.1:1/"));
    CHECK_FALSE(Contains(shown, "tcp://127.0.0.1:2/"));
  }
}

TEST_CASE("Scheduler: it may admit only one data_security", "[scheduler]") {
  SchedulerOptions options;
  options.data_security = "keyed";
  const Daemon daemon(store::MakeMemoryStore(), options);
  rpc::JoinSpec spec = Spec(0, 1, 1);
  spec.data_security = "none";
  TestMember open(Link(daemon.address()), spec);
  const std::string text = Message(open.Refusal());
  CHECK(Contains(text, "data_security=none"));
  CHECK(Contains(text, "data_security=keyed"));
  TestAggregator fabric(daemon.address(), "a0", 200);
  CHECK(Contains(Message(fabric.events.Next<rpc::RegistrationRefused>().status),
                 "aggregator a0 runs with data_security=none"));
  TestAggregator keyed(daemon.address(), "a0", 201, "tcp://h:1/keyed/" + std::string(64, 'a'));
  keyed.events.Next<rpc::Registered>();
  spec.data_security = "keyed";
  TestMember member(Link(daemon.address()), spec);
  member.events.Next<rpc::ViewPublished>();
}

}  // namespace
}  // namespace talweg::scheduler
