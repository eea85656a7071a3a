// SPDX-License-Identifier: Apache-2.0
#include "libs/config/options.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <type_traits>

#include "libs/base/bytes.h"
#include "libs/config/nearest.h"
#include "libs/config/rules.h"

namespace talweg::config {
namespace {

// One line of the tables below.
template <typename Config, typename Member, typename Rule>
Option<Config> Make(std::string name, Member member, Rule rule, std::string help,
                    std::string default_note = "") {
  Option<Config> option;
  option.name = std::move(name);
  option.type = Rule::type;
  option.default_text = rule.Format(Config{}.*member);
  option.default_note = std::move(default_note);
  option.allowed = rule.Allowed();
  option.help = std::move(help);
  option.is_switch = std::is_same_v<Rule, Switch>;
  option.set = [member, rule](Config& config, const std::string& text) {
    return rule.Parse(text, config.*member);
  };
  return option;
}

constexpr char kInterfaceHelp[] =
    "Network interface whose address is bound, in place of the host of the listen options; e.g. "
    "eth0.";
constexpr char kAdvertiseHelp[] =
    "Host name or address that others are told to connect to; give it when they reach this "
    "machine by another address than the bound one.";
constexpr char kSilenceHelp[] =
    "After how long a silence a data connection counts as broken and is made anew; 0: never. Peers "
    "say something every 2 s when they have nothing to send. Make it longer than a slice takes on "
    "the slowest link.";
constexpr char kRenewHelp[] =
    "How often the scheduler is told that this daemon lives, at least twice in lease_ms; 0: five "
    "times in it.";
constexpr char kProviderHelp[] = "libfabric provider of the data plane: tcp, verbs, efa, ...";
constexpr char kDataSecurityHelp[] =
    "What is done to the bytes of the data plane on a network; the same at all daemons. keyed: "
    "they are authenticated; tls: authenticated and encrypted. Both are Talweg's own TCP.";
constexpr char kDataTransportHelp[] =
    "What carries the data plane over a network: libfabric, or Talweg's own TCP (tcp), where peers "
    "prove who they are. auto: libfabric for data_security=none, else tcp.";
constexpr char kAdminListenHelp[] =
    "Where the daemon answers admin, health and reflection calls (gRPC). Whoever reaches it may "
    "call: keep it on a socket, on loopback or on a trusted network.";

template <typename C>
std::vector<Option<C>> ProcessOptions(const std::string& spin_note) {
  return {
      Make<C>("config", &C::config, Text{},
              "Configuration file in protobuf text format; its fields are named as the options.",
              "no file"),
      Make<C>("log_level", &C::log_level, Choice{{"debug", "info", "warning", "error", "off"}},
              "What is written to stderr: this level and worse."),
      Make<C>("ready_fd", &C::ready_fd, Number<int32_t>{-1, 1 << 20},
              "File descriptor to which one JSON line with pid and addresses is written when the "
              "daemon serves; it is closed afterwards.",
              "none"),
      Make<C>("ready_file", &C::ready_file, Text{},
              "File that is created, whole, with the same line as ready_fd.", "none"),
      Make<C>("spin_us", &C::spin_us, Number<int32_t>{-1, 1'000'000},
              "How long an idle data thread looks for work before it sleeps, in microseconds at "
              "most. It yields its CPU meanwhile. 0: it sleeps at once.",
              spin_note),
      Make<C>("drain_timeout_ms", &C::drain_timeout_ms, Milliseconds{0, 3'600'000},
              "How long a clean end after SIGTERM may take at most."),
      Make<C>("secret_file", &C::secret_file, Text{},
              "File with the job secret, which only its owner may read (mode 0600; talweg secret "
              "makes one). The scheduler lets in agents and aggregators that have the same secret. "
              "'none': there is no secret.",
              "~/.config/talweg/secret (below $XDG_CONFIG_HOME, if that is set) where it is there, "
              "else no secret"),
      Make<C>(
          "tls_dir", &C::tls_dir, Text{},
          "Directory with ca.crt, tls.crt and tls.key (talweg certs makes them), and ca.crl where "
          "certificates are revoked. gRPC over TCP then uses mutual TLS, and each call is "
          "admitted by the caller's role. Changed files are read anew.",
          "no TLS"),
      Make<C>("insecure", &C::insecure, Switch{},
              "Serve gRPC on addresses of a network without TLS. Anybody there may read and change "
              "what is said."),
      Make<C>("token_file", &C::token_file, Text{},
              "File with the bearer token that this process shows the scheduler, in place of a "
              "client certificate. It is read for every call. Needs tls_dir.",
              "none"),
      Make<C>("tokens_file", &C::tokens_file, Text{},
              "File with the bearer tokens that this process accepts, which only its owner may "
              "read: lines of ROLE token TEXT or ROLE service-account NAMESPACE:NAME, with the "
              "roles operator, viewer, node:JOB and aggregator:NAME. Needs tls_dir.",
              "none"),
      Make<C>("token_keys_file", &C::token_keys_file, Text{},
              "JSON Web Key Set of those who sign service-account tokens: what a Kubernetes API "
              "server serves at /openid/v1/jwks.",
              "none"),
      Make<C>("token_audience", &C::token_audience, Text{255},
              "The audience that a service-account token must be for.", "none"),
      Make<C>(
          "peer_calls_per_second_max", &C::peer_calls_per_second_max,
          Number<uint32_t>{0, 1'000'000},
          "How many gRPC calls a second one peer may make to this daemon; twice as many may "
          "come at once. A peer is an address, or a user of this machine; with a certificate or "
          "a token, a name there. A process that has joined is a peer of its own. 0: any "
          "number."),
      Make<C>("peer_calls_open_max", &C::peer_calls_open_max, Number<uint32_t>{0, 1'000'000},
              "How many gRPC calls one such peer may have open at this daemon; 0: any number."),
  };
}

template <typename C>
std::vector<Option<C>> With(std::vector<Option<C>> own,
                            const std::string& spin_note = "200, or 0 under a CPU quota") {
  std::vector<Option<C>> options = std::move(own);
  for (Option<C>& option : ProcessOptions<C>(spin_note)) options.push_back(std::move(option));
  return options;
}

std::vector<Option<SchedulerConfig>> SchedulerOptions() {
  using C = SchedulerConfig;
  std::vector<Option<C>> own = {
      Make<C>(
          "listen", &C::listen, Listen{},
          "Where agents, aggregators and the tool connect to (gRPC). Whoever reaches it may ask "
          "what jobs there are; secret_file decides who may join. With a socket all of them "
          "are on this machine."),
      Make<C>("interface", &C::interface, Text{64}, kInterfaceHelp, "the host of listen"),
      Make<C>("advertise", &C::advertise, Text{255}, kAdvertiseHelp, "the bound address"),
      Make<C>("store_path", &C::store_path, Text{},
              "SQLite file that keeps jobs, members and epochs over a restart.",
              "$XDG_STATE_HOME/talweg/scheduler.sqlite, or ~/.local/state/..."),
      Make<C>("in_memory", &C::in_memory, Switch{},
              "Keep the state in memory only: a restart forgets all jobs."),
      Make<C>("lease_ms", &C::lease_ms, Milliseconds{100, 3'600'000},
              "After how long a silence an agent or an aggregator counts as lost. Processes that "
              "die are noticed at once; this is for hosts and cables."),
      Make<C>("quotas_file", &C::quotas_file, Text{},
              "File with rules on jobs and tenants: how many members and jobs, how much of "
              "aggregators' memory, which share of their time. A changed file is read anew. "
              "docs/quotas.md has its form.",
              "no rules"),
      Make<C>("data_security", &C::data_security, Choice{{"any", "none", "keyed", "tls"}},
              "Which data_security agents and aggregators must have to come in."),
  };
  return With<C>(std::move(own), "it does not poll");
}

std::vector<Option<AggregatorConfig>> AggregatorOptions() {
  using C = AggregatorConfig;
  return With<C>({
      Make<C>("scheduler", &C::scheduler, Address{}, "The scheduler's address."),
      Make<C>("name", &C::name, Text{255},
              "The aggregator's name. No other aggregator has it, and it stays the same after a "
              "restart: placement of slices depends on it.",
              "the host's name"),
      Make<C>(
          "weight", &C::weight, Number<uint32_t>{1, 1000},
          "Its share of the bytes, relative to the other aggregators' weights. When all are equal "
          "the scheduler sets them by the hosts that the aggregators run on."),
      Make<C>(
          "lanes", &C::lanes, Number<uint32_t>{1, 64},
          "How many threads sum. To jobs each is an aggregator of its own: NAME, NAME/1, ... Each "
          "has this weight and an equal part of memory_bytes_max. Where listen and admin_listen "
          "name one port, lane K takes the K-th after it; where they name a socket, PATH.K."),
      Make<C>("cpus", &C::cpus, CpuList{},
              "CPUs that the lanes' threads run on: each lane on one of them, in turn.",
              "the kernel's choice"),
      Make<C>("listen", &C::listen, Listen{},
              "Where agents connect to (data plane). With a socket only agents of this machine do, "
              "through shared memory, and no network is opened."),
      Make<C>("interface", &C::interface, Text{64}, kInterfaceHelp,
              "the hosts of the listen options"),
      Make<C>("advertise", &C::advertise, Text{255}, kAdvertiseHelp, "the bound address"),
      Make<C>("provider", &C::provider, Name{}, kProviderHelp),
      Make<C>("data_security", &C::data_security, Choice{{"none", "keyed", "tls"}},
              kDataSecurityHelp),
      Make<C>("data_transport", &C::data_transport, Choice{{"auto", "libfabric", "tcp"}},
              kDataTransportHelp),
      Make<C>("local_transport", &C::local_transport, Switch{},
              "Serve agents on the same host through shared memory."),
      Make<C>("admin_listen", &C::admin_listen, Listen{}, kAdminListenHelp),
      Make<C>("memory_bytes_max", &C::memory_bytes_max, Bytes{kMiB, 1024 * 1024 * kGiB, true},
              "How much memory contributions and results of all jobs may take. A declaration that "
              "needs more is refused with the figures.",
              "half of the machine's memory, or of its control group's limit"),
      Make<C>("credit_bytes", &C::credit_bytes, Bytes{64 * kKiB, 64 * kGiB},
              "Contribution bytes that one agent may have in flight to this aggregator."),
      Make<C>("results_by_priority", &C::results_by_priority, Switch{},
              "Results that wait for an agent's connection leave by the priority of their tensor's "
              "push, as contributions do; otherwise in the order of their sums."),
      Make<C>("renew_ms", &C::renew_ms, Milliseconds{10, 3'600'000, true}, kRenewHelp),
      Make<C>("silence_ms", &C::silence_ms, Milliseconds{6'000, 3'600'000, true}, kSilenceHelp),
      Make<C>(
          "peer_connections_max", &C::peer_connections_max, Number<uint32_t>{0, 1'000'000},
          "How many data connections one member of a job may hold, and one address that has not "
          "shown a member's key; 0: any number. An agent needs one."),
  });
}

std::vector<Option<AgentConfig>> AgentOptions() {
  using C = AgentConfig;
  return With<C>({
      Make<C>("scheduler", &C::scheduler, Address{}, "The scheduler's address."),
      Make<C>("job", &C::job, Name{}, "The job's name; all its agents give the same."),
      Make<C>("tenant", &C::tenant, Text{1024},
              "Whose job it is, for the scheduler's quotas_file; all its agents give the same. If "
              "a rule there names the job's tenant, agents that give another one are refused.",
              "none"),
      Make<C>("node_rank", &C::node_rank, Number<uint32_t>{0, 65535},
              "Which node of the job this is, from 0. Fixes the order of sums."),
      Make<C>("name", &C::name, Text{255}, "The node's name, for people.", "the host's name"),
      Make<C>("rank_count", &C::rank_count, Number<uint32_t>{1, 1024},
              "How many ranks of the job run on this node."),
      Make<C>(
          "min_members", &C::min_members, Number<uint32_t>{1, 65536},
          "The fewest nodes with which the job begins, and goes on after losses (loss_policy)."),
      Make<C>("max_members", &C::max_members, Number<uint32_t>{1, 65536},
              "How many nodes the job may have."),
      Make<C>("begin_members", &C::begin_members, Number<uint32_t>{0, 65536},
              "The number of nodes with which the job begins without a wait, from min_members to "
              "max_members. The same at all agents of a job. 0: as max_members."),
      Make<C>("not_after_finish", &C::not_after_finish, Switch{},
              "If the newest job of that name has finished, do not begin another one, and end with "
              "an error: this node comes too late."),
      Make<C>("loss_policy", &C::loss_policy, LossPolicyChoice{},
              "What becomes of the job when a node or an aggregator is lost."),
      Make<C>(
          "slice_bytes_max", &C::slice_bytes_max,
          Bytes{.min = 4 * kKiB, .max = kGiB, .multiple_of = kCacheLineBytes},
          "Tensors are cut into slices of at most so many bytes. The same at all agents of a job. "
          "An agent that serves a job alone and has GPUs cuts them into 16 MiB, if that is more."),
      Make<C>(
          "dealing", &C::dealing, DealingRuleText{},
          "How slices are dealt to aggregators: runs of each tensor by weight (striped), or by a "
          "hash of each slice's key, as docs/protocol.md has them. The same at all agents of a "
          "job."),
      Make<C>(
          "encoding", &C::encoding, EncodingChoice{},
          "How sums and averages of f32 travel between nodes: rounded to bf16, half the bytes, "
          "or to int8, a quarter; as gaps, exactly and without the zeros; as few, which is for "
          "few distinct numbers, and otherwise int8 (docs/arithmetic.md). The same at all agents "
          "of a job. Tensors on GPUs then go through host memory."),
      Make<C>("encoding_bytes_min", &C::encoding_bytes_min, Bytes{0, 16 * kGiB},
              "A tensor with fewer bytes travels plain, whatever encoding says. The same at all "
              "agents of a job."),
      Make<C>("credit_bytes", &C::credit_bytes, Bytes{64 * kKiB, 64 * kGiB},
              "Contribution bytes in flight to one aggregator, at most; it may grant less."),
      Make<C>("socket_path", &C::socket_path, Text{107},
              "Unix socket on which the node's ranks find the agent (their TALWEG_AGENT_SOCKET).",
              "$XDG_RUNTIME_DIR/talweg/<job>-<node_rank>.sock, or below /tmp/talweg-<uid>"),
      Make<C>("socket_mode", &C::socket_mode, FileMode{},
              "Mode of the socket: who may be a rank. With more than the owner, ranks of other "
              "users are accepted as the mode says."),
      Make<C>("socket_group", &C::socket_group, Text{64}, "Group of the socket.",
              "the agent's own group"),
      Make<C>("interface", &C::interface, Text{64},
              "Network interface whose address data connections to aggregators come from, and "
              "admin calls are answered on, in place of the host of admin_listen; e.g. eth0. The "
              "kernel's routing decides which way packets from that address take (ip rule).",
              "the kernel's route, and the host of admin_listen"),
      Make<C>("advertise", &C::advertise, Text{255}, kAdvertiseHelp, "the bound address"),
      Make<C>("provider", &C::provider, Name{}, kProviderHelp),
      Make<C>("data_security", &C::data_security, Choice{{"none", "keyed", "tls"}},
              kDataSecurityHelp),
      Make<C>("data_transport", &C::data_transport, Choice{{"auto", "libfabric", "tcp"}},
              kDataTransportHelp),
      Make<C>("local_transport", &C::local_transport, Switch{},
              "Reach aggregators on the same host through shared memory."),
      Make<C>("admin_listen", &C::admin_listen, Listen{}, kAdminListenHelp),
      Make<C>("standalone", &C::standalone, Switch{},
              "One node without scheduler and aggregators: the agent serves its ranks alone."),
      Make<C>("arena_bytes_max", &C::arena_bytes_max, Bytes{kMiB, 1024 * 1024 * kGiB, true},
              "How much shared memory all ranks of this node may take.",
              "half of the machine's memory, or of its control group's limit"),
      Make<C>("join_timeout_ms", &C::join_timeout_ms, Milliseconds{100, 7 * 24 * 3'600'000},
              "How long the agent waits for the scheduler and for min_members nodes."),
      Make<C>("gather_ms", &C::gather_ms, Milliseconds{1, 7 * 24 * 3'600'000, true},
              "How long a job that has min_members nodes waits for begin_members before it begins. "
              "Who comes later joins between two steps."),
      Make<C>("renew_ms", &C::renew_ms, Milliseconds{10, 3'600'000, true}, kRenewHelp),
      Make<C>("silence_ms", &C::silence_ms, Milliseconds{6'000, 3'600'000, true}, kSilenceHelp),
      Make<C>(
          "unreachable_ms", &C::unreachable_ms, Milliseconds{100, 7 * 24 * 3'600'000, true},
          "After how long the ranks' waits end with an error because somebody is out of reach, and "
          "the scheduler does not say what became of it: an aggregator; a node that is waited for; "
          "or the scheduler itself, while the job waits for its answer. 0: never. Make it longer "
          "than the lease, and than a restart of the scheduler takes."),
      Make<C>(
          "stall_ms", &C::stall_ms, Milliseconds{100, 7 * 24 * 3'600'000, true},
          "How long a round that a rank of this node has pushed may wait for other ranks, which "
          "live, before the job ends with an error that names the tensor and those ranks. 0: "
          "for ever, as with loss_policy=continue."),
      Make<C>("stall_notice_ms", &C::stall_notice_ms, Milliseconds{1, 7 * 24 * 3'600'000, true},
              "After how long the agent's log first tells of a round that waits. The agent looks "
              "after one second, two, four and so on, so it may take twice as long. 0: never."),
      Make<C>("trace_path", &C::trace_path, Text{},
              "File for a timeline of the first rounds (trace event JSON; opens in Perfetto).",
              "no trace"),
      Make<C>("trace_rounds", &C::trace_rounds, Number<uint32_t>{1, 1'000'000},
              "How many rounds of each tensor are traced."),
      Make<C>("trace_bytes_max", &C::trace_bytes_max, Bytes{64 * kKiB, 16 * kGiB, true},
              "How much memory a timeline may take that AdminService's SetTrace switches on. 0: "
              "nobody may switch it on. The caller must show the job secret (secret_file), if the "
              "agent has one, and with TLS an operator's certificate."),
      Make<C>(
          "gpu", &C::gpu, Choice{{"auto", "off"}},
          "Whether tensors are taken from the memory of this node's GPUs, where there are any."),
      Make<C>("gpu_direct", &C::gpu_direct, Choice{{"auto", "off"}},
              "Whether the network device reads gradients from this node's GPUs and writes results "
              "to them without host memory between them, where both and the provider can. If a GPU "
              "with such results is lost, the job ends on this node; a lost GPU without them is "
              "opened again."),
      Make<C>("test_fake_gpus", &C::test_fake_gpus, Text{},
              "For tests: DIRECTORY:COUNT of GPUs that are files of a directory.", "none"),
  });
}

size_t EditDistance(const std::string& a, const std::string& b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string OptionText::EnvironmentName() const {
  return absl::StrCat("TALWEG_", absl::AsciiStrToUpper(name));
}

std::string Remedy(const OptionText& option) { return absl::StrCat("allowed: ", option.allowed); }

const std::vector<Option<SchedulerConfig>>& OptionsOf(const SchedulerConfig*) {
  static const auto* const options = new auto(SchedulerOptions());
  return *options;
}

const std::vector<Option<AggregatorConfig>>& OptionsOf(const AggregatorConfig*) {
  static const auto* const options = new auto(AggregatorOptions());
  return *options;
}

const std::vector<Option<AgentConfig>>& OptionsOf(const AgentConfig*) {
  static const auto* const options = new auto(AgentOptions());
  return *options;
}

std::string NearestName(const std::string& name, const std::vector<std::string>& known) {
  if (name.size() > 64) return "";
  std::string nearest;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : known) {
    size_t distance = EditDistance(name, candidate);
    // A single word of the name, or its beginning, counts as near: "level" means log_level.
    const bool is_part = name.size() >= 3 && candidate.find(name) != std::string::npos;
    if (is_part) distance = std::min<size_t>(distance, 2);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace talweg::config
