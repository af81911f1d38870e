// Memory for numbers that are written before they are read: it is not cleared, and large pieces are on large pages.

#pragma once

#include <cstddef>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace amlp {

constexpr size_t kCacheLine = 64, kLargePage = 2 << 20;

// Large pieces of memory that are free: the system would clear them before it gives them away again.
class LargePieces {
 public:
  static LargePieces& instance() {
    static LargePieces* const pieces = new LargePieces;  // outlives what gives pieces back
    return *pieces;
  }

  // A piece of at least so many bytes.
  void* take(size_t bytes) {
    {
      const std::lock_guard lock(mutex_);
      const auto found = free_.lower_bound(bytes);
      if (found != free_.end() && found->first <= 2 * bytes) {
        void* const memory = found->second;
        bytes_ -= found->first, sizes_[memory] = found->first;
        free_.erase(found);
        return memory;
      }
    }
    const size_t size = (bytes + kLargePage - 1) / kLargePage * kLargePage;
    void* const memory = std::aligned_alloc(kLargePage, size);
    if (memory == nullptr) throw std::bad_alloc();
#ifdef __linux__
    madvise(memory, size, MADV_HUGEPAGE);
#endif
    const std::lock_guard lock(mutex_);
    sizes_[memory] = size;
    return memory;
  }

  void give_back(void* memory) {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(memory);
    if (bytes_ + found->second <= kMost) {
      free_.emplace(found->second, memory);
      bytes_ += found->second;
    } else {
      std::free(memory);
    }
    sizes_.erase(found);
  }

 private:
  static constexpr size_t kMost = 256 << 20;  // bytes that are kept

  std::mutex mutex_;
  std::multimap<size_t, void*> free_;
  std::unordered_map<void*, size_t> sizes_;  // of pieces that are used
  size_t bytes_ = 0;                         // of those that are free
};

template <typename Number>
struct Uncleared {
  typedef Number value_type;

  Uncleared() = default;
  template <typename Other>
  Uncleared(const Uncleared<Other>&) {}

  Number* allocate(size_t count) {
    const size_t bytes = count * sizeof(Number);
    if (bytes >= 2 * kLargePage) return static_cast<Number*>(LargePieces::instance().take(bytes));
    void* const memory = std::aligned_alloc(kCacheLine, (bytes + kCacheLine - 1) / kCacheLine * kCacheLine);
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<Number*>(memory);
  }

  void deallocate(Number* memory, size_t count) {
    if (count * sizeof(Number) >= 2 * kLargePage)
      LargePieces::instance().give_back(memory);
    else
      std::free(memory);
  }

  template <typename Other>
  void construct(Other* at) {
    ::new (static_cast<void*>(at)) Other;
  }
  template <typename Other, typename... Arguments>
  void construct(Other* at, Arguments&&... arguments) {
    ::new (static_cast<void*>(at)) Other(std::forward<Arguments>(arguments)...);
  }

  template <typename Other>
  bool operator==(const Uncleared<Other>&) const {
    return true;
  }
};

template <typename Number>
using Numbers = std::vector<Number, Uncleared<Number>>;
typedef Numbers<float> Floats;

}  // namespace amlp
