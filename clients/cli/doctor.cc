// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/doctor.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>

#include "clients/cli/table.h"
#include "libs/base/bytes.h"
#include "libs/base/json.h"

namespace talweg::cli {
namespace {

constexpr uint64_t kMemlockBytesMin = kGiB;
constexpr uint64_t kOpenFilesMin = 4096;
constexpr uint64_t kShmBytesMin = kGiB;
constexpr uint64_t kTcpBufferBytesMin = 4 * kMiB;
constexpr int64_t kSecondsADay = 86'400;
constexpr int64_t kCertificateDaysMin = 30;

std::string Limit(uint64_t value, bool bytes) {
  if (value == kUnlimited) return "unlimited";
  return bytes ? FormatBytes(value) : absl::StrCat(value);
}

Finding Good(const std::string& check, const std::string& value) {
  return {check, Verdict::kOk, value, ""};
}

Finding Warning(const std::string& check, const std::string& value, const std::string& remedy) {
  return {check, Verdict::kWarning, value, remedy};
}

Finding Bad(const std::string& check, const std::string& value, const std::string& remedy) {
  return {check, Verdict::kBad, value, remedy};
}

void ExamineLimits(const MachineFacts& facts, std::vector<Finding>& findings) {
  const std::string memlock = Limit(facts.memlock_bytes, true);
  findings.push_back(
      facts.memlock_bytes >= kMemlockBytesMin
          ? Good("locked memory", memlock)
          : Warning(
                "locked memory", memlock,
                "verbs and efa register memory and fail at this limit (tcp does not): ulimit -l "
                "unlimited, or memlock in /etc/security/limits.conf, or LimitMEMLOCK=infinity "
                "in the systemd unit"));
  const std::string files = Limit(facts.open_files, false);
  findings.push_back(
      facts.open_files >= kOpenFilesMin
          ? Good("open files", files)
          : Warning("open files", files,
                    absl::StrCat("each rank, segment and connection takes some: ulimit -n ",
                                 facts.open_files_hard >= 65536 ? "65536" : "65536 (as root first)",
                                 ", or nofile in /etc/security/limits.conf")));
}

void ExamineMemory(const MachineFacts& facts, std::vector<Finding>& findings) {
  findings.push_back(facts.memfd_error.empty() ? Good("shared memory", "memfd with seals works")
                                               : Bad("shared memory", facts.memfd_error,
                                                     "the agent cannot hand memory to its ranks: "
                                                     "needs Linux 5.1 or newer, and a seccomp "
                                                     "profile that allows memfd_create"));
  findings.push_back(facts.pidfd_error.empty()
                         ? Good("pidfd", "works")
                         : Warning("pidfd", facts.pidfd_error,
                                   "the death of a rank whose forked children live on is noticed "
                                   "late: needs Linux 5.3 or newer, and a seccomp profile that "
                                   "allows pidfd_open"));
  if (facts.shm_bytes) {
    findings.push_back(
        *facts.shm_bytes >= kShmBytesMin
            ? Good("/dev/shm", FormatBytes(*facts.shm_bytes))
            : Warning("/dev/shm", FormatBytes(*facts.shm_bytes),
                      "Talweg does not use it, but data loaders do: in a container, --shm-size=8g "
                      "or an emptyDir of medium Memory at /dev/shm"));
  }
  if (facts.memory_limit_bytes && *facts.memory_limit_bytes < facts.memory_bytes) {
    findings.push_back(Warning(
        "memory",
        absl::StrCat(FormatBytes(*facts.memory_limit_bytes), " of ",
                     FormatBytes(facts.memory_bytes), " (control group)"),
        "arenas count against the group: give --arena_bytes_max and --memory_bytes_max below it, "
        "or raise memory.max"));
  } else {
    findings.push_back(Good("memory", FormatBytes(facts.memory_bytes)));
  }
}

void ExamineDataSecurity(const MachineFacts& facts, std::vector<Finding>& findings) {
  constexpr char kRemedy[] =
      "keep data ports in a network that you trust, or give all daemons --data_security=tls (or "
      "keyed), which is Talweg's own TCP";
  if (facts.data_security != "none") {
    findings.push_back(Good("data plane", absl::StrCat("data_security=", facts.data_security)));
  } else if (facts.provider == "tcp") {
    findings.push_back(Warning("data plane",
                               "libfabric's tcp parses what anybody who reaches a data port sends; "
                               "nothing is authenticated "
                               "or encrypted",
                               kRemedy));
  } else {
    findings.push_back(Warning("data plane",
                               absl::StrCat(facts.provider,
                                            " neither authenticates nor encrypts; whoever learns a "
                                            "region's key can write there"),
                               kRemedy));
  }
}

// Looks for what encrypts and makes tags. Between two processes, a tls stream with libipsec-mb has
// 0.66 of a plain one's speed, and with OpenSSL alone 0.45 to 0.56
// (docs/benchmarks/studies/network.md).
void ExamineAes(const MachineFacts& facts, std::vector<Finding>& findings) {
  if (facts.data_security == "none") return;
  constexpr char kCheck[] = "encryption";
  if (facts.faster_aes.problem.empty()) {
    findings.push_back(Good(kCheck, "libipsec-mb, three times as fast as OpenSSL"));
  } else if (!facts.faster_aes.cpu_can) {
    findings.push_back(
        Good(kCheck, "OpenSSL: libipsec-mb is faster on CPUs that have VAES with AVX-512 alone"));
  } else {
    findings.push_back(
        Warning(kCheck,
                absl::StrCat("OpenSSL, which takes three times as long for a byte as libipsec-mb: ",
                             facts.faster_aes.problem),
                "apt install libipsec-mb1 (tls then keeps 0.66 of the speed of none on a stream, "
                "in place of 0.5), and start the daemons anew"));
  }
}

void ExamineNetwork(const MachineFacts& facts, std::vector<Finding>& findings) {
  if (!facts.libfabric_error.empty()) {
    findings.push_back(Bad("libfabric", facts.libfabric_error,
                           "agents and aggregators need it: apt install libfabric1"));
  } else {
    findings.push_back(Good("libfabric", facts.libfabric_version));
    const std::string list = absl::StrJoin(facts.providers, ", ");
    findings.push_back(
        facts.provider_found
            ? Good("provider", absl::StrCat(facts.provider, " (of ", list, ")"))
            : Bad("provider",
                  absl::StrCat("no ", facts.provider,
                               " with connected endpoints among: ", list.empty() ? "none" : list),
                  "take another with --provider=tcp, or install the provider's package"));
  }
  if (!facts.congestion_control.empty()) {
    const bool is_slow = facts.congestion_control == "reno";
    findings.push_back(
        is_slow ? Warning("congestion control", facts.congestion_control,
                          "slow after a loss: sysctl net.ipv4.tcp_congestion_control=cubic (or bbr "
                          "between sites)")
                : Good("congestion control", facts.congestion_control));
  }
  if (facts.receive_buffer_bytes_max && facts.send_buffer_bytes_max) {
    const std::string value = absl::StrCat("receive ", FormatBytes(*facts.receive_buffer_bytes_max),
                                           ", send ", FormatBytes(*facts.send_buffer_bytes_max));
    const bool is_small = std::min(*facts.receive_buffer_bytes_max, *facts.send_buffer_bytes_max) <
                          kTcpBufferBytesMin;
    findings.push_back(is_small ? Warning("TCP buffers", value,
                                          "too little for a fast link: sysctl "
                                          "net.ipv4.tcp_rmem='4096 131072 16777216' "
                                          "net.ipv4.tcp_wmem='4096 65536 16777216'")
                                : Good("TCP buffers", value));
  }
}

void ExamineCpu(const MachineFacts& facts, std::vector<Finding>& findings) {
  if (facts.avx512 || facts.avx2) {
    findings.push_back(Good("CPU features", facts.avx512 ? "AVX-512, AVX2" : "AVX2"));
  } else {
    findings.push_back(Warning("CPU features", "neither AVX2 nor AVX-512",
                               "sums take the portable kernels, several times slower: put "
                               "aggregators on newer machines; in a virtual machine, pass the "
                               "host's CPU through"));
  }
  if (facts.topology) {
    const std::string text = facts.topology->ToString();
    findings.push_back(
        facts.topology->numa_nodes.size() > 1 && facts.numa_balancing
            ? Warning(
                  "topology", absl::StrCat(text, ", NUMA balancing on"),
                  "the kernel moves pages under the data threads: bind daemons with numactl, or "
                  "sysctl kernel.numa_balancing=0")
            : Good("topology", text));
    std::vector<std::string> nics;
    for (const topology::Nic& nic : facts.topology->nics) {
      nics.push_back(absl::StrCat(
          nic.name, nic.numa_node ? absl::StrCat(" (node ", *nic.numa_node, ")") : ""));
    }
    if (!nics.empty()) findings.push_back(Good("network devices", absl::StrJoin(nics, ", ")));
    const uint32_t cpus = facts.topology->CpuCount();
    if (facts.cpu_quota && *facts.cpu_quota < cpus) {
      findings.push_back(Warning("CPU quota",
                                 absl::StrFormat("%.1f of %d CPUs", *facts.cpu_quota, cpus),
                                 "the data threads are stopped when it is used up: raise cpu.max"));
    }
  }
  if (facts.governor == "powersave") {
    findings.push_back(Warning("CPU frequency", facts.governor,
                               "latency suffers: cpupower frequency-set -g performance"));
  } else if (!facts.governor.empty()) {
    findings.push_back(Good("CPU frequency", facts.governor));
  }
}

// Splits "what; remedy", the form of gpu::CudaFacts.
Finding GpuWarning(const std::string& check, const absl::Status& status) {
  const std::string message(status.message());
  const size_t cut = message.find("; ");
  if (cut == std::string::npos) return Warning(check, message, "nvidia-smi says more");
  return Warning(check, message.substr(0, cut), message.substr(cut + 2));
}

void ExamineGpus(const MachineFacts& facts, std::vector<Finding>& findings) {
  const gpu::CudaFacts& cuda = facts.cuda;
  if (cuda.gpus.empty()) {
    findings.push_back(facts.nvidia_files && !cuda.driver.ok()
                           ? GpuWarning("GPUs", cuda.driver)
                           : Good("GPUs", "none from NVIDIA: gradients are summed on CPUs"));
  } else {
    findings.push_back(Good("GPU driver", absl::StrCat("CUDA ", cuda.driver_version / 1000, ".",
                                                       cuda.driver_version % 1000 / 10)));
    for (const gpu::GpuInfo& gpu : cuda.gpus) {
      findings.push_back(
          Good("GPU", absl::StrCat(gpu::Describe(gpu), ", ", FormatBytes(gpu.memory_bytes),
                                   ", compute ", gpu.compute_major, ".", gpu.compute_minor)));
    }
    findings.push_back(
        facts.mps_directory.empty()
            ? Good("MPS", "off: on each GPU its agent and ranks take turns, of 0.1 ms and more")
            : Good("MPS", "on (" + facts.mps_directory + "): agent and ranks use a GPU at once"));
    if (cuda.nccl.ok()) {
      findings.push_back(
          Good("NCCL", absl::StrCat(cuda.nccl_version, " (", cuda.nccl_library, ")")));
    } else if (cuda.gpus.size() > 1) {
      findings.push_back(GpuWarning("NCCL", cuda.nccl));
    } else {
      findings.push_back(Good("NCCL", "none; one GPU needs none"));
    }
    if (!facts.provider_reaches_gpus) {
      // No remedy is needed if the network is TCP.
      findings.push_back(
          Good("GPUDirect", absl::StrCat("not used: libfabric's provider ", facts.provider,
                                         " does not reach GPUs' memory")));
    } else if (cuda.nics_reach_gpus.ok()) {
      findings.push_back(
          Good("GPUDirect",
               absl::StrCat("used by agents, if registrations succeed (", facts.provider, ")")));
    } else {
      findings.push_back(GpuWarning("GPUDirect", cuda.nics_reach_gpus));
    }
    findings.push_back(
        cuda.has_kernels
            ? Good("GPU kernels", "built in")
            : Warning("GPU kernels", "not in this build",
                      "ranks that share a GPU are summed on the CPU: build with bazel build "
                      "--config=cuda (needs nvcc 12 or 13)"));
  }
  if (!facts.cuda_toolkit.empty()) {
    findings.push_back(Good("CUDA toolkit", facts.cuda_toolkit));
  } else if (!cuda.gpus.empty() && !cuda.has_kernels) {
    findings.push_back(Warning("CUDA toolkit", "no nvcc",
                               "to build GPU kernels, install the CUDA Toolkit 12 or 13 in "
                               "/usr/local/cuda, or set CUDA_HOME (PyPI's nvidia-cuda-nvcc and its "
                               "parts will do)"));
  }
}

void ExamineVersions(const MachineFacts& facts, std::vector<Finding>& findings) {
  findings.push_back(
      Good("versions", absl::StrCat("Linux ", facts.kernel, ", glibc ", facts.libc)));
  for (const auto& [name, path] : facts.daemons) {
    findings.push_back(path.empty()
                           ? Warning(name, "not found",
                                     "install it beside the tool, or set TALWEG_DAEMON_DIR; talweg "
                                     "run needs it")
                           : Good(name, path));
  }
  if (facts.clock_synchronized) {
    findings.push_back(*facts.clock_synchronized
                           ? Good("clock", "synchronized")
                           : Warning("clock", "not synchronized",
                                     "timelines of several nodes do not lie over each other "
                                     "(nothing else depends on it): install chrony"));
  }
  if (!facts.scheduler.empty()) {
    findings.push_back(facts.scheduler_error.empty()
                           ? Good("scheduler", absl::StrCat(facts.scheduler, " serves"))
                           : Bad("scheduler", facts.scheduler_error,
                                 "start it with talweg scheduler, or give --scheduler=HOST:PORT"));
  }
}

std::string WithUsers(const std::string& text, const std::string& users) {
  return users.empty() ? text : absl::StrCat(text, " (", users, ")");
}

void ExamineTls(const TlsFacts& tls, int64_t now_unix_s, std::vector<Finding>& findings) {
  if (!tls.is_readable) return;
  if (!tls.error.empty()) {
    // A running daemon has good certificates in memory.
    findings.push_back({"certificates", tls.users.empty() ? Verdict::kBad : Verdict::kWarning,
                        WithUsers(tls.error, tls.users),
                        "talweg certs makes certificates; docs/security.md says how"});
    return;
  }
  if (tls.revoked_until_unix_s < now_unix_s) {
    findings.push_back(
        Warning("certificates",
                WithUsers(absl::StrCat(tls.directory,
                                       "/ca.crl: a list of revoked certificates should have been "
                                       "renewed by now, and may lack some"),
                          tls.users),
                "put the authority's present list there; running daemons take it up"));
  }
  const int64_t days = (tls.expires_unix_s - now_unix_s) / kSecondsADay;
  if (days < kCertificateDaysMin) {
    findings.push_back(Warning(
        "certificates",
        WithUsers(absl::StrCat(tls.expires_first, ": ", tls.identity, ", ends in ", days, " days"),
                  tls.users),
        absl::StrCat("make a new ", tls.expires_first,
                     " in its place (talweg certs); running daemons take it up")));
  } else {
    findings.push_back(
        Good("certificates",
             WithUsers(absl::StrCat(tls.directory, ": ", tls.identity, ", ends in ", days, " days"),
                       tls.users)));
  }
}

// The access to a file that others must not have.
struct FileRule {
  const char* what;
  uint32_t forbidden;  // Bits of the mode.
  const char* harm;
  const char* remedy;  // After "run chmod MODE FILE".
};
constexpr uint32_t kAnyOfOthers = 07;
constexpr uint32_t kAnyOfGroupOrOthers = 077;
constexpr uint32_t kWriteOfOthers = 02;
constexpr FileRule kFileRules[] = {
    {"ca.key", kAnyOfOthers, "every user may make certificates with it",
     "and make a new authority and new certificates (talweg certs), as others may have read it"},
    {"tls.key", kAnyOfOthers, "every user may pass for its owner",
     "and make a new certificate (talweg certs), as others may have read it"},
    {"token_file", kAnyOfOthers, "every user may show this token",
     "and draw a new token, as others may have read it; in Kubernetes, give the pod an fsGroup"},
    {"tokens_file", kAnyOfGroupOrOthers, "others may show its tokens",
     "and draw new tokens, as others may have read them"},
    {"secret_file", kAnyOfGroupOrOthers, "others may join jobs with it",
     "and draw a new secret (remove the file, run talweg secret), as others may have read it"},
    {"token_keys_file", kWriteOfOthers, "every user may put keys there that sign tokens",
     "and look whether its keys are the cluster's"},
    {"ca.crt", kWriteOfOthers, "every user may put an authority there that is trusted",
     "and look whether its certificate is yours"},
    {"ca.crl", kWriteOfOthers, "every user may take certificates off it that are revoked",
     "and put the authority's list there again"},
    {"config", kWriteOfOthers, "every user may change what the daemon is told at its next start",
     "and look whether it says what you wrote"},
};

void ExamineFile(const FileFacts& file, std::vector<Finding>& findings) {
  for (const FileRule& rule : kFileRules) {
    if (file.what != rule.what || (file.mode & rule.forbidden) == 0) continue;
    const std::string mode = absl::StrFormat("%04o", file.mode & ~rule.forbidden);
    findings.push_back(
        Bad(file.what,
            WithUsers(absl::StrFormat("%s has mode %04o: %s", file.path, file.mode, rule.harm),
                      file.users),
            absl::StrCat("run chmod ", mode, " ", file.path, ", ", rule.remedy)));
  }
}

void ExamineExposure(const MachineFacts& facts, std::vector<Finding>& findings) {
  const ExposureFacts& exposure = facts.exposure;
  for (const TlsFacts& tls : exposure.tls) ExamineTls(tls, facts.now_unix_s, findings);
  if (!exposure.secret_file.empty()) {
    findings.push_back(
        exposure.secret_error.empty()
            ? Good("secret file", exposure.secret_file)
            : Bad("secret file", exposure.secret_error,
                  "a secret that others may have read protects nothing: remove the file and "
                  "make another with talweg secret"));
  }
  for (const FileFacts& file : exposure.files) ExamineFile(file, findings);
  for (const std::string& daemon : exposure.insecure_daemons) {
    findings.push_back(Warning("network without TLS", daemon,
                               "anybody on that network may read and change what it is told: give "
                               "it tls_dir in place of insecure, or keep it on loopback"));
  }
  for (const std::string& daemon : exposure.unread_daemons) {
    findings.push_back(Warning("daemon's options", daemon,
                               "it would not start again, or is of another release: correct its "
                               "options, or run talweg doctor of its release"));
  }
  if (!exposure.foreign_daemons.empty()) {
    findings.push_back(Good("other users' daemons",
                            absl::StrCat(absl::StrJoin(exposure.foreign_daemons, ", "),
                                         ": their environment is hidden; root's doctor sees it")));
  }
}

const char* VerdictText(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk: return "ok";
    case Verdict::kWarning: return "warn";
    case Verdict::kBad: break;
  }
  return "bad";
}

}  // namespace

std::vector<Finding> Examine(const MachineFacts& facts) {
  std::vector<Finding> findings;
  ExamineLimits(facts, findings);
  ExamineMemory(facts, findings);
  ExamineNetwork(facts, findings);
  ExamineDataSecurity(facts, findings);
  ExamineAes(facts, findings);
  ExamineCpu(facts, findings);
  ExamineGpus(facts, findings);
  ExamineVersions(facts, findings);
  ExamineExposure(facts, findings);
  return findings;
}

std::string FindingsText(const std::vector<Finding>& findings) {
  Table table("", {"STATE", "CHECK", "FOUND"});
  for (const Finding& finding : findings) {
    table.Add({VerdictText(finding.verdict), finding.check, finding.value});
  }
  std::string text = table.Text();
  std::string remedies;
  for (const Finding& finding : findings) {
    if (finding.remedy.empty()) continue;
    absl::StrAppend(&remedies, "  ", finding.check, ": ", finding.remedy, "\n");
  }
  if (!remedies.empty()) absl::StrAppend(&text, "\nRemedies\n", remedies);
  return text;
}

std::string FindingsJson(const std::vector<Finding>& findings) {
  std::vector<std::string> items;
  for (const Finding& finding : findings) {
    items.push_back(absl::StrCat("{\"check\":", JsonString(finding.check), ",\"state\":\"",
                                 VerdictText(finding.verdict),
                                 "\",\"found\":", JsonString(finding.value),
                                 ",\"remedy\":", JsonString(finding.remedy), "}"));
  }
  return absl::StrCat("{\"findings\":[", absl::StrJoin(items, ","), "]}\n");
}

}  // namespace talweg::cli
