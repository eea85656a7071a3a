// SPDX-License-Identifier: Apache-2.0
#include "libs/membership/perform.h"

#include <string>
#include <vector>

#include <catch2/catch.hpp>

namespace talweg::membership {
namespace {

// Writes down what it is asked to do.
class Recorder final : public EffectSink {
 public:
  explicit Recorder(bool stores) : stores_(stores) {}

  bool Store(const StoreWrite& /*write*/) override {
    done.emplace_back("store");
    return stores_;
  }
  void Tell(const TellMember& /*told*/) override { done.emplace_back("member"); }
  void Tell(const TellAggregator& /*told*/) override { done.emplace_back("aggregator"); }
  void Close(const CloseStream& /*closed*/) override { done.emplace_back("close"); }
  void Say(const Note& note) override { done.push_back(note.text); }

  std::vector<std::string> done;

 private:
  const bool stores_;
};

std::vector<Effect> OneOfEach() {
  return {Persist{}, TellMember{}, TellAggregator{}, CloseStream{}, Note{"note"}};
}

TEST_CASE("Perform: effects are performed in their order", "[membership]") {
  Recorder recorder(true);
  CHECK(Perform(OneOfEach(), recorder));
  CHECK(recorder.done ==
        std::vector<std::string>{"store", "member", "aggregator", "close", "note"});
}

TEST_CASE("Perform: nobody is told what the store has not taken", "[membership]") {
  Recorder recorder(false);
  CHECK_FALSE(Perform(OneOfEach(), recorder));
  CHECK(recorder.done == std::vector<std::string>{"store"});
}

}  // namespace
}  // namespace talweg::membership
