// Texts that must not be written.

#pragma once

#include "ngrams.h"
#include "prefix.h"

namespace amlp {

// A text, however it is cut up into words of the vocabulary: a word leads from one of its characters to another.
struct SuppressedText {
  struct Word {
    int32_t from, to, token;
  };
  int32_t length = 0;  // in characters
  std::vector<Word> words;
};

// As with NoRepeatNgrams, only texts within the words of one direction are known while an output is being written.
class Suppressed {
 public:
  Suppressed(std::vector<SuppressedText> texts, Order order) : texts_(std::move(texts)), order_(order) {}

  int64_t count() const { return texts_.size(); }

  // The words that must not follow these, in generation order, and `more` of the same step.
  Tokens banned(const Tokens& before, const Tokens& more) const {
    Tokens result;
    if (texts_.empty()) return result;
    Tokens words = before;
    words.insert(words.end(), more.begin(), more.end());
    const int64_t direction = words.size() % order_.directions;
    const bool forward = order_.reads_forward(direction);
    Tokens written = order_.read(words, direction);
    if (!forward) std::reverse(written.begin(), written.end());
    for (const SuppressedText& text : texts_) {
      const std::vector<bool> reached = read(text, written, forward);
      for (const SuppressedText::Word& word : text.words)
        if (forward ? word.to == text.length && reached[word.from] : word.from == 0 && reached[word.to])
          result.push_back(word.token);
    }
    return result;
  }

  // True if a complete output, in generation order and without end symbol, has one of the texts, other than in the words at
  // its begin or end that the prefix gives.
  bool occur(const Tokens& words, const Prefix& prefix) const {
    const Tokens written = order_.text(words);
    const std::vector<int64_t> slots = order_.slots(words.size());
    const auto given = [&](int64_t slot) { return prefix.gives(slot); };
    const int64_t first = std::find_if_not(slots.begin(), slots.end(), given) - slots.begin();
    const auto last = written.end() - (std::find_if_not(slots.rbegin(), slots.rend(), given) - slots.rbegin());
    for (const SuppressedText& text : texts_)
      for (auto end = written.begin() + first; end != written.end();) {
        ++end;
        const bool in_last = end > last && read(text, {last, end}, true)[text.length];
        if (!in_last && read(text, {written.begin(), end}, true)[text.length]) return true;
      }
    return false;
  }

 private:
  std::vector<SuppressedText> texts_;
  Order order_;

  // The characters between which a text has been written up to, or from its end on if it is not written forward; the first one
  // always. Each word has a character at least.
  static std::vector<bool> read(const SuppressedText& text, const Tokens& written, bool forward) {
    const auto begun = [&] {
      std::vector<bool> result(text.length + 1);
      result[forward ? 0 : text.length] = true;
      return result;
    };
    std::vector<bool> reached = begun();
    const int64_t last = std::min<int64_t>(written.size(), text.length);
    for (auto token = written.end() - last; token != written.end(); ++token) {
      std::vector<bool> next = begun();
      for (const SuppressedText::Word& word : text.words)
        if (word.token == *token && reached[forward ? word.from : word.to]) next[forward ? word.to : word.from] = true;
      reached = std::move(next);
    }
    return reached;
  }
};

}  // namespace amlp
