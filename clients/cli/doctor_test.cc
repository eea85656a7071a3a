// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/doctor.h"

#include <catch2/catch.hpp>

#include "libs/base/bytes.h"

namespace talweg::cli {
namespace {

using Catch::Matchers::Contains;

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

TEST_CASE("What may let strangers in is found", "[doctor]") {
  MachineFacts facts = GoodMachine();
  facts.now_unix_s = 1'000'000;
  CHECK_FALSE(Find(facts, "certificates"));
  CHECK_FALSE(Find(facts, "secret file"));
  CHECK_FALSE(Find(facts, "network without TLS"));

  facts.exposure.tls_directory = "pki/operator";
  facts.exposure.tls_identity = "operator";
  facts.exposure.tls_expires_unix_s = facts.now_unix_s + 40 * 86'400;
  CHECK(Find(facts, "certificates")->verdict == Verdict::kOk);
  facts.exposure.tls_expires_unix_s = facts.now_unix_s + 4 * 86'400;
  CHECK(Find(facts, "certificates")->verdict == Verdict::kWarning);
  CHECK_THAT(Find(facts, "certificates")->value, Contains("ends in 4 days"));
  facts.exposure.tls_error = "pki/operator/tls.key is a private key that every user may use";
  CHECK(Find(facts, "certificates")->verdict == Verdict::kBad);

  facts.exposure.secret_file = "secret";
  CHECK(Find(facts, "secret file")->verdict == Verdict::kOk);
  facts.exposure.secret_error = "has mode 0644";
  CHECK(Find(facts, "secret file")->verdict == Verdict::kBad);

  facts.exposure.insecure_daemons = {"talweg-scheduler (process 7)"};
  CHECK(Find(facts, "network without TLS")->verdict == Verdict::kWarning);
}

// With two GPUs.
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

// The one finding that is not good.
Finding OnlyFinding(const MachineFacts& facts) {
  std::vector<Finding> amiss;
  for (const Finding& finding : Examine(facts)) {
    CHECK(finding.remedy.empty() == (finding.verdict == Verdict::kOk));
    if (finding.verdict != Verdict::kOk) amiss.push_back(finding);
  }
  REQUIRE(amiss.size() == 1);
  return amiss[0];
}

TEST_CASE("doctor: a good machine has no remedies", "[cli]") {
  for (const Finding& finding : Examine(GoodMachine())) {
    INFO(finding.check);
    CHECK(finding.verdict == Verdict::kOk);
  }
  CHECK_THAT(FindingsText(Examine(GoodMachine())), !Contains("Remedies"));
}

TEST_CASE("doctor: each thing that hurts is one finding with its remedy", "[cli]") {
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
      Case{[](MachineFacts& f) { f.cpu_quota = 2; }, "CPU quota", Verdict::kWarning, "--spin_us"},
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

TEST_CASE("doctor: a machine without GPUs lacks nothing", "[cli]") {
  CHECK_THAT(FindingsText(Examine(GoodMachine())), Contains("none from NVIDIA"));
}

TEST_CASE("doctor: GPUs are listed by UUID, with driver, NCCL and toolkit", "[cli]") {
  const std::string text = FindingsText(Examine(GpuMachine()));
  CHECK_THAT(text, Contains("CUDA 12.4") && Contains("A GPU (GPU-01000000-") &&
                       Contains("B GPU (GPU-02000000-") && Contains("80 GiB, compute 9.0") &&
                       Contains("compute 8.6") && Contains("2.28.3 (libnccl.so.2)") &&
                       Contains("13.0 (/usr/local/cuda)") && !Contains("Remedies"));
}

TEST_CASE("doctor: what GPUs lack is one finding each, with its remedy", "[cli]") {
  MachineFacts facts = GpuMachine();
  facts.cuda.nccl = GoodMachine().cuda.nccl;
  CHECK(OnlyFinding(facts).check == "NCCL");
  CHECK(OnlyFinding(facts).value == "no NCCL: libnccl.so.2");
  CHECK(OnlyFinding(facts).remedy == "install libnccl2");
  facts.cuda.gpus.pop_back();  // One needs none.
  CHECK_THAT(FindingsText(Examine(facts)), !Contains("Remedies"));

  facts = GpuMachine();
  facts.cuda.has_kernels = false;
  CHECK(OnlyFinding(facts).check == "GPU kernels");
  CHECK_THAT(OnlyFinding(facts).remedy, Contains("--config=cuda"));
  facts.cuda_toolkit = "";
  CHECK_THAT(FindingsText(Examine(facts)), Contains("no nvcc") && Contains("CUDA_HOME"));

  facts = GoodMachine();  // A module or devices, and no library.
  facts.nvidia_files = true;
  CHECK(OnlyFinding(facts).check == "GPUs");
  CHECK(OnlyFinding(facts).remedy == "install it");
}

TEST_CASE("doctor: whether processes share a GPU, or take turns", "[cli]") {
  CHECK_THAT(FindingsText(Examine(GoodMachine())), !Contains("MPS"));
  MachineFacts facts = GpuMachine();
  CHECK_THAT(FindingsText(Examine(facts)), Contains("off: on each GPU") && !Contains("Remedies"));
  facts.mps_directory = "/run/mps";
  CHECK_THAT(FindingsText(Examine(facts)), Contains("on (/run/mps)"));
}

TEST_CASE("doctor: whether NICs would reach GPUs, and why not", "[cli]") {
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

TEST_CASE("doctor: this machine can be asked", "[cli]") {
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
