// Greedy search of an autoregressive model with several words a call: a draft proposes the next words, one call reads them, and
// those that the model would have written itself are kept (Stern et al. 2018; Leviathan et al. 2023).

#pragma once

#include <functional>

#include "search.h"

namespace amlp {

class DraftSearch : public Search {
 public:
  using Search::Search;

  // At most `count` words that may follow the words of a sentence.
  typedef std::function<Tokens(int64_t sentence, const Tokens& words, int64_t count)> Propose;

  // Greedy search's hypothesis of each source (with its end symbol); none if no word has a finite probability.
  // words: K, the most words of a draft that a call reads.
  std::vector<std::vector<Hypothesis>> run(ThreadPool& pool, const std::vector<Tokens>& sources, const Propose& propose,
                                           int64_t words) const {
    Batch batch = begin(pool, sources);
    std::vector<Sentence> open;
    std::vector<std::vector<Hypothesis>> result(sources.size());
    for (size_t i = 0; i < sources.size(); i++) open.push_back({static_cast<int64_t>(i), max_length(sources[i]), {}, {}});
    for (int64_t calls = 1; !open.empty(); calls++) {
      Call call;
      for (Sentence& sentence : open) {
        sentence.proposal = checked(propose(sentence.index, sentence.row.tokens, most(sentence, words)), most(sentence, words));
        add(batch, call, sentence);
      }
      decode(batch, call);
      std::vector<Sentence> remaining;
      int64_t first = 0;
      for (Sentence& sentence : open) {
        const int64_t count = sentence.proposal.size() + 1;
        keep(batch, call, first, sentence);
        first += count;
        if (!sentence.row.tokens.empty() && sentence.row.tokens.back() == symbols_.eos)
          result[sentence.index].push_back(finish(batch, sentence.index, sentence.row, 0, calls));
        else if (sentence.row.score > kNone)
          remaining.push_back(std::move(sentence));
      }
      open = std::move(remaining);
    }
    return result;
  }

 private:
  struct Sentence {
    int64_t index, limit;
    Row row;
    Tokens proposal;
  };

  static int64_t most(const Sentence& sentence, int64_t words) {
    return std::min<int64_t>(words, sentence.limit - sentence.row.tokens.size());
  }

  // A proposal up to its end symbol, after which no word comes.
  Tokens checked(Tokens proposal, int64_t most) const {
    proposal.resize(std::min<int64_t>(proposal.size(), most));
    proposal.erase(std::find(proposal.begin(), proposal.end(), symbols_.eos), proposal.end());
    for (const int32_t token : proposal)
      if (token < 0 || token >= vocab_) throw std::invalid_argument("a draft with an unknown token: " + std::to_string(token));
    return proposal;
  }

  // A row for each word of a proposal, and one before it; each sees those before it.
  void add(const Batch& batch, Call& call, const Sentence& sentence) const {
    Path path = sentence.row.path;
    Tokens written = sentence.row.tokens;
    for (size_t i = 0;; i++) {
      path.push_back(batch.next_row() + call.paths.size());
      call.add(sentence.index, sentence.limit, path, written);
      if (i == sentence.proposal.size()) return;
      written.push_back(sentence.proposal[i]);
    }
  }

  // The words of the proposal up to the first wrong one, and the right word in its place.
  void keep(const Batch& batch, const Call& call, int64_t first, Sentence& sentence) const {
    Row& row = sentence.row;
    for (size_t i = 0;; i++) {
      const std::vector<Continuation>& best = call.continuations[first + i];
      const int32_t token = best.empty() ? symbols_.pad : best[0].tokens[0];
      row.score = best.empty() ? kNone : row.score + best[0].score;
      row.path.push_back(call.paths[first + i].back());
      row.tokens.push_back(token);
      row.token_scores.push_back(score_of(batch, call, first + i, 0, token));
      if (i == sentence.proposal.size() || token != sentence.proposal[i]) return;
    }
  }
};

}  // namespace amlp
