// SPDX-License-Identifier: Apache-2.0
#include "libs/transport/libfabric/connection.h"

#include <string.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libs/transport/keys.h"

namespace talweg::transport {
namespace {

constexpr size_t kTransfersMax = 128;
constexpr size_t kFrameBuffersMax = 16;  // Used if frames must be sent from registered memory.

}  // namespace

absl::Status FabricConnection::Open(fi_info* info, int receive_buffers) {
  const auto failed = [&](const char* call, int64_t error) {
    const std::string text =
        std::string(call) + " for the connection with " + peer_ + ": " + FabricErrorText(error);
    if (error == -FI_EMFILE || error == -ENFILE) {
      return absl::ResourceExhaustedError(text + "; raise the descriptor limit (ulimit -n)");
    }
    return absl::UnavailableError(text);
  };
  const ProviderLimits& limits = provider_->limits();
  receive_count_ = std::clamp<size_t>(receive_buffers, 1, limits.receive_depth);
  transfers_.resize(std::clamp<size_t>(limits.transmit_depth, 1, kTransfersMax));
  for (size_t i = transfers_.size(); i-- > 0;) {
    transfers_[i].index = i;
    free_transfers_.push_back(i);
  }
  const absl::Status allocated = AllocateBuffers();
  if (!allocated.ok()) return allocated;

  fi_cq_attr queue_attr{};
  queue_attr.size = transfers_.size() + receive_count_;
  queue_attr.format = FI_CQ_FORMAT_MSG;
  queue_attr.wait_obj = FI_WAIT_FD;
  fid_cq* queue = nullptr;
  int64_t error = fi_cq_open(provider_->domain(), &queue_attr, &queue, nullptr);
  if (error != 0) return failed("fi_cq_open", error);
  completion_queue_.reset(queue);
  error = fi_control(&queue->fid, FI_GETWAIT, &descriptor_);
  if (error != 0) return failed("fi_control(FI_GETWAIT)", error);

  fid_ep* endpoint = nullptr;
  error = fi_endpoint(provider_->domain(), info, &endpoint, this);
  if (error != 0) return failed("fi_endpoint", error);
  endpoint_.reset(endpoint);
  request_taken_ = true;
  error = fi_ep_bind(endpoint, &provider_->event_queue()->fid, 0);
  if (error != 0) return failed("fi_ep_bind to the event queue", error);
  error = fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV);
  if (error != 0) return failed("fi_ep_bind to the completion queue", error);
  error = fi_enable(endpoint);
  if (error != 0) return failed("fi_enable", error);

  // Posted before the connection is established, so that the peer's first frame finds them.
  for (size_t i = 0; i < receive_count_; ++i) {
    const absl::Status posted = Repost(i);
    if (!posted.ok()) return posted;
  }
  return absl::OkStatus();
}

absl::Status FabricConnection::AllocateBuffers() {
  const bool registered = provider_->limits().local_keys;
  const size_t frame_buffers = registered ? kFrameBuffersMax : 0;
  const size_t count = receive_count_ + frame_buffers;
  // Not cleared, so that pages that no frame has used are never touched.
  buffers_.reset(new std::byte[count * wire::kFrameBytesMax]);
  for (size_t i = count; i-- > receive_count_;) free_frame_buffers_.push_back(i);
  if (registered) {
    absl::StatusOr<MemoryRegionHandle> region =
        provider_->RegisterMemory(buffers_.get(), count * wire::kFrameBytesMax, FI_SEND | FI_RECV,
                                  KeySource(0).Next(provider_->limits().key_bits));
    if (!region.ok()) return region.status();
    buffers_region_ = *std::move(region);
  }
  receives_.resize(receive_count_);
  for (size_t i = 0; i < receive_count_; ++i) {
    Transfer& receive = receives_[i];
    receive.buffer = i;
    receive.local[0] = {ReceiveBuffer(i), wire::kFrameBytesMax};
    receive.descriptors[0] = registered ? fi_mr_desc(buffers_region_.get()) : nullptr;
  }
  return absl::OkStatus();
}

std::byte* FabricConnection::ReceiveBuffer(size_t index) {
  return buffers_.get() + index * wire::kFrameBytesMax;
}

absl::Status FabricConnection::Repost(size_t buffer) {
  if (closed()) return absl::OkStatus();
  Transfer& receive = receives_[buffer];
  fi_msg message{};
  message.msg_iov = receive.local.data();
  message.desc = receive.descriptors.data();
  message.iov_count = 1;
  message.context = &receive.scratch;
  const ssize_t error = fi_recvmsg(endpoint_.get(), &message, FI_COMPLETION);
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError("receive from " + peer_ + ": " + FabricErrorText(error));
}

void FabricConnection::PostWrite(RegionSlice source, wire::RemoteRef target, uint64_t context) {
  auto post = std::make_unique<Post>();
  post->source = source;
  post->target = target;
  post->context = context;
  pending_bytes_ += source.length;
  waiting_bytes_ += source.length;
  posts_.push_back(std::move(post));
}

void FabricConnection::PostFrame(std::vector<std::byte> frame) {
  auto post = std::make_unique<Post>();
  post->is_frame = true;
  post->frame = std::move(frame);
  pending_bytes_ += post->frame.size();
  waiting_bytes_ += post->frame.size();
  posts_.push_back(std::move(post));
}

absl::Status FabricConnection::Advance() {
  if (!established_ || closed()) return absl::OkStatus();
  absl::Status failure;
  while (next_post_ < posts_.size() && HandNext(&failure)) {
  }
  return failure;
}

// Hands one transfer over. Returns false if the provider takes none now, or has failed.
bool FabricConnection::HandNext(absl::Status* failure) {
  if (free_transfers_.empty()) return false;
  Transfer& transfer = transfers_[free_transfers_.back()];
  const ssize_t error = posts_[next_post_]->is_frame ? HandFrame(transfer) : HandWrites(transfer);
  if (error == -FI_EAGAIN) return false;
  if (error != 0) {
    *failure = absl::UnavailableError("send to " + peer_ + ": " + FabricErrorText(error));
    return false;
  }
  free_transfers_.pop_back();
  for (size_t i = 0; i < transfer.post_count; ++i) {
    Post& post = *transfer.posts[i];
    post.handed_bytes += transfer.post_bytes[i];
    waiting_bytes_ -= transfer.post_bytes[i];
    ++post.transfers;
    post.handed = post.handed_bytes == (post.is_frame ? post.frame.size() : post.source.length);
    if (post.handed) ++next_post_;
  }
  return true;
}

ssize_t FabricConnection::HandFrame(Transfer& transfer) {
  const ProviderLimits& limits = provider_->limits();
  Post& post = *posts_[next_post_];
  const size_t length = post.frame.size();
  transfer.post_count = 1;
  transfer.posts[0] = &post;
  transfer.post_bytes[0] = length;
  // Injected bytes need not be registered.
  const bool inject = length <= limits.inject_bytes_max;
  transfer.local[0] = {post.frame.data(), length};
  transfer.descriptors[0] = nullptr;
  const bool copied = limits.local_keys && !inject;
  if (copied) {
    if (free_frame_buffers_.empty()) return -FI_EAGAIN;
    post.frame_buffer = free_frame_buffers_.back();
    transfer.local[0].iov_base = ReceiveBuffer(post.frame_buffer);
    memcpy(transfer.local[0].iov_base, post.frame.data(), length);
    transfer.descriptors[0] = fi_mr_desc(buffers_region_.get());
  }
  fi_msg message{};
  message.msg_iov = transfer.local.data();
  message.desc = transfer.descriptors.data();
  message.iov_count = 1;
  message.context = &transfer.scratch;
  const ssize_t error =
      fi_sendmsg(endpoint_.get(), &message, FI_COMPLETION | (inject ? FI_INJECT : 0));
  if (error == 0 && copied) free_frame_buffers_.pop_back();
  if (error != 0) post.frame_buffer = 0;
  return error;
}

bool FabricConnection::IsOnDevice(const Post& post) {
  return static_cast<const FabricRegistration*>(post.source.registration)->on_device();
}

ssize_t FabricConnection::HandWrites(Transfer& transfer) {
  GatherWrites(transfer);
  for (size_t i = 1; i < transfer.post_count; ++i) {
    TALWEG_CHECK(IsOnDevice(*transfer.posts[i]) == IsOnDevice(*transfer.posts[0]));
  }
  fi_msg_rma message{};
  message.msg_iov = transfer.local.data();
  message.desc = transfer.descriptors.data();
  message.iov_count = transfer.part_count;
  message.rma_iov = transfer.remote.data();
  message.rma_iov_count = transfer.part_count;
  message.context = &transfer.scratch;
  return fi_writemsg(endpoint_.get(), &message, FI_COMPLETION);
}

// Gathers as many of the next writes as fit into one transfer. Bytes that are contiguous on both
// sides are one part.
void FabricConnection::GatherWrites(Transfer& transfer) {
  const ProviderLimits& limits = provider_->limits();
  const size_t parts_max = std::clamp<size_t>(limits.write_parts_max, 1, kPartsMax);
  transfer.post_count = 0;
  transfer.part_count = 0;
  size_t bytes = 0;
  for (size_t i = next_post_; i < posts_.size() && transfer.post_count < kPostsMax; ++i) {
    Post& post = *posts_[i];
    if (post.is_frame) return;
    const size_t left = post.source.length - post.handed_bytes;
    if (transfer.post_count > 0 && bytes + left > kGatheredBytesMax) return;
    const size_t length = std::min(left, limits.write_bytes_max - bytes);
    const auto* source = static_cast<const FabricRegistration*>(post.source.registration);
    std::byte* const from = source->bytes().data() + post.source.offset + post.handed_bytes;
    void* const descriptor =
        limits.local_keys || source->on_device() ? source->descriptor() : nullptr;
    // Not all providers take both kinds of memory in one transfer, and none reports whether it
    // does.
    if (transfer.post_count > 0 && IsOnDevice(post) != IsOnDevice(*transfer.posts[0])) return;
    const uint64_t to = post.target.address + post.handed_bytes;

    bool joins = false;
    if (transfer.part_count > 0) {
      const size_t last = transfer.part_count - 1;
      iovec& local = transfer.local[last];
      fi_rma_iov& remote = transfer.remote[last];
      joins = static_cast<std::byte*>(local.iov_base) + local.iov_len == from &&
              transfer.descriptors[last] == descriptor && remote.key == post.target.key &&
              remote.addr + remote.len == to;
      if (joins) {
        local.iov_len += length;
        remote.len += length;
      }
    }
    if (!joins) {
      if (transfer.part_count == parts_max) return;
      transfer.local[transfer.part_count] = {from, length};
      transfer.descriptors[transfer.part_count] = descriptor;
      transfer.remote[transfer.part_count] = {to, length, post.target.key};
      ++transfer.part_count;
    }
    transfer.posts[transfer.post_count] = &post;
    transfer.post_bytes[transfer.post_count] = length;
    ++transfer.post_count;
    bytes += length;
    if (length < left) return;
  }
}

absl::StatusOr<std::optional<FabricConnection::Completion>> FabricConnection::Read() {
  Completion completion;
  if (!written_.empty()) {
    completion.kind = Completion::Kind::kWriteDone;
    completion.context = written_.front();
    written_.pop_front();
    return completion;
  }
  fi_cq_msg_entry entry{};
  const ssize_t count = fi_cq_read(completion_queue_.get(), &entry, 1);
  if (count == -FI_EAGAIN || count == 0) return std::nullopt;
  if (count == -FI_EAVAIL) return ReadError();
  if (count < 0) {
    return absl::UnavailableError("completions of " + peer_ + ": " + FabricErrorText(count));
  }
  auto* transfer = static_cast<Transfer*>(entry.op_context);
  if (transfer == nullptr) return completion;
  if (transfer->post_count == 0) {
    completion.kind = Completion::Kind::kFrame;
    completion.buffer = transfer->buffer;
    completion.frame = {ReceiveBuffer(transfer->buffer),
                        std::min<size_t>(entry.len, wire::kFrameBytesMax)};
    return completion;
  }
  free_transfers_.push_back(transfer->index);
  for (size_t i = 0; i < transfer->post_count; ++i) {
    Post* const post = transfer->posts[i];
    --post->transfers;
    if (!post->handed || post->transfers > 0) continue;
    if (!post->is_frame) written_.push_back(post->context);
    Retire(post);
  }
  // The next calls return the other finished writes.
  return completion;
}

void FabricConnection::Retire(Post* post) {
  if (post->is_frame && post->frame_buffer != 0) free_frame_buffers_.push_back(post->frame_buffer);
  pending_bytes_ -= post->is_frame ? post->frame.size() : post->source.length;
  while (next_post_ > 0 && posts_.front()->handed && posts_.front()->transfers == 0) {
    posts_.pop_front();
    --next_post_;
  }
}

absl::StatusOr<std::optional<FabricConnection::Completion>> FabricConnection::ReadError() {
  fi_cq_err_entry error{};
  const ssize_t count = fi_cq_readerr(completion_queue_.get(), &error, 0);
  if (count == -FI_EAGAIN) return std::nullopt;
  if (count < 0) {
    return absl::UnavailableError("completions of " + peer_ + ": " + FabricErrorText(count));
  }
  switch (error.err) {
    case FI_ECANCELED:
    case FI_ENOTCONN:
    case FI_ESHUTDOWN:
    case FI_ECONNRESET:
    case FI_ECONNABORTED:
    case EPIPE:
      return absl::UnavailableError(peer_ + " closed the connection, or its process ended");
    case FI_ETRUNC:
    case FI_EMSGSIZE:
      return absl::UnavailableError(peer_ + " sent a frame longer than " +
                                    std::to_string(wire::kFrameBytesMax) + " bytes");
    default:
      return absl::UnavailableError("transfer with " + peer_ + ": " + FabricErrorText(error.err));
  }
}

void FabricConnection::Close() {
  endpoint_.reset();
  completion_queue_.reset();
  descriptor_ = -1;
  posts_.clear();
  next_post_ = 0;
  pending_bytes_ = 0;
  waiting_bytes_ = 0;
  written_.clear();
}

}  // namespace talweg::transport
