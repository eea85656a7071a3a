// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/supervisor.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <utility>

#include "libs/status/status.h"

namespace talweg::cli {
namespace {

// A signal that comes twice within this time, by way of two processes, is one.
constexpr int64_t kEchoNs = 1'000'000'000;
constexpr size_t kLastLines = 20;
constexpr size_t kReadBytes = 64 << 10;

int64_t Ns(const timeval& time) {
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_usec * int64_t{1'000};
}

// Opens a file in the directory, and makes the directory; no file if `directory` is "". Appends to
// the file if `goes_on`.
absl::StatusOr<Descriptor> MakeFile(const std::string& directory, const std::string& name,
                                    bool goes_on) {
  if (directory.empty()) return Descriptor();
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const std::string path = absl::StrCat(directory, "/", name);
  const int as_before = goes_on ? O_APPEND : O_TRUNC;
  Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | as_before, 0666));
  if (file.valid()) return file;
  // The caller takes "not found" for a program that is not there.
  return absl::FailedPreconditionError(absl::StrCat("option --output-dir: make ", path, ": ",
                                                    std::strerror(error ? error.value() : errno),
                                                    "; give a directory that can be written to"));
}

std::string Indented(const std::string& lines) {
  std::string indented;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(lines, '\n'))) {
    if (!line.empty()) absl::StrAppend(&indented, "\n    ", line);
  }
  return indented;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Supervisor>> Supervisor::Make(int output_fd, int errors_fd) {
  const sigset_t mask = RunSignals();
  if (sigprocmask(SIG_BLOCK, &mask, nullptr) != 0)
    return status::ErrnoStatus(errno, "block signals");
  signal(SIGPIPE, SIG_IGN);
  const int fd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return status::ErrnoStatus(errno, "make a signalfd");
  TALWEG_RETURN_IF_ERROR(AdoptOrphans());
  return std::unique_ptr<Supervisor>(new Supervisor(fd, output_fd, errors_fd));
}

Supervisor::Supervisor(int signal_fd, int output_fd, int errors_fd)
    : signals_(signal_fd), output_(output_fd), errors_(errors_fd) {}

Supervisor::~Supervisor() { EndAll(10'000); }

absl::StatusOr<ChildId> Supervisor::Start(const ChildSpec& spec) {
  // A child that is started again must not erase the output of the failure.
  const bool goes_on = !output_directories_.insert(spec.output_directory).second;
  TALWEG_ASSIGN_OR_RETURN(Descriptor output_file,
                          MakeFile(spec.output_directory, "stdout", goes_on));
  TALWEG_ASSIGN_OR_RETURN(Descriptor errors_file,
                          MakeFile(spec.output_directory, "stderr", goes_on));
  TALWEG_ASSIGN_OR_RETURN(StartedChild started, StartChild(spec));
  const ChildId id(static_cast<uint32_t>(children_.size()));
  children_.push_back(std::unique_ptr<Child>(new Child{
      .spec = spec,
      .pid = started.pid,
      .output = {std::move(started.output), LinePrefixer(FillPrefix(spec.prefix, "%s", "stdout")),
                 LastLines(kLastLines), &output_, std::move(output_file)},
      .errors = {std::move(started.errors), LinePrefixer(FillPrefix(spec.prefix, "%s", "stderr")),
                 LastLines(kLastLines), &errors_, std::move(errors_file)},
      .ready = std::move(started.ready),
  }));
  Child& child = *children_.back();
  child.output.child = child.errors.child = &child;
  ++running_count_;
  return id;
}

void Supervisor::Signal(ChildId child, int signal_number) {
  // The process group's number belongs to the child until it is reaped, and only Reap does that.
  if (!running(child)) return;
  kill(-pid(child), signal_number);
  if (signal_number != SIGKILL) kill(-pid(child), SIGCONT);
}

std::string Supervisor::WhatItWrote(ChildId id) const {
  const Child& child = *children_[id.value()];
  const std::string errors = child.errors.last.Text();
  const std::string lines = errors.empty() ? child.output.last.Text() : errors;
  if (lines.empty() && child.spec.is_daemon) {
    return "; it has written nothing (its log comes here; TALWEG_LOG_LEVEL=info makes it longer)";
  }
  if (lines.empty()) return "";
  if (child.spec.is_daemon && shown_last_ == &child) return "; its last lines are above";
  return absl::StrCat("\n", child.spec.name, "'s last lines:", Indented(lines));
}

void Supervisor::Mute(ChildId child) {
  children_[child.value()]->output.muted = true;
  children_[child.value()]->errors.muted = true;
}

void Supervisor::Say(const std::string& line) {
  errors_.Add(absl::StrCat(line, "\n"));
  shown_last_ = nullptr;
}

void Supervisor::Run(SupervisorEvents& events) {
  stopped_ = false;
  while (!stopped_) PollOnce(events);
}

void Supervisor::PollOnce(SupervisorEvents& events) {
  enum class Kind { kSignals, kSink, kStream, kReady };
  struct Source {
    Kind kind;
    Stream* stream = nullptr;
    ChildId child;
  };
  std::vector<pollfd> fds;
  std::vector<Source> sources;
  const auto add = [&](int fd, short what, Source source) {
    fds.push_back({fd, what, 0});
    sources.push_back(source);
  };
  add(signals_.get(), POLLIN, {Kind::kSignals});
  for (const OutputQueue* queue : {&output_, &errors_}) {
    if (!queue->empty()) add(queue->fd(), POLLOUT, {Kind::kSink});
  }
  for (uint32_t i = 0; i < children_.size(); ++i) {
    Child& child = *children_[i];
    for (Stream* stream : {&child.output, &child.errors}) {
      // If the reader is slower than the children, these wait, and the queue does not grow.
      if (!stream->source.valid() || stream->sink->full()) continue;
      add(stream->source.get(), POLLIN, {Kind::kStream, stream});
    }
    if (child.ready.valid()) add(child.ready.get(), POLLIN, {Kind::kReady, nullptr, ChildId(i)});
  }
  timespec wait = {0, 0};
  if (timer_ns_ != 0) {
    const int64_t left_ns = std::max<int64_t>(0, timer_ns_ - NowNs());
    wait = {left_ns / 1'000'000'000, left_ns % 1'000'000'000};
  }
  if (ppoll(fds.data(), fds.size(), timer_ns_ != 0 ? &wait : nullptr, nullptr) < 0) return;

  bool signals = false;
  for (size_t i = 0; i < fds.size(); ++i) {
    if (fds[i].revents == 0) continue;
    if (sources[i].kind == Kind::kSignals) signals = true;
    if (sources[i].kind == Kind::kStream) Read(*sources[i].stream);
    if (sources[i].kind == Kind::kReady) ReadReady(sources[i].child, events);
  }
  // Last, so that the output of a child is passed on before its end.
  if (signals) TakeSignals(events);
  WriteOutputs(events);
  if (timer_ns_ != 0 && NowNs() >= timer_ns_) {
    timer_ns_ = 0;
    events.OnTimer();
  }
}

void Supervisor::Read(Stream& stream) {
  if (!stream.source.valid()) return;
  char bytes[kReadBytes];
  const ssize_t count = read(stream.source.get(), bytes, sizeof bytes);
  if (count > 0) {
    const std::string_view text(bytes, static_cast<size_t>(count));
    Pass(stream, stream.lines.Add(text));
    stream.last.Add(text);
    Keep(stream, text);
  } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
    Pass(stream, stream.lines.Finish());
    stream.source.Reset();
    stream.file.Reset();
  }
}

void Supervisor::Keep(Stream& stream, std::string_view bytes) {
  while (stream.file.valid() && !bytes.empty()) {
    const ssize_t written = write(stream.file.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      Say(absl::StrCat("talweg: run: output is not kept from here on: ", std::strerror(errno)));
      stream.file.Reset();
    }
  }
}

void Supervisor::Pass(Stream& stream, const std::string& lines) {
  if (stream.muted || lines.empty()) return;
  stream.sink->Add(lines);
  shown_last_ = stream.child;
}

void Supervisor::ReadReady(ChildId id, SupervisorEvents& events) {
  constexpr size_t kLineBytesMax = 64 << 10;
  Child& child = *children_[id.value()];
  char bytes[4096];
  const ssize_t count = read(child.ready.get(), bytes, sizeof bytes);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count > 0) child.ready_text.append(bytes, static_cast<size_t>(count));
  const size_t end = child.ready_text.find('\n');
  if (end != std::string::npos) {
    child.ready.Reset();
    events.OnReady(id, child.ready_text.substr(0, end));
  } else if (count <= 0 || child.ready_text.size() > kLineBytesMax) {
    child.ready.Reset();  // The daemon will not serve. Its exit, or the caller's timer, shows that.
  }
}

void Supervisor::TakeSignals(SupervisorEvents& events) {
  bool child_ended = false;
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo == SIGCHLD) {
      child_ended = true;
    } else {
      // Who signals all processes of a run, as systemd does, also signals the guard, which passes
      // it on.
      const int64_t now_ns = NowNs();
      const auto sender = static_cast<pid_t>(info.ssi_pid);
      const bool is_echo = first_signal_ && first_signal_->sender != sender &&
                           now_ns - first_signal_->at_ns < kEchoNs;
      if (!first_signal_) first_signal_ = {sender, now_ns};
      if (!is_echo) events.OnSignal(static_cast<int>(info.ssi_signo));
    }
  }
  if (child_ended) Reap(events);
}

void Supervisor::Reap(SupervisorEvents& events) {
  // One SIGCHLD may stand for many ends. Also reaps adopted orphans.
  std::vector<std::pair<uint32_t, ExitStatus>> ended;
  int wait_status = 0;
  rusage usage;
  for (pid_t pid = wait4(-1, &wait_status, WNOHANG, &usage); pid > 0;
       pid = wait4(-1, &wait_status, WNOHANG, &usage)) {
    for (uint32_t i = 0; i < children_.size(); ++i) {
      if (!children_[i]->running || children_[i]->pid != pid) continue;
      children_[i]->running = false;
      --running_count_;
      ExitStatus status = ExitStatusOf(wait_status);
      status.cpu_ns = Ns(usage.ru_utime) + Ns(usage.ru_stime);
      ended.emplace_back(i, status);
      break;
    }
  }
  // The kernel reports children in the order of their start. Among children that ended at the same
  // time, first report one that a signal killed: the others ended because of it, with a status of
  // their own. If a signal killed both a rank and a daemon, the daemon probably ended because of
  // the rank, so later children come first: ranks are started last.
  std::sort(ended.begin(), ended.end(), [](const auto& a, const auto& b) {
    const bool a_killed = a.second.signal_number != 0, b_killed = b.second.signal_number != 0;
    return a_killed != b_killed ? a_killed : a.first > b.first;
  });
  for (const auto& [i, status] : ended) {
    DrainOutputs(*children_[i]);
    if (children_[i]->ready.valid()) ReadReady(ChildId(i), events);
    events.OnExit(ChildId(i), status);
  }
}

void Supervisor::DrainOutputs(Child& child) {
  for (Stream* stream : {&child.output, &child.errors}) {
    // Reads all that is in the pipes. Their end may never come if a descendant holds them, and a
    // descendant may never stop writing, so this is bounded.
    for (int reads = 0; reads < 64 && stream->source.valid(); ++reads) {
      pollfd fd = {stream->source.get(), POLLIN, 0};
      if (poll(&fd, 1, 0) <= 0) break;
      Read(*stream);
    }
  }
}

void Supervisor::WriteOutputs(SupervisorEvents& events) {
  const bool output_open = output_.Write();
  const bool errors_open = errors_.Write();
  for (const auto& [queue, name] : {std::pair(&output_, "stdout"), std::pair(&errors_, "stderr")}) {
    if (const int failure = queue->TakeFailure(); failure != 0) {
      Say(absl::StrCat("talweg: run: what is written to ", name,
                       " is lost, the run goes on: ", std::strerror(failure)));
    }
  }
  if ((!output_open || !errors_open) && !output_gone_) {
    output_gone_ = true;
    events.OnOutputGone();
  }
}

void Supervisor::EndAll(int64_t timeout_ms) {
  const int64_t deadline_ns = NowNs() + timeout_ms * 1'000'000;
  if (!EndDescendants(timeout_ms)) Say("talweg: some processes could not be killed; see ps");
  for (const std::unique_ptr<Child>& child : children_) {
    child->running = false;
    for (Stream* stream : {&child->output, &child->errors}) {
      // Every writer is dead, so this loop ends.
      while (stream->source.valid() && NowNs() < deadline_ns) {
        pollfd fd = {stream->source.get(), POLLIN, 0};
        if (poll(&fd, 1, 0) <= 0) break;
        Read(*stream);
      }
      Pass(*stream, stream->lines.Finish());
      stream->source.Reset();
      stream->file.Reset();
    }
  }
  running_count_ = 0;
  for (OutputQueue* queue : {&output_, &errors_}) {
    while (queue->Write() && !queue->empty()) {
      const int64_t left_ms = (deadline_ns - NowNs()) / 1'000'000;
      pollfd fd = {queue->fd(), POLLOUT, 0};
      if (left_ms <= 0 || poll(&fd, 1, static_cast<int>(left_ms)) == 0) break;
    }
  }
}

}  // namespace talweg::cli
