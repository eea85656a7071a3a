// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_AGGREGATION_CORE_PARTS_FIXTURE_H_
#define TALWEG_LIBS_AGGREGATION_CORE_PARTS_FIXTURE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "libs/aggregation/aggregator_core_config.h"
#include "libs/aggregation/aggregator_tensor.h"
#include "libs/aggregation/attendance.h"
#include "libs/aggregation/effects.h"
#include "libs/aggregation/present_view.h"
#include "libs/aggregation/status.h"
#include "libs/base/fingerprint.h"

// The parts of the core, for tests of one part without the others.
namespace talweg::aggregation {

struct CoreParts {
  static constexpr int64_t kSecond = 1'000'000'000;

  // `member_count` members with one rank each, over connections 10, 11, ...
  explicit CoreParts(uint32_t member_count = 2) {
    view.job = config.job;
    view.epoch = Epoch{1};
    for (uint32_t i = 0; i < member_count; ++i) {
      view.members.push_back({.id = {NodeRank{i}, Incarnation{100 + i}},
                              .rank_count = 1,
                              .name = "host-" + std::to_string(i)});
    }
    view.aggregators.push_back({.incarnation = config.self, .name = "agg"});
    Publish();
  }

  void Publish() {
    present.Set(view, gone);
    attendance.OnView(view.members.size());
  }
  void NextEpoch() {
    view.epoch = view.epoch.Next();
    Publish();
  }
  static ConnectionId Conn(uint32_t member) { return ConnectionId{10 + member}; }
  void EnterAll() {
    for (uint32_t i = 0; i < view.members.size(); ++i) attendance.Enter(MemberIndex{i}, Conn(i));
  }

  wire::Declare DeclareOf(const std::string& name, uint64_t element_count = 4) const {
    return {.key = TensorKey{Fingerprint64(name)},
            .name = name,
            .collective = Collective::Of(DType::kF32, Op::kSum, element_count),
            .result = {wire::RemoteRef{1, 0x1000}, wire::RemoteRef{1, 0x2000}}};
  }
  // All members have declared the tensor. It is cut, and has no memory yet.
  AggregatorTensor& Declared(const std::string& name, uint64_t element_count = 4) {
    const wire::Declare declare = DeclareOf(name, element_count);
    AggregatorTensor& tensor = tensors[declare.key];
    tensor.key = declare.key;
    tensor.agreed = AgreementOf(declare, view.epoch);
    tensor.declarations.assign(view.members.size(), {.declared = true, .result = declare.result});
    tensor.Place(view, *present.self());
    return tensor;
  }
  // All have been answered, too. Member i's slots are allocation 100 + i; the result is 99.
  AggregatorTensor& Answered(const std::string& name, uint64_t element_count = 4) {
    AggregatorTensor& tensor = Declared(name, element_count);
    for (uint32_t i = 0; i < view.members.size(); ++i) {
      tensor.declarations[i].answered = true;
      tensor.slots[view.members[i].id] = {.id = AllocationId{100 + i},
                                          .bytes = tensor.SlotBytes(),
                                          .ref = wire::RemoteRef{100 + i, 0}};
    }
    tensor.result = AllocationId{99};
    tensor.result_is_here = true;
    return tensor;
  }

  template <typename T>
  std::vector<T> Of() const {
    std::vector<T> found;
    for (const Effect& effect : out) {
      if (const T* match = std::get_if<T>(&effect)) found.push_back(*match);
    }
    return found;
  }
  // The entries of one type, with the connections that they were sent to.
  template <typename Entry>
  std::vector<std::pair<ConnectionId, Entry>> Sent() const {
    std::vector<std::pair<ConnectionId, Entry>> found;
    for (const Send& send : Of<Send>()) {
      const Entry* entry = std::get_if<Entry>(&send.entry);
      if (entry != nullptr) found.emplace_back(send.connection, *entry);
    }
    return found;
  }

  AggregatorCoreConfig config{
      .job = JobId{5}, .name = "job", .self = Incarnation{900}, .self_name = "agg"};
  view::View view;
  view::Gone gone;  // Comes with it.
  PresentView present{config.job, config.self};
  Attendance attendance;
  Counters counters;
  Tensors tensors;
  Effects out;
};

}  // namespace talweg::aggregation

#endif  // TALWEG_LIBS_AGGREGATION_CORE_PARTS_FIXTURE_H_
