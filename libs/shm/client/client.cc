// SPDX-License-Identifier: Apache-2.0
#include "libs/shm/client/client.h"

#include <unistd.h>

#include <cstdlib>
#include <new>

namespace talweg::shm {

RankStatus Client::Connect(const ClientOptions& options, Client** out, ErrorText& error) {
  *out = nullptr;
  void* memory = std::calloc(1, sizeof(Client));
  if (memory == nullptr) return error.Fail(RankStatus::kOutOfMemory, "no memory for the client");
  Client* client = new (memory) Client;
  client->fork_guard_.Begin();
  const RankStatus status = client->session_.Begin(options, client->fork_guard_.pid(), error);
  if (status != RankStatus::kOk) {
    Free(client);
    return status;
  }
  *out = client;
  return RankStatus::kOk;
}

void Client::Free(Client* client) {
  if (client == nullptr) return;
  if (client->fork_guard_.Forked()) {
    // The rest stays: addresses that the kernel left out of the child may be used for something
    // else by now.
    client->link_.socket().CloseInChild();
    return;
  }
  client->~Client();
  std::free(client);
}

RankStatus Client::Shutdown(int64_t timeout_ns, ErrorText& error) {
  return fork_guard_.Forked() ? FailForked(error) : session_.End(timeout_ns, error);
}

template <typename Call>
RankStatus Client::With(uint32_t index, ErrorText& error, const Call& call) {
  if (fork_guard_.Forked()) return FailForked(error);
  RankTensor* const tensor = tensors_.Find(index);
  return tensor == nullptr ? TensorTable::FailNoTensor(index, error) : call(*tensor);
}

RankStatus Client::Health(ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  waiting_.ReadSocket(0);
  RankStatus over = RankStatus::kOk;
  return health_.Over(&over) ? health_.FailOver(over, "the client", error) : RankStatus::kOk;
}

RankStatus Client::DeclareTensors(std::span<const Declare> declares, int64_t timeout_ns,
                                  uint32_t* tensors, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  return declaring_.DeclareAll(declares, timeout_ns, tensors, error);
}

uint64_t Client::TensorBytes(uint32_t tensor) const {
  const RankTensor* found = tensors_.Find(tensor);
  return found == nullptr ? 0 : found->bytes;
}

uint32_t Client::PartsGiven(uint32_t tensor) const {
  const RankTensor* found = tensors_.Find(tensor);
  return found == nullptr ? 0 : found->gives.count;
}

uint32_t Client::PartsGot(uint32_t tensor) const {
  const RankTensor* found = tensors_.Find(tensor);
  return found == nullptr ? 0 : found->gets.count;
}

uint32_t Client::PartsHeld(uint32_t tensor) const {
  const RankTensor* found = tensors_.Find(tensor);
  if (found == nullptr) return 0;
  return found->ranks_sum ? found->shape.parts_held : found->buffer.part_count;
}

bool Client::SumsInPlace(uint32_t tensor) const {
  const RankTensor* found = tensors_.Find(tensor);
  return found != nullptr && found->is_a_home();
}

RankStatus Client::Attach(uint32_t index, void* address, ErrorText& error) {
  return With(index, error,
              [&](RankTensor& tensor) { return attaching_.Attach(tensor, address, error); });
}

RankStatus Client::Detach(uint32_t index, ErrorText& error) {
  return With(index, error, [&](RankTensor& tensor) { return attaching_.Detach(tensor, error); });
}

RankStatus Client::ExportBuffer(const Export& exported, int64_t timeout_ns, uint32_t* buffer,
                                uint64_t* bytes, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  return devices_.Export(exported, timeout_ns, buffer, bytes, error);
}

RankStatus Client::UnexportBuffer(uint32_t buffer, int64_t timeout_ns, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  return devices_.Unexport(buffer, timeout_ns, error);
}

RankStatus Client::PlaceTensor(uint32_t index, uint32_t buffer, RoundSignature signature,
                               int64_t timeout_ns, GpuHandleBytes* pushed, GpuHandleBytes* taken,
                               ErrorText& error) {
  return With(index, error, [&](RankTensor& tensor) {
    return devices_.Place(tensor, buffer, signature, timeout_ns, pushed, taken, error);
  });
}

void* Client::Contribution(uint32_t tensor) const {
  const RankTensor* found = fork_guard_.Forked() ? nullptr : tensors_.Find(tensor);
  return found == nullptr ? nullptr : pushes_.Contribution(*found);
}

RankStatus Client::Push(uint32_t index, const void* data, const PushedParts& parts,
                        bool declared_priority, int32_t priority, int64_t timeout_ns,
                        uint64_t* round, ErrorText& error) {
  return With(index, error, [&](RankTensor& tensor) {
    return pushes_.Push(tensor, data, parts, declared_priority, priority, timeout_ns, round, error);
  });
}

RankStatus Client::PushOnDevice(uint32_t index, uint32_t buffer, uint64_t offset,
                                bool declared_priority, int32_t priority, int64_t timeout_ns,
                                uint64_t* round, ErrorText& error) {
  return With(index, error, [&](RankTensor& tensor) {
    return pushes_.PushOnDevice(tensor, buffer, offset, declared_priority, priority, timeout_ns,
                                round, error);
  });
}

RankStatus Client::Poll(uint32_t index, uint64_t round, ErrorText& error) {
  return With(index, error, [&](RankTensor& tensor) { return rounds_.Poll(tensor, round, error); });
}

RankStatus Client::Wait(uint32_t index, uint64_t round, const Taking& taking, int64_t timeout_ns,
                        ErrorText& error) {
  return With(index, error, [&](RankTensor& tensor) {
    return rounds_.Wait(tensor, round, taking, timeout_ns, error);
  });
}

RankStatus Client::Result(uint32_t index, uint64_t round, const void** data, uint64_t* bytes,
                          ErrorText& error) {
  return With(index, error, [&](RankTensor& tensor) {
    return rounds_.Result(tensor, round, data, bytes, error);
  });
}

uint64_t Client::RanksSummed(uint32_t index) const {
  const RankTensor* tensor = fork_guard_.Forked() ? nullptr : tensors_.Find(index);
  return tensor == nullptr ? 0 : rounds_.RanksSummed(*tensor);
}

uint64_t Client::LeftOutCount(uint32_t index) const {
  const RankTensor* tensor = fork_guard_.Forked() ? nullptr : tensors_.Find(index);
  return tensor == nullptr ? 0 : rounds_.LeftOutCount(*tensor);
}

RankStatus Client::WaitsFor(uint32_t index, uint64_t round, char* text, size_t text_bytes,
                            int64_t timeout_ns, ErrorText& error) {
  return With(index, error, [&](const RankTensor&) {
    return asking_.Whom(index, round, text, text_bytes, timeout_ns, error);
  });
}

uint64_t Client::OpenRound(uint32_t index) const {
  const RankTensor* tensor = fork_guard_.Forked() ? nullptr : tensors_.Find(index);
  return tensor == nullptr ? 0 : rounds_.OpenRound(*tensor);
}

RankStatus Client::EndStep(int64_t timeout_ns, ErrorText& error) {
  return fork_guard_.Forked() ? FailForked(error) : steps_.End(timeout_ns, error);
}

RankStatus Client::Ready(int64_t timeout_ns, ErrorText& error) {
  return fork_guard_.Forked() ? FailForked(error) : steps_.Ready(timeout_ns, error);
}

RankStatus Client::LookAtView(uint64_t epoch, RankMembership* view, MembershipMember* members,
                              uint32_t members_max, int64_t timeout_ns, ErrorText& error) {
  if (fork_guard_.Forked()) return FailForked(error);
  return steps_.Look(epoch, view, members, members_max, timeout_ns, error);
}

RankStatus Client::FollowView(uint64_t epoch, int64_t timeout_ns, ErrorText& error) {
  return fork_guard_.Forked() ? FailForked(error) : steps_.Follow(epoch, timeout_ns, error);
}

RankStatus Client::CompletionFd(int* fd, ErrorText& error) {
  return fork_guard_.Forked() ? FailForked(error) : watchers_.OpenFirst(fd, error);
}

RankStatus Client::AnotherCompletionFd(int* fd, ErrorText& error) {
  return fork_guard_.Forked() ? FailForked(error) : watchers_.OpenAnother(fd, error);
}

RankStatus Client::Watch(int fd, uint32_t index, uint64_t round, uint64_t tag, ErrorText& error) {
  return With(index, error, [&](RankTensor& tensor) {
    return completions_.Watch(fd, tensor, round, tag, error);
  });
}

RankStatus Client::Completed(int fd, uint64_t* tags, size_t capacity, size_t* count,
                             ErrorText& error) {
  *count = 0;
  if (fork_guard_.Forked()) return FailForked(error);
  return completions_.Completed(fd, tags, capacity, count, error);
}

RankStatus Client::FailForked(ErrorText& error) {
  if (!child_closed_) {
    child_closed_ = true;
    link_.socket().CloseInChild();
    attaching_.ReplaceInChild();
  }
  return error.Fail(
      RankStatus::kForked,
      "this client belongs to process %d, of which this process (%d) is a fork; connect "
      "after forking, or use the spawn start method",
      static_cast<int>(fork_guard_.pid()), static_cast<int>(::getpid()));
}

}  // namespace talweg::shm
