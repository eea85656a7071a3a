// SPDX-License-Identifier: Apache-2.0
#include "libs/config/config.h"

#include <fcntl.h>
#include <google/protobuf/descriptor.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "libs/base/descriptor.h"
#include "libs/config/load.h"
#include "libs/config/options.h"
#include "libs/config/ready.h"
#include "proto/config/config.pb.h"

namespace talweg::config {
namespace {

using Catch::Matchers::Contains;

// A file that is removed with the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    const char* directory = std::getenv("TEST_TMPDIR");
    path_ = std::string(directory != nullptr ? directory : "/tmp") + "/config-XXXXXX";
    const int fd = mkstemp(path_.data());
    REQUIRE(fd >= 0);
    close(fd);
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { unlink(path_.c_str()); }

  const std::string& path() const { return path_; }
  std::string Text() const {
    std::ifstream file(path_);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  std::string path_;
};

std::string AgentError(const std::vector<std::string>& args, const Environment& environment = {}) {
  const auto config = LoadAgentConfig(args, environment);
  REQUIRE_FALSE(config.ok());
  return std::string(config.status().message());
}

TEST_CASE("config: every option has its default when nothing is given", "[config]") {
  CHECK(LoadSchedulerConfig({}, {}).value() == SchedulerConfig{});
  CHECK(LoadAggregatorConfig({}, {}).value() == AggregatorConfig{});
  CHECK(LoadAgentConfig({}, {}).value() == AgentConfig{});
}

TEST_CASE("config: a flag beats the environment, which beats the file, which beats the default",
          "[config]") {
  const TemporaryFile file("node_rank: 1\nrank_count: 2\njob: \"from-file\"\nmax_members: 9\n");
  const Environment environment = {{"TALWEG_RANK_COUNT", "3"},
                                   {"TALWEG_JOB", "from-environment"},
                                   {"TALWEG_CONFIG", file.path()},
                                   {"OTHER", "x"}};
  const AgentConfig config =
      LoadAgentConfig({"--job=from-flag", "--min-members", "4"}, environment).value();
  CHECK(config.job == "from-flag");
  CHECK(config.rank_count == 3);
  CHECK(config.node_rank == 1);
  CHECK(config.min_members == 4);
  CHECK(config.provider == "tcp");
}

TEST_CASE("config: the flag's file wins over the environment's", "[config]") {
  const TemporaryFile file("lease_ms: 700");
  const auto config =
      LoadSchedulerConfig({"--config=" + file.path()}, {{"TALWEG_CONFIG", "/does/not/exist"}});
  CHECK(config.value().lease_ms == 700);
  CHECK(config.value().config == file.path());
}

TEST_CASE("config: another process's file is read where it is", "[config]") {
  const TemporaryFile file("insecure: true");
  const auto config = LoadSchedulerConfig({"--config=its.conf"}, {}, [&](const std::string& path) {
    CHECK(path == "its.conf");
    return file.path();
  });
  CHECK(config.value().insecure);
  CHECK(config.value().config == "its.conf");
}

TEST_CASE("config: flags have several spellings", "[config]") {
  CHECK(LoadAgentConfig({"--standalone"}, {}).value().standalone);
  CHECK(LoadAgentConfig({"--standalone=true"}, {}).value().standalone);
  CHECK_FALSE(LoadAgentConfig({"--standalone", "--nostandalone"}, {}).value().standalone);
  CHECK_FALSE(LoadAgentConfig({"--no-local-transport"}, {}).value().local_transport);
  CHECK(LoadAgentConfig({"--credit_bytes=2MiB"}, {}).value().credit_bytes == 2 * kMiB);
  CHECK(LoadAgentConfig({"--join-timeout-ms", "5min"}, {}).value().join_timeout_ms == 300'000);
  CHECK(LoadAgentConfig({"--socket_mode=660"}, {}).value().socket_mode == 0660);
  CHECK(LoadAgentConfig({"--loss_policy=continue"}, {}).value().loss_policy ==
        LossPolicy::kContinue);
  CHECK(LoadAggregatorConfig({"--results-by-priority"}, {}).value().results_by_priority);
  CHECK(LoadAgentConfig({"--encoding=int8"}, {}).value().encoding == Encoding::kInt8);
  CHECK(LoadAgentConfig({}, {{"TALWEG_ENCODING", "bf16"}}).value().encoding == Encoding::kBf16);
  CHECK(LoadAgentConfig({"--encoding=gaps"}, {}).value().encoding == Encoding::kGaps);
  CHECK(LoadAgentConfig({"--encoding=few"}, {}).value().encoding == Encoding::kFew);
  CHECK_FALSE(LoadAgentConfig({"--encoding=twice"}, {}).ok());
  CHECK(LoadAgentConfig({"--dealing=weighted:7"}, {}).value().dealing ==
        Dealing{.rule = DealingRule::kWeighted, .constant = 7});
  CHECK_FALSE(LoadAgentConfig({"--job="}, {}).ok());
  CHECK(LoadAgentConfig({"--trace_path="}, {}).ok());
}

TEST_CASE("config: the address says where to listen", "[config]") {
  const auto listen = [](const std::string& text) {
    return LoadSchedulerConfig({"--listen=" + text}, {}).value().listen;
  };
  CHECK(listen("0.0.0.0:7000-7099") == ListenAddress{"0.0.0.0", 7000, 7099});
  CHECK(listen("[::1]:0") == ListenAddress{"::1", 0, 0});
  CHECK(listen("[::1]:0").ToString() == "[::1]:0");
  CHECK(listen("node-3:1-2").ToString() == "node-3:1-2");
  CHECK(listen("unix:/run/talweg/s.sock") == ListenAddress{.path = "/run/talweg/s.sock"});
  CHECK(listen("unix:/run/talweg/s.sock").ToString() == "unix:/run/talweg/s.sock");
  for (const std::string bad :
       {"unix:", "unix:s.sock", "unix:@s", "unix:/a,b", "unix:/a%41", "unix:/a?b", "unix:/a#b"}) {
    INFO(bad);
    const auto config = LoadSchedulerConfig({"--listen=" + bad}, {});
    CHECK_THAT(std::string(config.status().message()),
               Contains("--listen: '" + bad + "' names a socket by a path"));
    CHECK_FALSE(LoadAgentConfig({"--scheduler=" + bad}, {}).ok());
  }
  const std::string long_path = "unix:/" + std::string(106, 'x');
  CHECK(listen(long_path).path.size() == 107);
  CHECK_FALSE(LoadSchedulerConfig({"--listen=" + long_path + "x"}, {}).ok());
  for (const std::string bad : {"7447", ":7447", "::1:7447", "host:", "host:x", "host:70000",
                                "host:9-8", "host:0-8", "host:-1", "host:1-2-3", "a b:1", ""}) {
    INFO(bad);
    const auto config = LoadSchedulerConfig({"--listen=" + bad}, {});
    REQUIRE_FALSE(config.ok());
    CHECK_THAT(std::string(config.status().message()), Contains("--listen: '" + bad + "'"));
    CHECK_THAT(std::string(config.status().message()), Contains("127.0.0.1:0"));
  }
}

TEST_CASE("config: an error names a wrong value's option, its place and what is allowed",
          "[config]") {
  CHECK(AgentError({"--rank_count=0"}) ==
        "option --rank_count: '0' is below the smallest value; allowed: 1 to 1024");
  CHECK(AgentError({}, {{"TALWEG_RANK_COUNT", "99999999999999999999"}}) ==
        "option rank_count (environment TALWEG_RANK_COUNT): '99999999999999999999' is above the "
        "largest value; allowed: 1 to 1024");
  CHECK_THAT(AgentError({"--rank_count=two"}), Contains("'two' is not a whole number"));
  CHECK_THAT(AgentError({"--credit_bytes=1"}), Contains("allowed: 64 KiB to 64 GiB"));
  CHECK_THAT(AgentError({"--credit_bytes=many"}), Contains("is not a number of bytes"));
  CHECK_THAT(AgentError({"--slice_bytes_max=100001"}),
             Contains("is not a multiple of 64") && Contains("a multiple of 64;"));
  CHECK_THAT(AgentError({"--encoding=runs"}), Contains("plain, bf16, int8"));
  CHECK_THAT(AgentError({"--dealing=mixed"}),
             Contains("'mixed'") && Contains("weighted or weighted:POINTS"));
  CHECK_THAT(AgentError({"--name=" + std::string(256, 'n')}), Contains("255"));
  CHECK_THAT(AgentError({"--join_timeout_ms=5h"}), Contains("is not a time in milliseconds"));
  CHECK_THAT(AgentError({"--join_timeout_ms=99999999999999999min"}), Contains("is above"));
  CHECK_THAT(AgentError({"--socket_mode=0066"}), Contains("keeps its owner out"));
  CHECK_THAT(AgentError({"--scheduler=host:0"}), Contains("a port from 1 to 65535"));
  CHECK_THAT(AgentError({"--standalone=perhaps"}), Contains("true or false"));
  CHECK_THAT(AgentError({"--log_level=loud"}), Contains("debug, info, warning, error, off"));
  CHECK_THAT(AgentError({"--loss_policy=stop"}), Contains("fail_job, continue"));
  CHECK_THAT(AgentError({"--job", std::string("a\nb")}), Contains("control character"));
  CHECK_THAT(AgentError({"--job", std::string(1025, 'x')}), Contains("is 1025 bytes long"));
  CHECK_THAT(AgentError({"--job"}), Contains("--job has no value"));
  CHECK_THAT(AgentError({"job"}), Contains("argument 'job' is not an option"));
}

TEST_CASE("config: an unknown option gets the nearest known one", "[config]") {
  CHECK(AgentError({"--node_rnk=1"}) ==
        "unknown option --node_rnk; did you mean --node_rank?; --help lists all");
  CHECK_THAT(AgentError({"--level=debug"}), Contains("did you mean --log_level?"));
  CHECK_THAT(AgentError({"--nostandalon"}), Contains("unknown option --nostandalon"));
  CHECK(AgentError({"--xyzzyplugh"}) == "unknown option --xyzzyplugh; --help lists all");
}

TEST_CASE("config: options that exclude each other are refused", "[config]") {
  CHECK_THAT(AgentError({"--min_members=3"}), Contains("--min_members=3 is above --max_members=1"));
  for (const char* begin : {"--begin_members=1", "--begin_members=5"}) {
    CHECK_THAT(AgentError({"--min_members=2", "--max_members=4", begin}),
               Contains(std::string(begin) + " is not from --min_members=2 to --max_members=4"));
  }
  CHECK_THAT(AgentError({"--standalone", "--max_members=2"}), Contains("serves one node"));
  CHECK_FALSE(LoadSchedulerConfig({"--in_memory", "--store_path=/x"}, {}).ok());
  // A Unix socket allows shared memory only.
  CHECK(LoadAgentConfig({"--scheduler=unix:/s"}, {}).value().scheduler == "unix:/s");
  CHECK_THAT(AgentError({"--scheduler=unix:/s", "--nolocal_transport"}),
             Contains("--scheduler=unix:/s is of this machine"));
  CHECK_FALSE(LoadAggregatorConfig({"--listen=unix:/a", "--nolocal_transport"}, {}).ok());
  CHECK(LoadAggregatorConfig({"--admin_listen=unix:/a", "--nolocal_transport"}, {}).ok());
}

TEST_CASE("config: every lane of an aggregator has a port", "[config]") {
  const auto error = [](const std::vector<std::string>& args) {
    return std::string(LoadAggregatorConfig(args, {}).status().message());
  };
  CHECK(error({"--lanes=4"}).empty());
  CHECK(error({"--lanes=4", "--listen=[::]:65532", "--admin_listen=[::]:7000-7003"}).empty());
  CHECK(error({"--lanes=64", "--listen=unix:/a", "--admin_listen=unix:/b"}).empty());
  CHECK(
      error({"--lanes=4", "--listen=0.0.0.0:7000-7002"}) ==
      "option --listen=0.0.0.0:7000-7002 has 3 ports, and --lanes=4 takes one for each lane; give "
      "a range of as many ports, or port 0");
  CHECK_THAT(error({"--lanes=4", "--admin_listen=[::]:65533"}),
             Contains("--admin_listen=[::]:65533 has 3 ports"));
}

TEST_CASE("config: a list of CPUs is read, or refused", "[config]") {
  const auto cpus = [](const std::string& text) {
    return LoadAggregatorConfig({"--cpus=" + text}, {});
  };
  CHECK(cpus("")->cpus.empty());
  CHECK(cpus("3")->cpus == std::vector<uint32_t>{3});
  CHECK(cpus("8,0-2,5")->cpus == std::vector<uint32_t>{8, 0, 1, 2, 5});
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"0-", "'0-' has '0-' in it"},
      {"a", "'a' has 'a' in it"},
      {"1,,2", "'1,,2' has '' in it"},
      {"1-2-3", "has '1-2-3' in it"},
      {"-1", "has '-1' in it"},
      {"5-2", "has the range 5-2 from high to low"},
      {"1,0-1", "has CPU 1 twice"},
      {"4096", "is above the largest value"},
      {"99999999999", "has '99999999999' in it"}};
  for (const auto& [text, problem] : wrong) {
    CHECK_THAT(std::string(cpus(text).status().message()),
               Contains(problem) && Contains("up to 4095, e.g. 0,2-5"));
  }
}

TEST_CASE("config: an error names a wrong file and its line", "[config]") {
  const auto error = [](const std::string& text) {
    const auto config = ParseAgentFile(text, "agent.textproto");
    REQUIRE_FALSE(config.ok());
    return std::string(config.status().message());
  };
  CHECK_THAT(
      error("# a comment\nnode_rnk: 1\n"),
      Contains("'agent.textproto', line 2, column 9: unknown option 'node_rnk'; did you mean "
               "node_rank?; --help lists all"));
  // As a flag and as a variable.
  for (const std::string name : {"node-rank", "NODE_RANK", "nodeRank"}) {
    CHECK_THAT(error("job: 'a' " + name + ": 1"),
               Contains("unknown option '" + name + "'; did you mean node_rank?"));
  }
  CHECK_THAT(error("quux: 1"), Contains("unknown option 'quux'; --help lists all"));
  CHECK_THAT(error("\t\t\tquux: 1"), Contains("unknown option 'quux'"));
  CHECK_THAT(error("quux\n: 1"), Contains("unknown option 'quux'"));
  CHECK_THAT(error("rank_count: \"two\"\n"), Contains("line 1") && Contains("1 to 1024"));
  CHECK_THAT(error("rank_count: 0"),
             Contains("option rank_count (in configuration file 'agent.textproto'): '0' is below"));
  CHECK_THAT(error("job: \"a\"\njob: \"b\"\n"), Contains("line 2"));
  CHECK_THAT(error("job"), Contains("line 1"));
  CHECK_THAT(error(std::string("\0\xff", 2)), Contains("line 1"));
  CHECK(ParseAgentFile("", "empty").value() == AgentConfig{});
}

TEST_CASE("config: a file that cannot be read is an error", "[config]") {
  const auto config = LoadAgentConfig({"--config=/does/not/exist"}, {});
  CHECK(config.status().code() == absl::StatusCode::kNotFound);
  CHECK_THAT(std::string(config.status().message()), Contains("'/does/not/exist'"));
  CHECK_FALSE(LoadAgentConfig({"--config=/"}, {}).ok());
}

TEST_CASE("config: only the process that a pipe is meant for reads it", "[config]") {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const Descriptor read_end(pipe_ends[0]);
  Descriptor write_end(pipe_ends[1]);
  const std::vector<std::string> args = {"--config=/dev/fd/" + std::to_string(read_end.get())};
  // The pipe is empty, and its writer is still there.
  const auto of_another = LoadAgentConfig(args, {}, [](const std::string& path) { return path; });
  CHECK_THAT(std::string(of_another.status().message()), Contains("is not a regular file"));
  REQUIRE(write(write_end.get(), "rank_count: 3", 13) == 13);
  write_end.Reset();
  CHECK(LoadAgentConfig(args, {}).value().rank_count == 3);
}

template <typename Config>
void CheckFields(const google::protobuf::Descriptor& message) {
  std::set<std::string> fields;
  for (int i = 0; i < message.field_count(); ++i) {
    CHECK(message.field(i)->has_presence());
    fields.insert(message.field(i)->name());
  }
  std::set<std::string> options = {};
  for (const auto& option : OptionsOf(static_cast<const Config*>(nullptr))) {
    INFO(option.name);
    CHECK(options.insert(option.name).second);
    CHECK_FALSE(option.help.empty());
    // Writing the default out means the same as leaving the option away.
    Config config;
    CHECK(option.set(config, option.default_text) ==
          (option.default_text.empty() && option.type != "text" && option.type != "list"
               ? "impossible"
               : ""));
    CHECK(config == Config{});
  }
  CHECK(options.erase("config") == 1);
  CHECK(options == fields);
}

TEST_CASE("config: the file has a field for every option, and no other", "[config]") {
  CheckFields<SchedulerConfig>(*v1::SchedulerConfig::descriptor());
  CheckFields<AggregatorConfig>(*v1::AggregatorConfig::descriptor());
  CheckFields<AgentConfig>(*v1::AgentConfig::descriptor());
}

TEST_CASE("config: help names every option and its default", "[config]") {
  CHECK(HelpWanted({"--job=x", "--help"}));
  CHECK_FALSE(HelpWanted({"--job=help"}));
  for (const std::string& name : AgentOptionNames()) {
    CHECK_THAT(AgentHelp(), Contains("  --" + name));
    CHECK_THAT(ConfigurationPage(), Contains("| `" + name + "` |"));
  }
  CHECK_THAT(AgentHelp(), Contains("Default: 8MiB."));
  CHECK_THAT(SchedulerHelp(), Contains("Default: 127.0.0.1:7447."));
  CHECK_THAT(AggregatorHelp(), Contains("Default: empty: the host's name."));
}

TEST_CASE("config: paths have defaults", "[config]") {
  CHECK(DefaultStorePath({{"XDG_STATE_HOME", "/s"}, {"HOME", "/h"}}).value() ==
        "/s/talweg/scheduler.sqlite");
  CHECK(DefaultStorePath({{"HOME", "/h"}}).value() == "/h/.local/state/talweg/scheduler.sqlite");
  CHECK(DefaultStorePath({}).status().code() == absl::StatusCode::kFailedPrecondition);
  AgentConfig config;
  config.job = "../a b";
  config.node_rank = 3;
  CHECK(DefaultSocketPath(config, {{"XDG_RUNTIME_DIR", "/r"}}) == "/r/talweg/___a_b-3.sock");
  CHECK(DefaultSocketPath(config, {}) ==
        "/tmp/talweg-" + std::to_string(getuid()) + "/___a_b-3.sock");
}

TEST_CASE("AnnounceReady: it writes one line with the pid and the addresses", "[config]") {
  const TemporaryFile file("old");
  int pipe_fds[2];
  REQUIRE(pipe2(pipe_fds, O_CLOEXEC) == 0);
  ProcessConfig config;
  config.ready_fd = pipe_fds[1];
  config.ready_file = file.path();
  REQUIRE(AnnounceReady(config, {{"admin", "127.0.0.1:1"}, {"socket", "/a\"b"}}).ok());
  const std::string expected = "{\"pid\":" + std::to_string(getpid()) +
                               ",\"addresses\":{\"admin\":\"127.0.0.1:1\",\"socket\":"
                               "\"/a\\\"b\"}}\n";
  CHECK(file.Text() == expected);
  std::string text(expected.size() + 1, '\0');
  CHECK(read(pipe_fds[0], text.data(), text.size()) == static_cast<ssize_t>(expected.size()));
  CHECK(text.substr(0, expected.size()) == expected);
  CHECK(read(pipe_fds[0], text.data(), text.size()) == 0);  // The descriptor is closed.
  close(pipe_fds[0]);

  config.ready_fd = 1 << 20;
  CHECK_THAT(std::string(AnnounceReady(config, {}).message()), Contains("--ready_fd=1048576"));
  config.ready_fd = -1;
  config.ready_file = "/does/not/exist";
  CHECK_THAT(std::string(AnnounceReady(config, {}).message()), Contains("'/does/not/exist'"));
}

TEST_CASE("OnInterface: it finds the loopback's address, or lists the names there are",
          "[config]") {
  const ListenAddress listen{"example", 5, 6};
  CHECK(OnInterface(listen, "").value() == listen);
  CHECK(OnInterface(listen, "lo").value() == ListenAddress{"127.0.0.1", 5, 6});
  CHECK(OnInterface({.path = "/s"}, "lo").value() == ListenAddress{.path = "/s"});
  CHECK_THAT(std::string(OnInterface(listen, "nope0").status().message()),
             Contains("'nope0' is not a network interface") && Contains("lo"));
}

}  // namespace
}  // namespace talweg::config
