// The order in which an output is written, and the rule against repeated n-grams, which reads outputs as text.

#pragma once

#include <algorithm>
#include <set>

#include "model.h"

namespace amlp {

// h directions: see ops/generation_order.py.
struct Order {
  int64_t directions;
  bool middle_to_side;

  bool operator==(const Order&) const = default;

  // True if a direction writes in reading order.
  bool reads_forward(int64_t direction) const {
    return (direction < std::max<int64_t>(directions / 2, 1)) != middle_to_side;
  }

  // The slot, in the order of generation, of each word of a text.
  std::vector<int64_t> slots(int64_t length) const {
    std::vector<int64_t> result(length);
    const int64_t segments = std::max<int64_t>(directions / 2, 1), shortest = length / segments, longer = length % segments;
    for (int64_t slot = 0; slot < length; slot++) {
      // the k-th word of a segment
      const int64_t k = slot / segments, segment = slot % segments, pair = k / 2;
      const int64_t start = segment * shortest + std::min(segment, longer), size = shortest + (segment < longer);
      int64_t index = slot;
      if (directions > 1 && middle_to_side)
        index = start + (size + 1) / 2 + (k % 2 ? pair : -1 - pair);
      else if (directions > 1)
        index = k % 2 ? start + size - 1 - pair : start + pair;
      result[index] = slot;
    }
    return result;
  }

  // The words of one direction in reading order, of words in the order of generation.
  Tokens read(const Tokens& words, int64_t direction) const {
    Tokens result;
    for (int64_t i = direction; i < static_cast<int64_t>(words.size()); i += directions) result.push_back(words[i]);
    if (!reads_forward(direction)) std::reverse(result.begin(), result.end());
    return result;
  }

  // The text of a complete output, in generation order and without end symbol.
  Tokens text(const Tokens& words) const {
    Tokens result;
    for (const int64_t slot : slots(words.size())) result.push_back(words[slot]);
    return result;
  }
};

inline bool contains(const Tokens& tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

// While an output is being written, only n-grams within the words of one direction are known; those across two directions are
// known when it is complete. See search/no_repeat_ngrams.py.
class NoRepeatNgrams {
 public:
  // size: n; 0: nothing is banned.
  NoRepeatNgrams(int64_t size, Order order) : size_(size), order_(order) {}

  // The words that must not follow these, in generation order.
  Tokens banned(const Tokens& written, const Tokens& more = {}) const {
    if (size_ == 0) return {};
    Tokens words = written;
    words.insert(words.end(), more.begin(), more.end());
    const int64_t h = order_.directions, direction = words.size() % h;
    const bool forward = order_.reads_forward(direction);
    Tokens context = order_.read(words, direction);
    if (static_cast<int64_t>(context.size()) < size_ - 1) return {};
    if (forward)
      context.erase(context.begin(), context.end() - (size_ - 1));
    else
      context.resize(size_ - 1);
    Tokens result;
    for (int64_t other = 0; other < h; other++) {
      const Tokens text = order_.read(words, other);
      for (auto ngram = text.begin(); text.end() - ngram >= size_; ++ngram)
        if (std::equal(context.begin(), context.end(), forward ? ngram : ngram + 1))
          result.push_back(forward ? ngram[size_ - 1] : *ngram);
    }
    return result;
  }

  // True if a complete output, in generation order and without end symbol, repeats an n-gram.
  bool repeats(const Tokens& words) const {
    if (size_ == 0) return false;
    const Tokens text = order_.text(words);
    std::set<Tokens> seen;
    for (auto ngram = text.begin(); text.end() - ngram >= size_; ++ngram)
      if (!seen.insert({ngram, ngram + size_}).second) return true;
    return false;
  }

 private:
  int64_t size_;
  Order order_;
};

}  // namespace amlp
