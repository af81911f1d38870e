// Threads of searches. They are the engine's own: libraries in the same process with threads of theirs neither wait for
// these nor are waited for.

#pragma once

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace amlp {

class ThreadPool {
 public:
  // threads: how many work at a time, with the one that calls `run`.
  explicit ThreadPool(int64_t threads) {
    for (int64_t i = 1; i < threads; i++) workers_.emplace_back([this] { work(); });
  }

  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int64_t threads() const { return workers_.size() + 1; }

  // Call part(begin, end) for parts of 0 … count - 1 that cover all, at least `grain` each, and wait. Not reentrant. What a
  // part throws is thrown here.
  template <typename Part>
  void run(int64_t count, int64_t grain, const Part& part) {
    const int64_t parts = std::min((count + grain - 1) / std::max<int64_t>(grain, 1), 4 * threads());
    if (workers_.empty() || parts < 2) {
      if (count > 0) part(int64_t{0}, count);
      return;
    }
    const std::function<void(int64_t)> task = [&](int64_t i) { part(count * i / parts, count * (i + 1) / parts); };
    {
      const std::lock_guard lock(mutex_);
      task_ = &task, parts_ = parts, next_ = 0;
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (asleep_.load() > 0) wake_.notify_all();
    take_parts(task, parts);
    {
      const std::lock_guard lock(mutex_);
      task_ = nullptr;  // a thread that wakes up later is not waited for
    }
    while (busy_.load(std::memory_order_acquire) > 0) pause();
    if (thrown_) std::rethrow_exception(std::exchange(thrown_, nullptr));
  }

 private:
  static constexpr int kSpins = 20000;  // before a thread that waits for work sleeps: some hundred microseconds

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int64_t> generation_{0}, next_{0}, busy_{0}, asleep_{0};
  const std::function<void(int64_t)>* task_ = nullptr;
  int64_t parts_ = 0;
  std::exception_ptr thrown_;
  bool stopped_ = false;

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }

  void take_parts(const std::function<void(int64_t)>& task, int64_t parts) {
    try {
      for (int64_t i; (i = next_.fetch_add(1)) < parts;) task(i);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      thrown_ = std::current_exception();
    }
  }

  void work() {
    int64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; spin++) pause();
      const std::function<void(int64_t)>* task;
      int64_t parts;
      {
        std::unique_lock lock(mutex_);
        asleep_.fetch_add(1);
        wake_.wait(lock, [&] { return stopped_ || generation_.load() != seen; });
        asleep_.fetch_sub(1);
        if (stopped_) return;
        seen = generation_.load(), task = task_, parts = parts_;
        if (task == nullptr) continue;
        busy_.fetch_add(1);
      }
      take_parts(*task, parts);
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }
};

// The pools of an engine: searches borrow one each, and the next ones find them again.
class ThreadPools {
 public:
  ~ThreadPools() {
    if (process_ != getpid()) forget();
  }

  // Call work(pool) with a pool of so many threads that nothing else uses meanwhile.
  template <typename Work>
  auto with(int64_t threads, const Work& work) {
    struct Loan {
      ThreadPools& pools;
      std::unique_ptr<ThreadPool> pool;

      ~Loan() { pools.give_back(std::move(pool)); }
    };
    const Loan loan{*this, take(threads)};
    return work(*loan.pool);
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<ThreadPool>> idle_;
  pid_t process_ = getpid();

  // A process that fork has made has the pools without their threads: they cannot even be ended.
  void forget() {
    for (std::unique_ptr<ThreadPool>& pool : idle_) (void)pool.release();
    idle_.clear();
  }

  std::unique_ptr<ThreadPool> take(int64_t threads) {
    {
      const std::lock_guard lock(mutex_);
      if (process_ != getpid()) forget(), process_ = getpid();
      const auto found = std::find_if(idle_.begin(), idle_.end(), [&](const auto& pool) { return pool->threads() == threads; });
      if (found != idle_.end()) {
        std::unique_ptr<ThreadPool> pool = std::move(*found);
        idle_.erase(found);
        return pool;
      }
    }
    return std::make_unique<ThreadPool>(threads);
  }

  void give_back(std::unique_ptr<ThreadPool> pool) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(pool));
  }
};

}  // namespace amlp
