// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_CLIENTS_JAX_FINISHERS_H_
#define TALWEG_CLIENTS_JAX_FINISHERS_H_

// Threads that complete XLA's futures.
//
// XLA goes on with a program on the thread that completes its future. That thread computes, and a
// callback into Python may block it. So it is never the completion loop's thread, for which others
// wait, and no task waits for another one: if no thread is idle, another one is made. Usually one
// thread is enough.

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>

namespace talweg::jax {

class Finishers {
 public:
  // The process's one. It is never destroyed, because its threads outlive main().
  static Finishers& Shared();

  // Runs `task` on one of the threads, or here if the system gives no thread. Any thread may call
  // it.
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
