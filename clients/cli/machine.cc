// SPDX-License-Identifier: Apache-2.0
#include <absl/strings/str_cat.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <gnu/libc-version.h>

#include "clients/cli/command.h"
#include "clients/cli/doctor.h"
#include "clients/cli/process.h"
#include "libs/base/descriptor.h"
#include "libs/reduce/isa.h"
#include "libs/runtime/control_group.h"
#include "libs/runtime/cpu_quota.h"
#include "libs/runtime/memory_limit.h"

namespace talweg::cli {
namespace {

// Returns the words of a small system file; none if it does not exist.
std::vector<std::string> Words(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> words;
  for (std::string word; file >> word;) words.push_back(word);
  return words;
}

std::optional<uint64_t> ToNumber(const std::string& text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

uint64_t SoftLimit(__rlimit_resource_t resource, uint64_t* hard = nullptr) {
  rlimit limit;
  if (getrlimit(resource, &limit) != 0) return kUnlimited;
  if (hard != nullptr) *hard = limit.rlim_max == RLIM_INFINITY ? kUnlimited : limit.rlim_max;
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : limit.rlim_cur;
}

// Makes, maps and seals a memfd as the agent does.
std::string MemfdError() {
  const auto error = [](const char* what) {
    return absl::StrCat(what, ": ", std::strerror(errno));
  };
  const Descriptor memfd(memfd_create("talweg-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd.valid()) return error("memfd_create");
  constexpr size_t kBytes = 1 << 16;
  if (ftruncate(memfd.get(), kBytes) != 0) return error("ftruncate");
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  if (memory == MAP_FAILED) return error("mmap");
  munmap(memory, kBytes);
  constexpr int kSealFutureWrite = 0x10;  // F_SEAL_FUTURE_WRITE
  if (fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | kSealFutureWrite) != 0) {
    return error("F_ADD_SEALS");
  }
  return "";
}

std::string PidfdError() {
  const Descriptor pidfd(static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0)));
  return pidfd.valid() ? "" : absl::StrCat("pidfd_open: ", std::strerror(errno));
}

// Returns whether the provider's devices reach GPUs' memory that is registered before. Agents ask
// in the same way (libs/transport/libfabric/provider.cc).
bool ReachesGpus(decltype(&fi_getinfo) get_info, decltype(&fi_freeinfo) free_info,
                 decltype(&fi_dupinfo) duplicate, const std::string& provider) {
  fi_info* const hints = duplicate(nullptr);  // The same as fi_allocinfo.
  if (hints == nullptr) return false;
  hints->caps = FI_MSG | FI_RMA | FI_HMEM;
  hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
  hints->ep_attr->type = FI_EP_MSG;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_HMEM;
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  fi_info* found = nullptr;
  const bool any = get_info(FI_VERSION(1, 17), nullptr, nullptr, 0, hints, &found) == 0;
  const bool reaches = any && (found->domain_attr->mr_mode & FI_MR_HMEM) != 0;
  if (any) free_info(found);
  free_info(hints);
  return reaches;
}

// Loaded, not linked. So if it is missing, the doctor can say so.
void ReadLibfabric(MachineFacts& facts) {
  void* const library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    facts.libfabric_error = dlerror();
    return;
  }
  const auto get_info = reinterpret_cast<decltype(&fi_getinfo)>(dlsym(library, "fi_getinfo"));
  const auto free_info = reinterpret_cast<decltype(&fi_freeinfo)>(dlsym(library, "fi_freeinfo"));
  const auto version = reinterpret_cast<decltype(&fi_version)>(dlsym(library, "fi_version"));
  if (get_info == nullptr || free_info == nullptr || version == nullptr) {
    facts.libfabric_error = "libfabric.so.1 lacks fi_getinfo";
    return;
  }
  facts.libfabric_version = absl::StrCat(FI_MAJOR(version()), ".", FI_MINOR(version()));
  fi_info* first = nullptr;
  const int result = get_info(FI_VERSION(1, 11), nullptr, nullptr, 0, nullptr, &first);
  if (result != 0) {
    facts.libfabric_error = absl::StrCat("fi_getinfo: error ", -result);
    return;
  }
  std::set<std::string> names;
  for (const fi_info* info = first; info != nullptr; info = info->next) {
    if (info->fabric_attr == nullptr || info->fabric_attr->prov_name == nullptr) continue;
    const std::string name = info->fabric_attr->prov_name;
    names.insert(name);
    const bool connected = info->ep_attr != nullptr && info->ep_attr->type == FI_EP_MSG;
    if (connected && name == facts.provider) facts.provider_found = true;
  }
  free_info(first);
  const auto duplicate = reinterpret_cast<decltype(&fi_dupinfo)>(dlsym(library, "fi_dupinfo"));
  facts.provider_reaches_gpus =
      duplicate != nullptr && ReachesGpus(get_info, free_info, duplicate, facts.provider);
  facts.providers.assign(names.begin(), names.end());
}

void ReadControlGroups(MachineFacts& facts) {
  const uint64_t limit_bytes = runtime::MemoryLimitBytesOf(runtime::OwnControlGroups("memory"));
  if (limit_bytes != UINT64_MAX) facts.memory_limit_bytes = limit_bytes;
  facts.cpu_quota = runtime::CpuQuota();
}

void ReadNetwork(MachineFacts& facts) {
  const std::vector<std::string> control = Words("/proc/sys/net/ipv4/tcp_congestion_control");
  if (!control.empty()) facts.congestion_control = control[0];
  // The file holds min, default and max.
  const std::vector<std::string> receive = Words("/proc/sys/net/ipv4/tcp_rmem");
  if (receive.size() == 3) facts.receive_buffer_bytes_max = ToNumber(receive[2]);
  const std::vector<std::string> send = Words("/proc/sys/net/ipv4/tcp_wmem");
  if (send.size() == 3) facts.send_buffer_bytes_max = ToNumber(send[2]);
}

// Returns the version and place of nvcc, where bazel/deps/cuda looks for it.
std::string FindCudaToolkit() {
  const char* const told = std::getenv("CUDA_HOME");
  for (const std::string& home :
       {std::string(told == nullptr ? "" : told), std::string("/usr/local/cuda"),
        std::string("/usr/lib/nvidia-cuda-toolkit")}) {
    if (home.empty() || access((home + "/bin/nvcc").c_str(), X_OK) != 0) continue;
    std::ifstream header(home + "/include/cuda.h");
    for (std::string line; std::getline(header, line);) {
      std::istringstream words(line);
      std::string define;
      std::string name;
      int version = 0;
      if (words >> define >> name >> version && define == "#define" && name == "CUDA_VERSION") {
        return absl::StrCat(version / 1000, ".", version % 1000 / 10, " (", home, ")");
      }
    }
    return absl::StrCat("of an unknown version (", home, ")");
  }
  return "";
}

bool Exists(const char* path) { return access(path, F_OK) == 0; }

std::string FindMps() {
  const char* const named = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string directory = named != nullptr ? named : "/tmp/nvidia-mps";
  const std::vector<std::string> pid = Words(directory + "/nvidia-cuda-mps-control.pid");
  return !pid.empty() && Exists(("/proc/" + pid[0]).c_str()) ? directory : "";
}

}  // namespace

MachineFacts ReadMachineFacts(const std::string& provider) {
  MachineFacts facts;
  facts.provider = provider;
  facts.memlock_bytes = SoftLimit(RLIMIT_MEMLOCK);
  facts.open_files = SoftLimit(RLIMIT_NOFILE, &facts.open_files_hard);
  facts.memfd_error = MemfdError();
  facts.pidfd_error = PidfdError();
  struct statvfs shm;
  if (statvfs("/dev/shm", &shm) == 0) facts.shm_bytes = uint64_t{shm.f_blocks} * shm.f_frsize;
  struct sysinfo info;
  if (sysinfo(&info) == 0) facts.memory_bytes = uint64_t{info.totalram} * info.mem_unit;
  ReadControlGroups(facts);
  ReadLibfabric(facts);
  ReadNetwork(facts);
  if (absl::StatusOr<topology::Topology> topology = topology::ReadTopology(); topology.ok())
    facts.topology = *topology;
  const std::vector<std::string> balancing = Words("/proc/sys/kernel/numa_balancing");
  facts.numa_balancing = !balancing.empty() && balancing[0] != "0";
  facts.avx2 = reduce::IsSupported(reduce::Isa::kAvx2);
  facts.avx512 = reduce::IsSupported(reduce::Isa::kAvx512);
  const std::vector<std::string> governor =
      Words("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  if (!governor.empty()) facts.governor = governor[0];
  facts.faster_aes = transport::LookForFasterAes();
  facts.cuda = gpu::ReadCudaFacts({});
  facts.nvidia_files = Exists("/proc/driver/nvidia/version") || Exists("/dev/nvidiactl");
  facts.mps_directory = FindMps();
  facts.cuda_toolkit = FindCudaToolkit();
  timex clock = {};
  if (const int state = adjtimex(&clock); state >= 0) {
    facts.clock_synchronized = state != TIME_ERROR && (clock.status & STA_UNSYNC) == 0;
  }
  utsname name;
  if (uname(&name) == 0) facts.kernel = name.release;
  facts.libc = gnu_get_libc_version();
  for (const char* daemon : {"talweg-scheduler", "talweg-aggregator", "talweg-agent"}) {
    facts.daemons[daemon] = FindDaemon(daemon).value_or("");
  }
  return facts;
}

}  // namespace talweg::cli
