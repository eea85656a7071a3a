// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_JAX_FINISHERS_H_
#define TALWEG_CLIENTS_JAX_FINISHERS_H_

// Threads that complete XLA's futures.
//
// XLA goes on with a program on the thread that completes its future: that thread computes, and may
// be blocked by a callback into Python. So it is never the completion loop's, which others wait
// for, and no task waits for another one: a thread is made where none is idle. One is the rule.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace talweg::jax {

class Finishers {
 public:
  // The process's; never destroyed, as its threads outlive main().
  static Finishers& Shared();

  // Runs `task` on one of them, or here where the system gives no thread. Any thread calls it.
  void Run(std::function<void()> task);

 private:
  static void* Work(void* finishers);
  void Work();

  std::mutex mutex_;
  std::condition_variable some_;
  std::deque<std::function<void()>> tasks_;
  size_t idle_ = 0;
};

}  // namespace talweg::jax

#endif  // TALWEG_CLIENTS_JAX_FINISHERS_H_
