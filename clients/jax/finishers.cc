// SPDX-License-Identifier: Apache-2.0
#include "clients/jax/finishers.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace talweg::jax {

Finishers& Finishers::Shared() {
  // A forked child has none of its parent's threads.
  static pid_t owner = ::getpid();
  static Finishers* shared = new Finishers;
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  if (owner != ::getpid()) {
    owner = ::getpid();
    shared = new Finishers;
  }
  return *shared;
}

void Finishers::Run(std::function<void()> task) {
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    if (idle_ >= tasks_.size()) {
      some_.notify_one();
      return;
    }
  }
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread{};
  const bool made = ::pthread_create(&thread, nullptr, &Finishers::Work, this) == 0;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (made) {
    ::pthread_detach(thread);
    return;
  }
  std::function<void()> own;
  {
    const std::scoped_lock lock(mutex_);
    if (tasks_.empty()) {
      return;
    }
    own = std::move(tasks_.front());
    tasks_.pop_front();
  }
  own();
}

void* Finishers::Work(void* finishers) {
  static_cast<Finishers*>(finishers)->Work();
  return nullptr;
}

void Finishers::Work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    while (tasks_.empty()) {
      ++idle_;
      some_.wait(lock);
      --idle_;
    }
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace talweg::jax
