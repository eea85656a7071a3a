// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/bench_orders.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "clients/cli/bench_values.h"
#include "clients/cli/process.h"
#include "libs/base/descriptor.h"
#include "libs/status/status.h"

namespace talweg::cli {
namespace {

constexpr int64_t kTimeoutNs = 600'000'000'000;

absl::Status Check(talweg_status status, const std::string& what) {
  if (status == TALWEG_OK) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(what, ": ", talweg_status_name(status), ": ", talweg_last_error()));
}

// Lines to and from the process that gives the orders.
class Line {
 public:
  static absl::StatusOr<Line> Connect(const std::string& path) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path) {
      return absl::InvalidArgumentError(absl::StrCat("option --control: '", path, "' is too long"));
    }
    std::memcpy(address.sun_path, path.data(), path.size());
    Descriptor fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd.valid() ||
        connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return status::ErrnoStatus(errno, absl::StrCat("connect to ", path));
    }
    return Line(std::move(fd));
  }

  absl::Status Say(const std::string& text) {
    const std::string line = absl::StrCat(text, "\n");
    for (size_t sent = 0; sent < line.size();) {
      const ssize_t bytes = send(fd_.get(), line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes <= 0) return status::ErrnoStatus(errno, "answer the harness");
      sent += static_cast<size_t>(bytes);
    }
    return absl::OkStatus();
  }

  // Returns the next line. Empty: the other side is gone, or has said quit.
  std::string Hear() {
    for (;;) {
      const size_t end = buffer_.find('\n');
      if (end != std::string::npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line == "quit" ? "" : line;
      }
      char bytes[65536];
      const ssize_t count = recv(fd_.get(), bytes, sizeof bytes, 0);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return "";
      buffer_.append(bytes, static_cast<size_t>(count));
    }
  }

 private:
  explicit Line(Descriptor fd) : fd_(std::move(fd)) {}

  Descriptor fd_;
  std::string buffer_;
};

// Tensors as a trainer has them: gradient and result in one ordinary buffer. In place, the gradient
// is written into the client's buffer instead. If the ranks sum in place, the result lands there,
// too, else in ordinary memory.
struct Tensor {
  talweg_tensor id = 0;
  uint64_t count = 0;
  std::vector<char> own;
  std::span<char> gradient;
  std::span<char> result;
  talweg_round round = 0;
};

class Orders {
 public:
  Orders(talweg_client* client, bool in_place) : client_(client), in_place_(in_place) {}

  absl::Status Serve(Line& line) {
    for (std::string text = line.Hear(); !text.empty(); text = line.Hear()) {
      TALWEG_ASSIGN_OR_RETURN(const BenchOrder order, ParseBenchOrder(text));
      if (order != prepared_) TALWEG_RETURN_IF_ERROR(Prepare(order));
      for (uint64_t i = 0; i < order.warm_up_rounds; ++i) TALWEG_RETURN_IF_ERROR(Round());
      TALWEG_RETURN_IF_ERROR(line.Say("ready"));
      if (line.Hear().empty()) break;
      std::vector<int64_t> rounds_ns;
      const int64_t begin_ns = NowNs();
      int64_t end_ns = begin_ns;
      for (uint64_t i = 0; i < order.rounds; ++i) {
        TALWEG_RETURN_IF_ERROR(Round());
        const int64_t now_ns = NowNs();
        rounds_ns.push_back(now_ns - end_ns);
        end_ns = now_ns;
      }
      TALWEG_RETURN_IF_ERROR(line.Say(
          absl::StrCat("done ", begin_ns, " ", end_ns, " ", absl::StrJoin(rounds_ns, ","))));
    }
    return absl::OkStatus();
  }

 private:
  // Makes new buffers, and does one round whose result is checked.
  absl::Status Prepare(const BenchOrder& order) {
    const uint64_t element_bytes = talweg_dtype_bytes(order.dtype);
    const size_t tensor_count = order.tensor_bytes.size();
    std::vector<std::string> names(tensor_count);
    std::vector<talweg_declaration> declarations(tensor_count);
    for (size_t i = 0; i < tensor_count; ++i) {
      const uint64_t count = order.tensor_bytes[i] / element_bytes;
      names[i] = absl::StrCat("bench/", static_cast<int>(order.dtype), "/", count, "/", i);
      // The tensor that is pushed last is needed first.
      const auto priority = static_cast<int32_t>(i);
      declarations[i] = {names[i].c_str(), order.dtype, TALWEG_SUM, 0, priority, count};
    }
    std::vector<talweg_tensor> ids(tensor_count);
    const auto declare_all = in_place_ ? talweg_declare_all_in_place : talweg_declare_all;
    TALWEG_RETURN_IF_ERROR(
        Check(declare_all(client_, declarations.data(), tensor_count, kTimeoutNs, ids.data()),
              "declare"));
    tensors_.clear();
    for (size_t i = 0; i < tensor_count; ++i) {
      Tensor& tensor = tensors_.emplace_back();
      tensor.id = ids[i];
      tensor.count = declarations[i].count;
      const bool in_place = talweg_sums_in_place(client_, tensor.id) != 0;
      if (!in_place) tensor.own.resize(tensor.count * element_bytes);
      tensor.gradient = tensor.result = tensor.own;
      if (!in_place_) continue;
      tensor.gradient = {static_cast<char*>(talweg_contribution(client_, tensor.id)),
                         tensor.count * element_bytes};
      if (in_place) tensor.result = tensor.gradient;
    }
    Fill(order.dtype, talweg_rank(client_) + 1);
    TALWEG_RETURN_IF_ERROR(Round());
    TALWEG_RETURN_IF_ERROR(CheckSums(order.dtype));
    Fill(order.dtype, 1);  // Sums of sums soon overflow, but take the same time.
    prepared_ = order;
    return absl::OkStatus();
  }

  // Does one push_pull of every tensor.
  absl::Status Round() {
    for (Tensor& tensor : tensors_) {
      TALWEG_RETURN_IF_ERROR(
          Check(talweg_push_pull(client_, tensor.id, in_place_ ? nullptr : tensor.gradient.data(),
                                 TALWEG_DECLARED_PRIORITY, kTimeoutNs, &tensor.round),
                "push_pull"));
    }
    for (Tensor& tensor : tensors_) {
      char* const out = tensor.own.empty() ? nullptr : tensor.result.data();
      TALWEG_RETURN_IF_ERROR(
          Check(talweg_wait(client_, tensor.id, tensor.round, out, kTimeoutNs), "wait"));
    }
    return absl::OkStatus();
  }

  void Fill(talweg_dtype dtype, uint64_t number) {
    for (Tensor& tensor : tensors_) FillWith(dtype, number, tensor.gradient);
  }

  absl::Status CheckSums(talweg_dtype dtype) const {
    const uint64_t ranks = talweg_size(client_);
    for (const Tensor& tensor : tensors_) {
      TALWEG_RETURN_IF_ERROR(CheckHolds(dtype, ranks * (ranks + 1) / 2, tensor.result));
    }
    return absl::OkStatus();
  }

  talweg_client* const client_;
  const bool in_place_;
  std::vector<Tensor> tensors_;
  BenchOrder prepared_;
};

}  // namespace

absl::StatusOr<BenchOrder> ParseBenchOrder(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ');
  const absl::Status bad =
      absl::DataLossError(absl::StrCat("not an order: '", line.substr(0, 100), "'"));
  BenchOrder order;
  if (words.size() != 5 || words[0] != "prepare" ||
      !absl::SimpleAtoi(words[2], &order.warm_up_rounds) ||
      !absl::SimpleAtoi(words[3], &order.rounds) || order.rounds == 0) {
    return bad;
  }
  const absl::StatusOr<talweg_dtype> dtype = ParseDType(words[1]);
  if (!dtype.ok()) return bad;
  order.dtype = *dtype;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(words[4], ','))) {
    uint64_t bytes = 0;
    if (!absl::SimpleAtoi(word, &bytes) || bytes == 0 ||
        bytes % talweg_dtype_bytes(order.dtype) != 0) {
      return bad;
    }
    order.tensor_bytes.push_back(bytes);
  }
  return order;
}

absl::Status ServeBenchOrders(talweg_client* client, const std::string& path,
                              const std::string& contender, bool in_place) {
  TALWEG_ASSIGN_OR_RETURN(Line line, Line::Connect(path));
  TALWEG_RETURN_IF_ERROR(
      line.Say(absl::StrCat("hello ", contender, " ", talweg_rank(client), " ", getpid())));
  const absl::Status status = Orders(client, in_place).Serve(line);
  if (!status.ok()) {
    // The caller gets the error, even if nobody reads this line.
    line.Say(absl::StrCat("failed ", status.message())).IgnoreError();
  }
  return status;
}

}  // namespace talweg::cli
