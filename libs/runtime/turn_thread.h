// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_TURN_THREAD_H_
#define TALWEG_LIBS_RUNTIME_TURN_THREAD_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace talweg::runtime {

// A thread that does one piece of work after another, so that a thread that must not wait has
// nothing to wait for.
class TurnThread {
 public:
  struct Work {
    std::function<void()> run;
    // Called after `run` if no other work waits then. May be empty.
    std::function<void()> when_idle;
  };

  // `name`: at most 15 bytes.
  explicit TurnThread(const char* name);
  // Ends the thread. Forgets the work whose turn has not come, and waits for the work whose turn it
  // is.
  ~TurnThread();
  TurnThread(const TurnThread&) = delete;
  TurnThread& operator=(const TurnThread&) = delete;

  // Any thread.
  void Add(Work work);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> waiting_;
  bool ends_ = false;
  std::thread thread_;  // The last member: it uses the others.
};

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_TURN_THREAD_H_
