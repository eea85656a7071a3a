// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_JAX_ROUNDS_H_
#define TALWEG_CLIENTS_JAX_ROUNDS_H_

// The rounds that XLA's programs have started and not collected yet.
//
// A program starts a round in one call and collects it in another, which gets the round's ticket.
// Start() copies what is given and does not wait for other ranks. Any thread may call anything.

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "clients/c/completion_loop.h"
#include "clients/c/talweg.h"

namespace talweg::jax {

// A call. It is the same at all ranks, except for the lengths.
struct Call {
  std::string name;
  talweg_dtype dtype = TALWEG_F32;
  talweg_op op = TALWEG_SUM;
  talweg_share gives = TALWEG_SHARE_WHOLE;
  talweg_share gets = TALWEG_SHARE_WHOLE;
  uint32_t root_rank = 0;
  int32_t priority = 0;
  uint64_t element_count = 0;  // A full part has this many.
  std::vector<uint32_t> ranks;
  // The bytes of each part that this rank gives, and of each that it gets.
  std::vector<uint64_t> given;
  std::vector<uint64_t> got;
  // Signs the shape, which must be the same at all ranks. 0: no signature. A gradient signs the
  // shape of its original.
  uint64_t signature = 0;
  // Whether the round gives no result, but compares what ranks are about to call (comparison.h).
  bool compares = false;
  double prescale = 1;
  double postscale = 1;

  uint64_t GivenBytes() const;
  uint64_t GotBytes() const;
  // Reads what Python's talweg.jax writes (_primitive.py). Returns nothing if it is something else.
  static std::optional<Call> From(std::string_view name, std::span<const int64_t> numbers,
                                  std::span<const double> factors);
};

struct Outcome {
  talweg_status status = TALWEG_OK;
  std::string text;

  bool ok() const { return status == TALWEG_OK; }
  // Returns the outcome of this thread's last call to libtalweg.
  static Outcome Of(talweg_status status);
  // Returns the outcome if nothing reports when the call's round is over.
  static Outcome Untold(talweg_status status, const Call& call);
};

class Rounds;

// A round between its start and its collection.
struct OpenRound {
  Call call;
  Rounds* rounds = nullptr;           // Where it was started.
  talweg_client* client = nullptr;    // Null: a job of one rank without an agent.
  c::CompletionLoop* loop = nullptr;  // The client's.
  talweg_tensor tensor = 0;
  talweg_round round = 0;
  Outcome start;                     // Why there is no round, if there is none.
  Outcome misuse;                    // What is wrong with the call, if its round tells only that.
  std::vector<unsigned char> given;  // What a lone rank has given, or what is compared.

  // Returns whether Collect() would not wait for other ranks.
  bool IsOver() const;
  // Writes the round's result to `out`, scaled. Waits without limit.
  Outcome Collect(void* out);

 private:
  // Waits, and compares the parts that have come with those that are expected. If they differ, it
  // takes the round.
  Outcome Lengths();
  // Waits for the words of all ranks, and compares them.
  Outcome Compare(void* out);
  // Returns the outcome of this thread's last call to libtalweg. A disagreement frees the name.
  Outcome Told(talweg_status status);
};

class Rounds {
 public:
  // Sets whose rounds are started from now on. Null: nobody's. `alone`: those of a job of one rank.
  void Use(talweg_client* client, bool alone);

  // Starts a round of the bytes at `data`. Returns its ticket even if the round could not be
  // started: Take() then has the reason.
  uint64_t Start(Call call, const void* data);

  // Returns the round of a ticket, or nothing if there is no such ticket or it was taken.
  std::optional<OpenRound> Take(uint64_t ticket);

  // Ranks have disagreed on the name's tensor, and every rank is told so. The tensor is of no more
  // use, so the name's next call declares another one, at every rank.
  void Free(const std::string& name, talweg_tensor tensor);

 private:
  struct Declared {
    Call call;
    talweg_tensor tensor = 0;
    uint64_t open_ticket = 0;
  };

  Outcome Push(OpenRound& round, const void* data);
  Outcome Declare(OpenRound& round);
  // Tells the other ranks, in the next round of the name's tensor, that this rank uses the name for
  // another call. It gives nothing. If a rank makes the agreed call, every rank gets a mismatch. If
  // all use the name for the same other call, each gets `misuse`, and the name stays as it is.
  Outcome TellMisuse(const Call& agreed, OpenRound& round);
  // Returns the name of the tensor that the name's next declaration makes.
  std::string NameNow(const std::string& name);
  // Ends the round of a ticket that nobody will take.
  void Forsake(uint64_t ticket);

  std::mutex mutex_;
  talweg_client* client_ = nullptr;
  // It is never destroyed, because Python never frees a client. Its thread ends with the client's
  // health.
  c::CompletionLoop* loop_ = nullptr;
  bool alone_ = false;
  uint64_t last_ticket_ = 0;
  std::unordered_map<uint64_t, OpenRound> open_;
  std::unordered_map<std::string, Declared> declared_;
  // How often ranks have disagreed on a name: the same number at every rank.
  std::unordered_map<std::string, uint32_t> disagreements_;
};

}  // namespace talweg::jax

#endif  // TALWEG_CLIENTS_JAX_ROUNDS_H_
