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

namespace talweg::cli {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

// A directory with certificates.
struct TlsFacts {
  std::string directory;
  std::string users;        // The daemons that use it; empty: this user's tools.
  bool is_readable = true;  // By this user; else nothing of what follows is known.
  std::string error;        // Empty: its files are good, and say what follows.
  std::string identity;
  int64_t expires_unix_s = 0;
  std::string expires_first;                 // The file that ends then.
  int64_t revoked_until_unix_s = INT64_MAX;  // When its list of revoked ones should be renewed.
};

// A file that says who is let in.
struct FileFacts {
  std::string what;  // The option that names it, or its own name: "token_file", "ca.key".
  std::string path;
  std::string users;  // As of TlsFacts.
  uint32_t mode = 0;
};

// What may let strangers in.
struct ExposureFacts {
  std::vector<TlsFacts> tls;
  std::string secret_file;   // This user's, with the job secret; empty: there is none.
  std::string secret_error;  // Empty: it is its owner's alone.
  std::vector<FileFacts> files;
  // Daemons that run: those that were told to serve a network without TLS; those whose options do
  // not parse, with the reason; those of other users, whose environment may not be read.
  std::vector<std::string> insecure_daemons;
  std::vector<std::string> unread_daemons;
  std::vector<std::string> foreign_daemons;
};

// What a machine says of itself. Unset: it does not say.
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
  std::string libfabric_error;                 // Empty: it could be loaded and asked.
  std::string libfabric_version;
  std::vector<std::string> providers;  // Those with connected endpoints, and what else there is.
  bool provider_found = false;         // The one that was asked for has connected endpoints.
  std::string provider = "tcp";
  std::string data_security = "none";
  bool provider_reaches_gpus = false;                // It does, without a CPU (FI_HMEM).
  std::string congestion_control;                    // Empty: unknown.
  std::optional<uint64_t> receive_buffer_bytes_max;  // net.ipv4.tcp_rmem
  std::optional<uint64_t> send_buffer_bytes_max;     // net.ipv4.tcp_wmem
  std::optional<topology::Topology> topology;
  bool numa_balancing = false;
  bool avx2 = false;  // With all that the kernels of that name need; the next likewise.
  bool avx512 = false;
  gpu::CudaFacts cuda;
  bool nvidia_files = false;  // The kernel has NVIDIA's module, or a container its devices.
  // Where MPS takes the work of all processes to a GPU, its CUDA_MPS_PIPE_DIRECTORY; empty: it is
  // off.
  std::string mps_directory;
  std::string cuda_toolkit;  // Version and place; empty: none found.
  std::string governor;      // The CPU frequencies'; empty: unknown.
  std::optional<bool> clock_synchronized;
  std::string kernel;
  std::string libc;
  std::map<std::string, std::string> daemons;  // To where it is, or "".
  std::string scheduler;                       // Asked for; empty: none was.
  std::string scheduler_error;
  ExposureFacts exposure;
  int64_t now_unix_s = 0;
};

// Asks this machine. Blocks for some milliseconds.
MachineFacts ReadMachineFacts(const std::string& provider);

enum class Verdict { kOk, kWarning, kBad };

struct Finding {
  std::string check;
  Verdict verdict = Verdict::kOk;
  std::string value;   // What was found.
  std::string remedy;  // What to do; empty when all is well.
};

std::vector<Finding> Examine(const MachineFacts& facts);

std::string FindingsText(const std::vector<Finding>& findings);
std::string FindingsJson(const std::vector<Finding>& findings);

}  // namespace talweg::cli

#endif  // TALWEG_CLIENTS_CLI_DOCTOR_H_
