// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/doctor.h"

#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include <catch2/catch.hpp>

#include "clients/cli/exposure.h"
#include "libs/base/bytes.h"
#include "libs/base/test_directory.h"
#include "libs/rpc/make_certificates.h"

namespace talweg::cli {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using Catch::Matchers::UnorderedEquals;

MachineFacts GoodMachine() {
  MachineFacts facts;
  facts.memory_bytes = 64 * kGiB;
  facts.shm_bytes = 32 * kGiB;
  facts.libfabric_version = "1.17";
  facts.providers = {"tcp", "verbs"};
  facts.provider_found = true;
  facts.data_security = "keyed";
  facts.congestion_control = "cubic";
  facts.receive_buffer_bytes_max = 6 * kMiB;
  facts.send_buffer_bytes_max = 4 * kMiB;
  facts.avx2 = true;
  facts.clock_synchronized = true;
  facts.governor = "performance";
  facts.daemons = {{"talweg-agent", "/usr/bin/talweg-agent"}};
  topology::Topology topology;
  topology.cores = {{0, 0, {0, 1}}, {0, 0, {2, 3}}};
  topology.numa_nodes = {{0, 64 * kGiB}};
  topology.nics = {{"eth0", "0000:01:00.0", 0, 0}};
  facts.topology = topology;
  facts.cuda.driver = absl::UnimplementedError("no NVIDIA driver: libcuda.so.1; install it");
  facts.cuda.nccl = absl::UnimplementedError("no NCCL: libnccl.so.2; install libnccl2");
  return facts;
}

std::optional<Finding> Find(const MachineFacts& facts, const std::string& check) {
  for (const Finding& finding : Examine(facts)) {
    if (finding.check == check) return finding;
  }
  return std::nullopt;
}

// Returns the one finding that is not good.
Finding OnlyFinding(const MachineFacts& facts) {
  std::vector<Finding> amiss;
  for (const Finding& finding : Examine(facts)) {
    CHECK(finding.remedy.empty() == (finding.verdict == Verdict::kOk));
    if (finding.verdict != Verdict::kOk) amiss.push_back(finding);
  }
  REQUIRE(amiss.size() == 1);
  return amiss[0];
}

TEST_CASE("doctor: what may let strangers in is found", "[doctor]") {
  MachineFacts facts = GoodMachine();
  facts.now_unix_s = 1'000'000;
  CHECK_FALSE(Find(facts, "certificates"));
  CHECK_FALSE(Find(facts, "secret file"));
  CHECK_FALSE(Find(facts, "network without TLS"));

  facts.exposure.tls.push_back({.directory = "pki/operator",
                                .identity = "operator",
                                .expires_unix_s = facts.now_unix_s + 40 * 86'400,
                                .expires_first = "pki/operator/tls.crt"});
  TlsFacts& tls = facts.exposure.tls[0];
  CHECK(Find(facts, "certificates")->verdict == Verdict::kOk);
  tls.expires_unix_s = facts.now_unix_s + 4 * 86'400;
  CHECK(Find(facts, "certificates")->verdict == Verdict::kWarning);
  CHECK(Find(facts, "certificates")->value == "pki/operator/tls.crt: operator, ends in 4 days");
  CHECK_THAT(Find(facts, "certificates")->remedy, Contains("a new pki/operator/tls.crt"));
  tls.users = "talweg-agent (process 7)";
  CHECK_THAT(Find(facts, "certificates")->value, Contains("days (talweg-agent (process 7))"));
  tls.error = "pki/operator/ca.crt holds no certificate in PEM format";
  // The daemon goes on with what it has in memory.
  CHECK(Find(facts, "certificates")->verdict == Verdict::kWarning);
  tls.users.clear();
  CHECK(Find(facts, "certificates")->verdict == Verdict::kBad);
  tls.is_readable = false;
  CHECK_FALSE(Find(facts, "certificates"));

  facts.exposure.secret_file = "secret";
  CHECK(Find(facts, "secret file")->verdict == Verdict::kOk);
  facts.exposure.secret_error = "has mode 0644";
  CHECK(Find(facts, "secret file")->verdict == Verdict::kBad);

  facts.exposure.insecure_daemons = {"talweg-scheduler (process 7)"};
  CHECK(Find(facts, "network without TLS")->verdict == Verdict::kWarning);

  CHECK_FALSE(Find(facts, "daemon's options"));
  facts.exposure.unread_daemons = {"talweg-agent (process 7): unknown option --x"};
  CHECK(Find(facts, "daemon's options")->verdict == Verdict::kWarning);
  facts.exposure.foreign_daemons = {"talweg-agent (process 8)"};
  CHECK(Find(facts, "other users' daemons")->verdict == Verdict::kOk);
}

TEST_CASE("doctor: the modes of a file that says who is let in are judged", "[doctor]") {
  struct Case {
    const char* what;
    uint32_t good;
    uint32_t bad;
    const char* remedy;
  };
  const auto cases = {
      Case{"ca.key", 0640, 0644, "run chmod 0640 /etc/x, and make a new authority"},
      Case{"tls.key", 0640, 0604, "run chmod 0600 /etc/x, and make a new certificate"},
      Case{"token_file", 0640, 0644, "draw a new token"},
      Case{"tokens_file", 0600, 0640, "run chmod 0600 /etc/x, and draw new tokens"},
      Case{"secret_file", 0400, 0440, "run chmod 0400 /etc/x, and draw a new secret"},
      // Others may read what is public.
      Case{"token_keys_file", 0664, 0666, "run chmod 0664 /etc/x, and look"},
      Case{"ca.crt", 0644, 0646, "run chmod 0644 /etc/x, and look"},
      Case{"config", 0644, 0646, "run chmod 0644 /etc/x, and look"},
  };
  for (const Case& each : cases) {
    INFO(each.what);
    MachineFacts facts = GoodMachine();
    facts.exposure.files = {{.what = each.what, .path = "/etc/x", .mode = each.good}};
    CHECK_FALSE(Find(facts, each.what));
    facts.exposure.files[0].mode = each.bad;
    facts.exposure.files[0].users = "talweg-agent (process 7)";
    const std::optional<Finding> finding = Find(facts, each.what);
    REQUIRE(finding);
    CHECK(finding->verdict == Verdict::kBad);
    CHECK_THAT(finding->value, Contains("/etc/x has mode 06") || Contains("/etc/x has mode 04"));
    CHECK_THAT(finding->value, Contains("(talweg-agent (process 7))"));
    CHECK_THAT(finding->remedy, Contains(each.remedy));
  }
}

// What /proc shows of processes.
class FakeProc {
 public:
  const std::string& path() const { return directory_.path(); }
  // Returns a path in the directory where the processes run.
  std::string Path(const std::string& name) const { return working_.Path(name); }
  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    std::ofstream(Path(name)) << text;
    REQUIRE(chmod(Path(name).c_str(), mode) == 0);
    return Path(name);
  }
  void Start(int pid, const std::vector<std::string>& words,
             const std::vector<std::string>& variables = {}) const {
    const std::string process = directory_.Path(std::to_string(pid));
    std::filesystem::create_directory(process);
    std::filesystem::create_symlink(working_.path(), process + "/cwd");
    std::filesystem::create_symlink("/", process + "/root");
    WriteTexts(process + "/cmdline", words);
    WriteTexts(process + "/environ", variables);
  }
  ExposureFacts Read(const config::Environment& environment = {}) const {
    return ReadExposure({}, environment, path());
  }

 private:
  static void WriteTexts(const std::string& path, const std::vector<std::string>& texts) {
    std::ofstream file(path, std::ios::binary);
    for (const std::string& text : texts) file << text << '\0';
  }

  TestDirectory directory_;
  TestDirectory working_;
};

std::vector<std::string> PathsOf(const ExposureFacts& facts, const std::string& what) {
  std::vector<std::string> paths;
  for (const FileFacts& file : facts.files) {
    if (file.what == what) paths.push_back(file.path);
  }
  return paths;
}

TEST_CASE("doctor: a daemon that serves without TLS is found, however it was configured",
          "[doctor]") {
  const FakeProc proc;
  proc.Write("insecure.conf", "insecure: true\n");
  proc.Write("spelled.conf", "# Insecure.\n  insecure : t listen: '0.0.0.0:7447'");
  proc.Write("secure.conf", "insecure: false\n# insecure: true");
  const std::string agent = "/opt/talweg/talweg-agent";
  proc.Start(1, {agent, "--insecure"});
  proc.Start(2, {agent, "--insecure=on", "--job", "--insecure=false"});
  proc.Start(3, {agent}, {"HOME=/root", "TALWEG_INSECURE=yes"});
  proc.Start(4, {agent, "--config=insecure.conf"});
  proc.Start(5, {"talweg-scheduler", "--config", proc.Path("spelled.conf")});
  proc.Start(6, {"talweg-aggregator"}, {"TALWEG_CONFIG=insecure.conf"});
  // These do not serve without TLS.
  proc.Start(11, {agent, "--insecure", "--noinsecure"});
  proc.Start(12, {agent, "--config=secure.conf"});
  proc.Start(13, {agent, "--config=insecure.conf"}, {"TALWEG_INSECURE=off"});
  proc.Start(14, {agent, "--job=--insecure"});
  proc.Start(15, {"talweg-agents", "--insecure"});
  proc.Start(16, {});
  const ExposureFacts facts = proc.Read();
  CHECK_THAT(facts.insecure_daemons,
             UnorderedEquals(std::vector<std::string>{
                 "talweg-agent (process 1)", "talweg-agent (process 2)", "talweg-agent (process 3)",
                 "talweg-agent (process 4), of " + proc.Path("insecure.conf"),
                 "talweg-scheduler (process 5), of " + proc.Path("spelled.conf"),
                 "talweg-aggregator (process 6), of " + proc.Path("insecure.conf")}));
  CHECK(facts.unread_daemons.empty());
  CHECK(facts.foreign_daemons.empty());
}

TEST_CASE("doctor: a daemon whose options cannot be parsed is named", "[doctor]") {
  const FakeProc proc;
  proc.Write("new.conf", "no_such_option: 1");
  proc.Start(1, {"talweg-agent", "--config=new.conf"});
  proc.Start(2, {"talweg-agent", "--config=gone.conf"});
  const ExposureFacts facts = proc.Read();
  REQUIRE(facts.unread_daemons.size() == 2);
  for (const std::string& each : facts.unread_daemons) {
    CHECK_THAT(each, Contains("talweg-agent (process ") && Contains(".conf'"));
  }
}

TEST_CASE("doctor: it does not wait for a pipe in the place of another user's file", "[doctor]") {
  const FakeProc proc;
  REQUIRE(std::filesystem::create_directory(proc.Path("pki")));
  for (const char* pipe : {"agent.conf", "pki/ca.crt"}) {
    REQUIRE(mkfifo(proc.Path(pipe).c_str(), 0666) == 0);
  }
  proc.Start(1, {"talweg-agent", "--config=agent.conf"});
  proc.Start(2, {"talweg-agent", "--tls_dir=pki"});
  const ExposureFacts facts = proc.Read();
  REQUIRE(facts.unread_daemons.size() == 1);
  CHECK_THAT(facts.unread_daemons[0], Contains("agent.conf' is not a regular file"));
  REQUIRE(facts.tls.size() == 1);
  CHECK_THAT(facts.tls[0].error, Contains("pki/ca.crt is not a regular file"));
}

TEST_CASE("doctor: a daemon of another user is named, and its command line is checked",
          "[doctor]") {
  const FakeProc proc;
  proc.Start(1, {"talweg-agent", "--insecure"});
  std::filesystem::remove(proc.path() + "/1/environ");
  const ExposureFacts facts = proc.Read();
  CHECK(facts.insecure_daemons == std::vector<std::string>{"talweg-agent (process 1)"});
  CHECK(facts.foreign_daemons == std::vector<std::string>{"talweg-agent (process 1)"});
}

TEST_CASE("doctor: the certificates and keys of daemons are checked", "[doctor]") {
  const FakeProc proc;
  const std::string authority = proc.Path("pki/ca");
  REQUIRE(std::filesystem::create_directories(proc.Path("pki")));
  REQUIRE(rpc::MakeAuthority(authority, "example.org", 100).ok());
  const auto make = [&](const std::string& name, const rpc::Identity& identity, int days) {
    REQUIRE(rpc::MakeCertificate(authority, proc.Path("pki/" + name),
                                 {.identity = identity, .life_s = days * rpc::kSecondsADay})
                .ok());
  };
  make("node", {.role = rpc::Role::kNode, .name = "j"}, 3);
  make("scheduler", {.role = rpc::Role::kScheduler}, 90);
  proc.Start(1, {"talweg-agent"}, {"TALWEG_TLS_DIR=pki/node"});
  proc.Start(2, {"talweg-agent", "--tls_dir", proc.Path("pki/node")});
  proc.Write("scheduler.conf", "tls_dir: 'pki/scheduler'");
  proc.Start(3, {"talweg-scheduler", "--config=scheduler.conf"});
  MachineFacts facts = GoodMachine();
  // This makes the number of days that are left whole.
  facts.now_unix_s = std::time(nullptr) - 3600;
  facts.exposure = proc.Read();
  CHECK(facts.exposure.tls.size() == 2);
  const Finding ending = OnlyFinding(facts);
  CHECK(ending.check == "certificates");
  CHECK_THAT(ending.value, StartsWith(proc.Path("pki/node/tls.crt: node of job 'j', ends in 3")));
  CHECK_THAT(ending.value, Contains("process 1") && Contains("process 2"));
  CHECK_THAT(FindingsText(Examine(facts)),
             Contains("pki/scheduler: scheduler, ends in 90 days (talweg-scheduler (process 3))"));

  make("revoked", {.role = rpc::Role::kViewer}, 90);
  REQUIRE(rpc::RevokeCertificate(authority, proc.Path("pki/revoked/tls.crt")).ok());
  REQUIRE(rpc::CopyRevocations(authority, proc.Path("pki/scheduler")).ok());
  const std::string name =
      GENERATE("ca/ca.key", "scheduler/tls.key", "scheduler/ca.crt", "scheduler/ca.crl");
  const std::string path = proc.Path("pki/" + name);
  make("node", {.role = rpc::Role::kNode, .name = "j"}, 90);
  REQUIRE(chmod(path.c_str(), 0666) == 0);
  facts.exposure = proc.Read();
  const Finding open = OnlyFinding(facts);
  CHECK(open.check == std::filesystem::path(path).filename());
  CHECK(open.verdict == Verdict::kBad);
  CHECK_THAT(open.value, Contains(" has mode 0666") && Contains("talweg-scheduler (process 3)"));
  CHECK_THAT(open.remedy, Contains("run chmod 06"));
}

TEST_CASE("doctor: a revoked certificate and an overdue list are found", "[doctor]") {
  const FakeProc proc;
  const std::string authority = proc.Path("pki/ca");
  const std::string own = proc.Path("pki/node");
  REQUIRE(std::filesystem::create_directories(proc.Path("pki")));
  REQUIRE(rpc::MakeAuthority(authority, "example.org", 100).ok());
  REQUIRE(rpc::MakeCertificate(authority, own, {.identity = {rpc::Role::kNode, "j"}}).ok());
  proc.Start(1, {"talweg-agent", "--tls_dir", own});
  MachineFacts facts = GoodMachine();
  facts.now_unix_s = std::time(nullptr);
  REQUIRE(rpc::RevokeCertificate(authority, own + "/tls.crt").ok());
  REQUIRE(rpc::CopyRevocations(authority, own).ok());
  facts.exposure = proc.Read();
  const Finding revoked = OnlyFinding(facts);
  CHECK(revoked.verdict == Verdict::kWarning);
  CHECK_THAT(revoked.value, StartsWith(own + "/tls.crt is revoked: ") && Contains("process 1"));

  facts.exposure.tls = {{.directory = own,
                         .users = "talweg-agent (process 1)",
                         .identity = "node of job 'j'",
                         .expires_unix_s = INT64_MAX,
                         .revoked_until_unix_s = facts.now_unix_s - 1}};
  const Finding overdue = OnlyFinding(facts);
  CHECK(overdue.verdict == Verdict::kWarning);
  CHECK_THAT(overdue.value, StartsWith(own + "/ca.crl: a list of revoked certificates should"));
  facts.exposure.tls[0].revoked_until_unix_s = facts.now_unix_s + 1;
  CHECK_THAT(FindingsText(Examine(facts)), !Contains("ca.crl"));
}

TEST_CASE("doctor: the secrets and tokens of daemons are checked", "[doctor]") {
  const FakeProc proc;
  const char* const option =
      GENERATE("secret_file", "token_file", "tokens_file", "token_keys_file", "config");
  proc.Write("file", "");
  REQUIRE(chmod(proc.Path("file").c_str(), 0666) == 0);
  proc.Start(1, {"talweg-scheduler", std::string("--") + option + "=file"});
  MachineFacts facts = GoodMachine();
  facts.exposure = proc.Read();
  const Finding finding = OnlyFinding(facts);
  CHECK(finding.check == option);
  CHECK_THAT(finding.value, StartsWith(proc.Path("file has mode 0666")));
  CHECK_THAT(finding.value, Contains("(talweg-scheduler (process 1))"));
}

TEST_CASE("doctor: a default secret that is also this user's is reported once", "[doctor]") {
  const FakeProc proc;
  std::filesystem::create_directories(proc.Path("home/.config/talweg"));
  const std::string secret = proc.Write("home/.config/talweg/secret", std::string(64, 'a'), 0644);
  const std::string home = "HOME=" + proc.Path("home");
  proc.Start(1, {"talweg-scheduler"}, {home});
  proc.Start(2, {"talweg-agent", "--secret_file=none"}, {home});
  ExposureFacts facts = proc.Read();
  CHECK(PathsOf(facts, "secret_file") == std::vector<std::string>{secret});
  CHECK(facts.files[0].users == "talweg-scheduler (process 1)");
  facts = proc.Read({{"HOME", proc.Path("home")}});
  CHECK(PathsOf(facts, "secret_file").empty());
  CHECK_THAT(facts.secret_error, Contains("has mode 0644"));
}

// Returns a good machine with two GPUs.
MachineFacts GpuMachine() {
  MachineFacts facts = GoodMachine();
  facts.nvidia_files = true;
  facts.cuda_toolkit = "13.0 (/usr/local/cuda)";
  facts.cuda = {.driver = absl::OkStatus(),
                .driver_version = 12040,
                .gpus = {{.uuid = {{1}},
                          .name = "A GPU",
                          .pci_bus_id = "0000:01:00.0",
                          .compute_major = 9,
                          .memory_bytes = 80 * kGiB},
                         {.uuid = {{2}},
                          .name = "B GPU",
                          .pci_bus_id = "0000:02:00.0",
                          .compute_major = 8,
                          .compute_minor = 6,
                          .memory_bytes = 24 * kGiB}},
                .nccl = absl::OkStatus(),
                .nccl_version = "2.28.3",
                .nccl_library = "libnccl.so.2",
                .has_kernels = true};
  return facts;
}

TEST_CASE("doctor: a good machine has no remedies", "[cli]") {
  for (const Finding& finding : Examine(GoodMachine())) {
    INFO(finding.check);
    CHECK(finding.verdict == Verdict::kOk);
  }
  CHECK_THAT(FindingsText(Examine(GoodMachine())), !Contains("Remedies"));
}

TEST_CASE("doctor: each problem is one finding with its remedy", "[cli]") {
  struct Case {
    void (*spoil)(MachineFacts&);
    const char* check;
    Verdict verdict;
    const char* remedy;
  };
  const auto cases = {
      Case{[](MachineFacts& f) { f.memlock_bytes = 64 * kKiB; }, "locked memory", Verdict::kWarning,
           "ulimit -l unlimited"},
      Case{[](MachineFacts& f) { f.open_files = 1024; }, "open files", Verdict::kWarning,
           "ulimit -n 65536"},
      Case{[](MachineFacts& f) { f.memfd_error = "no"; }, "shared memory", Verdict::kBad,
           "memfd_create"},
      Case{[](MachineFacts& f) { f.pidfd_error = "no"; }, "pidfd", Verdict::kWarning, "pidfd_open"},
      Case{[](MachineFacts& f) { f.shm_bytes = 64 * kMiB; }, "/dev/shm", Verdict::kWarning,
           "--shm-size"},
      Case{[](MachineFacts& f) { f.memory_limit_bytes = kGiB; }, "memory", Verdict::kWarning,
           "--arena_bytes_max"},
      Case{[](MachineFacts& f) { f.libfabric_error = "no"; }, "libfabric", Verdict::kBad,
           "libfabric1"},
      Case{[](MachineFacts& f) { f.provider_found = false; }, "provider", Verdict::kBad,
           "--provider=tcp"},
      Case{[](MachineFacts& f) { f.data_security = "none"; }, "data plane", Verdict::kWarning,
           "--data_security=tls"},
      Case{[](MachineFacts& f) {
             f.data_security = "none";
             f.provider = "verbs";
           },
           "data plane", Verdict::kWarning, "--data_security=tls"},
      Case{[](MachineFacts& f) { f.faster_aes = {.cpu_can = true, .problem = "it is not there"}; },
           "encryption", Verdict::kWarning, "apt install libipsec-mb1"},
      Case{[](MachineFacts& f) { f.congestion_control = "reno"; }, "congestion control",
           Verdict::kWarning, "cubic"},
      Case{[](MachineFacts& f) { f.send_buffer_bytes_max = kMiB; }, "TCP buffers",
           Verdict::kWarning, "tcp_wmem"},
      Case{[](MachineFacts& f) { f.avx2 = false; }, "CPU features", Verdict::kWarning, "portable"},
      Case{[](MachineFacts& f) {
             f.topology->numa_nodes.push_back({1, kGiB});
             f.numa_balancing = true;
           },
           "topology", Verdict::kWarning, "numactl"},
      Case{[](MachineFacts& f) { f.cpu_quota = 2; }, "CPU quota", Verdict::kWarning, "cpu.max"},
      Case{[](MachineFacts& f) { f.governor = "powersave"; }, "CPU frequency", Verdict::kWarning,
           "performance"},
      Case{[](MachineFacts& f) { f.daemons["talweg-agent"] = ""; }, "talweg-agent",
           Verdict::kWarning, "TALWEG_DAEMON_DIR"},
      Case{[](MachineFacts& f) { f.clock_synchronized = false; }, "clock", Verdict::kWarning,
           "chrony"},
      Case{[](MachineFacts& f) {
             f.scheduler = "a:1";
             f.scheduler_error = "refused";
           },
           "scheduler", Verdict::kBad, "--scheduler"},
  };
  for (const Case& each : cases) {
    MachineFacts facts = GoodMachine();
    each.spoil(facts);
    const Finding finding = OnlyFinding(facts);
    CHECK(finding.check == each.check);
    CHECK(finding.verdict == each.verdict);
    CHECK_THAT(finding.remedy, Contains(each.remedy));
    CHECK_THAT(FindingsText(Examine(facts)), Contains("Remedies") && Contains(finding.remedy));
    CHECK_THAT(FindingsJson(Examine(facts)), Contains("\"remedy\":\""));
  }
}

TEST_CASE("doctor: a machine without GPUs is reported as having none", "[cli]") {
  CHECK_THAT(FindingsText(Examine(GoodMachine())), Contains("none from NVIDIA"));
}

TEST_CASE("doctor: GPUs are listed by UUID, with driver, NCCL and toolkit", "[cli]") {
  const std::string text = FindingsText(Examine(GpuMachine()));
  CHECK_THAT(text, Contains("CUDA 12.4") && Contains("A GPU (GPU-01000000-") &&
                       Contains("B GPU (GPU-02000000-") && Contains("80 GiB, compute 9.0") &&
                       Contains("compute 8.6") && Contains("2.28.3 (libnccl.so.2)") &&
                       Contains("13.0 (/usr/local/cuda)") && !Contains("Remedies"));
}

TEST_CASE("doctor: each thing that GPUs lack is one finding with its remedy", "[cli]") {
  MachineFacts facts = GpuMachine();
  facts.cuda.nccl = GoodMachine().cuda.nccl;
  CHECK(OnlyFinding(facts).check == "NCCL");
  CHECK(OnlyFinding(facts).value == "no NCCL: libnccl.so.2");
  CHECK(OnlyFinding(facts).remedy == "install libnccl2");
  facts.cuda.gpus.pop_back();  // A single GPU needs no NCCL.
  CHECK_THAT(FindingsText(Examine(facts)), !Contains("Remedies"));

  facts = GpuMachine();
  facts.cuda.has_kernels = false;
  CHECK(OnlyFinding(facts).check == "GPU kernels");
  CHECK_THAT(OnlyFinding(facts).remedy, Contains("--config=cuda"));
  facts.cuda_toolkit = "";
  CHECK_THAT(FindingsText(Examine(facts)), Contains("no nvcc") && Contains("CUDA_HOME"));

  facts = GoodMachine();  // There is a module, or there are devices, and no library.
  facts.nvidia_files = true;
  CHECK(OnlyFinding(facts).check == "GPUs");
  CHECK(OnlyFinding(facts).remedy == "install it");
}

TEST_CASE("doctor: it says what verbs and efa do not promise", "[cli]") {
  for (const std::string provider : {"verbs", "efa"}) {
    MachineFacts facts = GoodMachine();
    facts.provider = provider;
    facts.data_security = "none";
    CHECK(OnlyFinding(facts).value == provider +
                                          " neither authenticates nor encrypts; whoever learns a "
                                          "region's key can write there");
    facts.data_security = "tls";
    CHECK(Find(facts, "data plane")->value == "data_security=tls");
  }
}

TEST_CASE("doctor: it says whether libipsec-mb encrypts, where anything does", "[cli]") {
  MachineFacts facts = GoodMachine();
  for (const char* security : {"keyed", "tls"}) {
    facts.data_security = security;
    facts.faster_aes = {.cpu_can = true};
    CHECK_THAT(Find(facts, "encryption")->value, StartsWith("libipsec-mb, three times as fast"));
    // Nothing can be done about the CPU.
    facts.faster_aes = {.cpu_can = false, .problem = "it is not there"};
    CHECK(Find(facts, "encryption")->verdict == Verdict::kOk);
    CHECK_THAT(Find(facts, "encryption")->value, Contains("CPUs that have VAES"));
    facts.faster_aes.cpu_can = true;
    CHECK_THAT(OnlyFinding(facts).value,
               Contains("three times as long") && Contains("it is not there"));
  }
  facts.data_security = "none";
  CHECK_FALSE(Find(facts, "encryption"));
}

TEST_CASE("doctor: it reports whether processes share a GPU, or take turns", "[cli]") {
  CHECK_THAT(FindingsText(Examine(GoodMachine())), !Contains("MPS"));
  MachineFacts facts = GpuMachine();
  CHECK_THAT(FindingsText(Examine(facts)), Contains("off: on each GPU") && !Contains("Remedies"));
  facts.mps_directory = "/run/mps";
  CHECK_THAT(FindingsText(Examine(facts)), Contains("on (/run/mps)"));
}

TEST_CASE("doctor: it reports whether NICs would reach GPUs, and why not", "[cli]") {
  CHECK_THAT(FindingsText(Examine(GoodMachine())), !Contains("GPUDirect"));
  MachineFacts facts = GpuMachine();
  CHECK_THAT(FindingsText(Examine(facts)),
             Contains("provider tcp does not reach GPUs' memory") && !Contains("Remedies"));
  facts.provider = "verbs";
  facts.provider_reaches_gpus = true;
  CHECK_THAT(FindingsText(Examine(facts)), Contains("used by agents, if"));
  facts.cuda.nics_reach_gpus = absl::UnimplementedError("A GPU lets no NIC; that is a pity");
  CHECK(OnlyFinding(facts).check == "GPUDirect");
  CHECK(OnlyFinding(facts).value == "A GPU lets no NIC");
}

TEST_CASE("doctor: the facts of this machine can be read", "[cli]") {
  const MachineFacts facts = ReadMachineFacts("tcp");
  CHECK(facts.memory_bytes > kMiB);
  CHECK(facts.topology.has_value());
  CHECK_FALSE(facts.kernel.empty());
  CHECK(facts.memfd_error == "");
  CHECK(facts.libfabric_error == "");
  CHECK(facts.provider_found);
  CHECK_FALSE(ReadMachineFacts("no-such-provider").provider_found);
}

}  // namespace
}  // namespace talweg::cli
