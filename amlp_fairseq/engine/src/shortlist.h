// Lexical shortlists: the words of the vocabulary that an output may have, by the words of its source (Schwenk et al. 2007).
// Each sentence has a list of its own, so that no result depends on the sentences beside it.

#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "linear.h"
#include "prefix.h"

namespace amlp {

// The translations of each word of a source.
class Shortlist {
 public:
  // starts: where those of each source word begin in `words`, and where the last ones end.
  // always: words of every list.
  // vocab: target words.
  Shortlist(std::vector<int64_t> starts, std::vector<int32_t> words, std::vector<int32_t> always, int64_t vocab)
      : starts_(std::move(starts)), words_(std::move(words)), always_(std::move(always)), vocab_(vocab) {
    const bool ordered = !starts_.empty() && starts_[0] == 0 && std::is_sorted(starts_.begin(), starts_.end()) &&
                         starts_.back() == static_cast<int64_t>(words_.size());
    if (!ordered) throw std::invalid_argument("a shortlist whose parts do not fit together");
    for (const std::vector<int32_t>* const some : {&words_, &always_})
      for (const int32_t word : *some)
        if (word < 0 || word >= vocab) throw std::invalid_argument("a shortlist with an unknown word: " + std::to_string(word));
  }

  // Check that it is of a model with such vocabularies.
  void check(int64_t source_vocab, int64_t vocab) const {
    if (static_cast<int64_t>(starts_.size()) != source_vocab + 1 || vocab_ != vocab)
      throw std::invalid_argument("a shortlist of other vocabularies");
  }

  // The list of a source, with its symbols. Of a prefix it has the words of each state that would allow none of it.
  Listed of(const std::vector<int32_t>& source, const std::vector<int32_t>& symbols, const Prefix* prefix) const {
    std::vector<bool> listed(vocab_, false);
    for (const int32_t word : always_) listed[word] = true;
    for (const int32_t word : symbols) listed[word] = true;
    for (const int32_t word : source)
      for (int64_t i = starts_[word]; i < starts_[word + 1]; i++) listed[words_[i]] = true;
    if (prefix != nullptr) prefix->allow(listed);
    std::vector<int32_t> result;
    for (int64_t word = 0; word < vocab_; word++)
      if (listed[word]) result.push_back(word);
    return Listed(std::move(result));
  }

 private:
  std::vector<int64_t> starts_;
  std::vector<int32_t> words_, always_;
  int64_t vocab_;
};

// The outputs of a list, of a map that is in parts of the same size (the last one may have less).
inline std::unique_ptr<Linear> outputs_of(ThreadPool& pool, std::span<const std::unique_ptr<Linear>> parts, const Listed& list) {
  const int64_t size = parts[0]->out;
  std::unique_ptr<Linear> result = parts[0]->blank(list.size());
  pool.run(list.size(), grain_of(32 * result->in), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) parts[list.word(i) / size]->copy(list.word(i) % size, *result, i);
  });
  return result;
}

// Call work(pool, i) for each of some sentences: several at a time, each in one thread, where there are enough of them.
template <typename Work>
void for_sentences(ThreadPool& pool, int64_t count, const Work& work) {
  if (count < pool.threads()) {
    for (int64_t i = 0; i < count; i++) work(pool, i);
    return;
  }
  pool.run(count, 1, [&](int64_t begin, int64_t end) {
    ThreadPool alone(1);
    for (int64_t i = begin; i < end; i++) work(alone, i);
  });
}

}  // namespace amlp
