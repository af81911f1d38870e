// Threads of one translation. They are the engine's own: libraries in the same process with threads of theirs neither wait
// for these nor are waited for.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
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

  // Call part(begin, end) for parts of 0 … count - 1 that cover all, at least `grain` each, and wait. Not reentrant.
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
    wake_.notify_all();
    take_parts(task, parts);
    {
      const std::lock_guard lock(mutex_);
      task_ = nullptr;  // a thread that wakes up later is not waited for
    }
    while (busy_.load(std::memory_order_acquire) > 0) pause();
  }

 private:
  static constexpr int kSpins = 20000;  // before a thread that waits for work sleeps: some hundred microseconds

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int64_t> generation_{0}, next_{0}, busy_{0};
  const std::function<void(int64_t)>* task_ = nullptr;
  int64_t parts_ = 0;
  bool stopped_ = false;

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
  }

  void take_parts(const std::function<void(int64_t)>& task, int64_t parts) {
    for (int64_t i; (i = next_.fetch_add(1)) < parts;) task(i);
  }

  void work() {
    int64_t seen = 0;
    while (true) {
      for (int spin = 0; spin < kSpins && generation_.load(std::memory_order_acquire) == seen; spin++) pause();
      const std::function<void(int64_t)>* task;
      int64_t parts;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stopped_ || generation_.load() != seen; });
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

}  // namespace amlp
