// SPDX-License-Identifier: Apache-2.0
//
// Two TensorFlow operations. TalwegReduce is a push_pull or a broadcast that occupies no thread
// while it waits. TalwegCheck fails with what a Python function has found, because such a function
// cannot choose among TensorFlow's errors. _kernel.py builds this file against the TensorFlow that
// is installed, and loads it.
//
// Python says what a tensor is called, and what the ranks agree on for it. It does so at an
// operation's first execution, and again for another shape or another client. Later executions
// push, and the client's completion loop calls them back. Where a name no longer means one tensor,
// Python carries out the execution, without a thread that waits for it. Python hears of each
// mismatch, which frees the name.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "clients/c/completion_loop.h"
#include "clients/c/talweg.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/threadpool.h"

namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// What Python says about an operation's tensor. _kernel.py has the same struct.
struct Resolution {
  uint64_t client;  // talweg_client*; 0: a job of one rank, without an agent.
  uint64_t generation;
  uint64_t signature;
  double prescale;
  double postscale;
  uint32_t tensor;
  uint32_t dtype;
  int32_t priority;
  uint32_t broadcasts;
  uint32_t notifies;   // Python wants to hear of each round.
  uint32_t by_python;  // Python carries out the execution.
};

constexpr size_t kTextBytes = 2048;

struct Callbacks {
  // Returns a status of tf.errors, and its text. 0 means none.
  int (*resolve)(int64_t site, const int64_t* lengths, uint64_t dimensions, Resolution* resolution,
                 char* text);
  // Reports that a round has ended.
  void (*ended)(int64_t site, int64_t begin_ns);
  // Carries out an execution. talweg_tf_over() reports its end.
  void (*begin)(int64_t site, const int64_t* lengths, uint64_t dimensions, const char* source,
                char* out, uint64_t execution);
  // Reports that a round has ended with the mismatch at `text`. Writes there the text for the user.
  void (*disagreed)(int64_t site, const int64_t* lengths, uint64_t dimensions, char* text);
};

std::atomic<const Callbacks*> python{nullptr};

// An execution that Python carries out. Python calls it when it is done.
using Execution = std::function<void(const absl::Status& status)>;
using Lengths = std::vector<int64_t>;
std::atomic<uint64_t> generation{1};
std::atomic<uint64_t> pushed_bytes{0};

// TensorFlow's own threads copy or sum the results of larger tensors.
constexpr size_t kSmallBytes = 64 << 10;

class Loops {
 public:
  std::shared_ptr<talweg::c::CompletionLoop> Of(talweg_client* client) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<talweg::c::CompletionLoop>& loop = loops_[client];
    if (loop == nullptr) loop = std::make_shared<talweg::c::CompletionLoop>(client);
    return loop;
  }
  void Forget() {
    std::map<talweg_client*, std::shared_ptr<talweg::c::CompletionLoop>> loops;
    const std::lock_guard<std::mutex> lock(mutex_);
    loops.swap(loops_);
    generation.fetch_add(1);
  }

 private:
  std::mutex mutex_;
  std::map<talweg_client*, std::shared_ptr<talweg::c::CompletionLoop>> loops_;
};

Loops& AllLoops() {
  static Loops* const loops = new Loops;  // Its threads outlive main().
  return *loops;
}

int64_t NowNs() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

absl::Status StatusOf(talweg_status status) {
  if (status == TALWEG_OK) return absl::OkStatus();
  const std::string text = talweg_last_error();
  const std::string words = text.empty() ? talweg_status_name(status) : text;
  switch (status) {
    case TALWEG_MISMATCH:
    case TALWEG_CLOSED: return absl::FailedPreconditionError(words);
    case TALWEG_ABORTED: return absl::AbortedError(words);
    case TALWEG_BUSY:
    case TALWEG_INVALID_ARGUMENT:
    case TALWEG_UNSUPPORTED: return absl::InvalidArgumentError(words);
    default: return absl::UnknownError(words);
  }
}

class ReduceOp : public tensorflow::AsyncOpKernel {
 public:
  explicit ReduceOp(tensorflow::OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("site", &site_));
  }

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const Tensor& input = context->input(0);
    const uint64_t count = static_cast<uint64_t>(input.NumElements());
    const auto sizes = input.shape().dim_sizes();
    const Lengths lengths(sizes.begin(), sizes.end());
    Resolution resolution;
    const absl::Status found = Resolved(lengths, &resolution);
    OP_REQUIRES_OK_ASYNC(context, found, done);
    Tensor* output = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, input.shape(), &output), done);

    const char* source = input.tensor_data().data();
    char* const out = const_cast<char*>(output->tensor_data().data());
    const size_t bytes = input.tensor_data().size();
    const auto dtype = static_cast<talweg_dtype>(resolution.dtype);
    if (resolution.by_python != 0) {
      // The root of a broadcast gets what it gives.
      if (resolution.broadcasts != 0 && bytes > 0) std::memcpy(out, source, bytes);
      auto* const over = new Execution([context, done](const absl::Status& status) {
        if (!status.ok()) context->SetStatus(status);
        done();
      });
      python.load()->begin(site_, lengths.data(), lengths.size(), source, out,
                           reinterpret_cast<uint64_t>(over));
      return;
    }
    std::vector<char> scaled;
    if (resolution.prescale != 1.0) {
      scaled.resize(bytes);
      const talweg_status status =
          talweg_scale(dtype, resolution.prescale, source, scaled.data(), count);
      OP_REQUIRES_OK_ASYNC(context, StatusOf(status), done);
      source = scaled.data();
    }
    // A job of one rank, and the root of a broadcast, get what they give.
    if (resolution.client == 0 || resolution.broadcasts != 0) {
      if (bytes > 0) std::memcpy(out, source, bytes);
    }
    if (resolution.client == 0) {
      Finish(context, resolution, lengths, count, out, 0, TALWEG_OK, done);
      return;
    }
    auto* const client = reinterpret_cast<talweg_client*>(resolution.client);
    const int64_t begin_ns = NowNs();
    talweg_round round = 0;
    const talweg_status pushed =
        talweg_push_parts(client, resolution.tensor, source, nullptr, resolution.signature,
                          resolution.priority, -1, &round);
    if (pushed != TALWEG_OK) {
      Finish(context, resolution, lengths, count, out, begin_ns, pushed, done);
      return;
    }
    pushed_bytes.fetch_add(bytes);
    auto take = [this, context, resolution, lengths, count, out, begin_ns, client, round,
                 done](talweg_status told) {
      if (told == TALWEG_OK) told = talweg_wait(client, resolution.tensor, round, out, -1);
      Finish(context, resolution, lengths, count, out, begin_ns, told, done);
    };
    auto* const threads = context->device()->tensorflow_cpu_worker_threads()->workers;
    AllLoops().Of(client)->Watch(resolution.tensor, round,
                                 [take = std::move(take), bytes, threads](talweg_status told) {
                                   if (told != TALWEG_OK || bytes <= kSmallBytes) {
                                     take(told);
                                   } else {
                                     threads->Schedule([take, told] { take(told); });
                                   }
                                 });
  }

 private:
  absl::Status Resolved(const Lengths& lengths, Resolution* resolution) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto known = resolutions_.find(lengths);
      if (known != resolutions_.end() && known->second.generation == generation.load()) {
        *resolution = known->second;
        return absl::OkStatus();
      }
    }
    // This does not hold the lock: Python may wait for a lock of its own.
    const Callbacks* const callbacks = python.load();
    if (callbacks == nullptr) {
      return absl::FailedPreconditionError("talweg.tensorflow is not loaded");
    }
    std::string text(kTextBytes, '\0');
    const int code =
        callbacks->resolve(site_, lengths.data(), lengths.size(), resolution, text.data());
    if (code != 0) return absl::Status(static_cast<absl::StatusCode>(code), text.c_str());
    const std::lock_guard<std::mutex> lock(mutex_);
    resolutions_[lengths] = *resolution;
    return absl::OkStatus();
  }

  // `done` may delete this.
  void Finish(OpKernelContext* context, const Resolution& resolution, const Lengths& lengths,
              uint64_t count, char* out, int64_t begin_ns, talweg_status status,
              const DoneCallback& done) {
    absl::Status ended = StatusOf(status);  // The text is that of this thread's last error.
    if (status == TALWEG_OK && resolution.postscale != 1.0) {
      ended = StatusOf(talweg_scale(static_cast<talweg_dtype>(resolution.dtype),
                                    resolution.postscale, out, out, count));
    }
    if (resolution.notifies != 0) python.load()->ended(site_, begin_ns);
    if (status == TALWEG_MISMATCH) {
      std::string text(ended.message().substr(0, kTextBytes - 1));
      text.resize(kTextBytes);
      python.load()->disagreed(site_, lengths.data(), lengths.size(), text.data());
      ended = absl::FailedPreconditionError(text.c_str());
    }
    if (!ended.ok()) context->SetStatus(ended);
    done();
  }

  int64_t site_ = 0;
  std::mutex mutex_;
  std::map<Lengths, Resolution> resolutions_;  // The key is the shape.
};

class CheckOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const int32_t code = context->input(0).scalar<int32_t>()();
    if (code == 0) return;
    const std::string text = context->input(1).scalar<tensorflow::tstring>()();
    context->SetStatus(absl::Status(static_cast<absl::StatusCode>(code), text));
  }
};

}  // namespace

REGISTER_OP("TalwegCheck")
    .Input("code: int32")
    .Input("text: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("TalwegCheck").Device(tensorflow::DEVICE_CPU), CheckOp);

REGISTER_OP("TalwegReduce")
    .Input("tensor: T")
    .Output("result: T")
    .Attr(
        "T: {half, bfloat16, float, double, uint8, int8, uint16, int16, uint32, int32, uint64, "
        "int64, bool}")
    .Attr("site: int")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape);

REGISTER_KERNEL_BUILDER(Name("TalwegReduce").Device(tensorflow::DEVICE_CPU), ReduceOp);

extern "C" {

// The caller keeps `callbacks` where they are.
__attribute__((visibility("default"))) void talweg_tf_install(const Callbacks* callbacks) {
  python.store(callbacks);
}

// Ends an execution that was given to `begin`, once, with a status of tf.errors.
__attribute__((visibility("default"))) void talweg_tf_over(uint64_t execution, int code,
                                                           const char* text) {
  const std::unique_ptr<Execution> over(reinterpret_cast<Execution*>(execution));
  (*over)(code == 0 ? absl::OkStatus() : absl::Status(static_cast<absl::StatusCode>(code), text));
}

// Names now mean other tensors, so each operation asks Python again.
__attribute__((visibility("default"))) void talweg_tf_ask_again() { generation.fetch_add(1); }

// The clients are closed. Open executions get an error, and each operation asks Python again.
__attribute__((visibility("default"))) void talweg_tf_forget() { AllLoops().Forget(); }

__attribute__((visibility("default"))) uint64_t talweg_tf_generation() { return generation.load(); }

// Returns how many bytes all clients of this process have pushed.
__attribute__((visibility("default"))) uint64_t talweg_tf_pushed_bytes() {
  return pushed_bytes.load();
}

}  // extern "C"
