// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_CLI_DOCTOR_H_
#define TALWEG_CLIENTS_CLI_DOCTOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "libs/gpu/cuda/cuda_platform.h"
#include "libs/topology/topology.h"
#include "libs/transport/tcp/aes_gcm.h"

namespace talweg::cli {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

// A directory with certificates.
struct TlsFacts {
  std::string directory;
  std::string users;        // The daemons that use it; empty: this user's tools.
  bool is_readable = true;  // By this user. If not, the next fields are not known.
  std::string error;        // Empty: its files are good, and the next fields are set.
  std::string identity;
  int64_t expires_unix_s = 0;
  std::string expires_first;  // The file that expires then.
  // When its list of revoked certificates should be renewed.
  int64_t revoked_until_unix_s = INT64_MAX;
};

// A file that decides who is let in.
struct FileFacts {
  std::string what;  // The option that names it, or its own name: "token_file", "ca.key".
  std::string path;
  std::string users;  // As in TlsFacts.
  uint32_t mode = 0;
};

// What may let strangers in.
struct ExposureFacts {
  std::vector<TlsFacts> tls;
  std::string secret_file;   // This user's, with the job secret; empty: there is none.
  std::string secret_error;  // Empty: only its owner can access it.
  std::vector<FileFacts> files;
  // Running daemons: that serve a network without TLS; whose options cannot be parsed, with the
  // reason; of other users, whose environment may not be read.
  std::vector<std::string> insecure_daemons;
  std::vector<std::string> unread_daemons;
  std::vector<std::string> foreign_daemons;
};

// The facts of a machine. An unset fact is not known.
struct MachineFacts {
  uint64_t memlock_bytes = kUnlimited;  // RLIMIT_MEMLOCK, soft.
  uint64_t open_files = kUnlimited;     // RLIMIT_NOFILE, soft.
  uint64_t open_files_hard = kUnlimited;
  std::string memfd_error;  // Empty: a memfd can be made, mapped and sealed as the agent does.
  std::string pidfd_error;  // Empty: pidfd_open works.
  std::optional<uint64_t> shm_bytes;           // Size of /dev/shm.
  uint64_t memory_bytes = 0;                   // The machine's.
  std::optional<uint64_t> memory_limit_bytes;  // This control group's.
  std::optional<double> cpu_quota;             // This control group's, in CPUs.
  std::string libfabric_error;                 // Empty: libfabric was loaded and asked.
  std::string libfabric_version;
  std::vector<std::string> providers;  // All of libfabric's.
  bool provider_found = false;         // Whether the wanted provider has connected endpoints.
  std::string provider = "tcp";
  std::string data_security = "none";
  // Whether libipsec-mb encrypts here, and if not, why; and whether this CPU has what it needs.
  transport::FasterAes faster_aes;
  // Whether it reads and writes GPUs' memory without a CPU (FI_HMEM).
  bool provider_reaches_gpus = false;
  std::string congestion_control;                    // Empty: unknown.
  std::optional<uint64_t> receive_buffer_bytes_max;  // net.ipv4.tcp_rmem
  std::optional<uint64_t> send_buffer_bytes_max;     // net.ipv4.tcp_wmem
  std::optional<topology::Topology> topology;
  bool numa_balancing = false;
  bool avx2 = false;  // AVX2 or AVX-512, with all that the kernels of that name need.
  bool avx512 = false;
  gpu::CudaFacts cuda;
  bool nvidia_files = false;  // The kernel has NVIDIA's module, or a container has its devices.
  // The CUDA_MPS_PIPE_DIRECTORY if MPS runs; empty: MPS is off.
  std::string mps_directory;
  std::string cuda_toolkit;  // Version and place; empty: none found.
  std::string governor;      // The CPU frequencies' governor; empty: unknown.
  std::optional<bool> clock_synchronized;
  std::string kernel;
  std::string libc;
  std::map<std::string, std::string> daemons;  // Maps a daemon to its file, or "".
  std::string scheduler;                       // The scheduler to check; empty: none.
  std::string scheduler_error;
  ExposureFacts exposure;
  int64_t now_unix_s = 0;
};

// Reads this machine's facts. Blocks for some milliseconds.
MachineFacts ReadMachineFacts(const std::string& provider);

enum class Verdict { kOk, kWarning, kBad };

struct Finding {
  std::string check;
  Verdict verdict = Verdict::kOk;
  std::string value;   // The value that was found.
  std::string remedy;  // What to do; empty when all is well.
};

std::vector<Finding> Examine(const MachineFacts& facts);

std::string FindingsText(const std::vector<Finding>& findings);
std::string FindingsJson(const std::vector<Finding>& findings);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_DOCTOR_H_
