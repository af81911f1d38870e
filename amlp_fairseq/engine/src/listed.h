// The words that a row of logits is of.

#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace amlp {

// The words of a row of logits: some that follow each other, or a list.
class Listed {
 public:
  Listed(int64_t first, int64_t count) : first_(first), count_(count) {}

  // words: ascending.
  explicit Listed(std::vector<int32_t> words) : first_(0), count_(words.size()), words_(std::move(words)) {}

  int64_t size() const { return count_; }
  bool is_list() const { return !words_.empty(); }
  int32_t word(int64_t column) const { return is_list() ? words_[column] : first_ + column; }

  // The column of a word; -1 if it has none.
  int64_t column(int32_t word) const {
    if (!is_list()) return word >= first_ && word < first_ + count_ ? word - first_ : -1;
    const auto found = std::lower_bound(words_.begin(), words_.end(), word);
    return found != words_.end() && *found == word ? found - words_.begin() : -1;
  }

 private:
  int64_t first_, count_;
  std::vector<int32_t> words_;
};

}  // namespace amlp
