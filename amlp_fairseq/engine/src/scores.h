// Scores of texts that are given, by an autoregressive model.

#pragma once

#include <map>

#include "search.h"

namespace amlp {

class Scorer : public Search {
 public:
  Scorer(const Models& models, Symbols symbols, Order order, int64_t max_tokens, const SearchOptions& options)
      : Search(models, symbols, order, max_tokens, plain(options)) {}

  // The texts of each source, all with their end symbols, as hypotheses with their scores. Of the texts of a source each
  // beginning that several share is read once.
  std::vector<std::vector<Hypothesis>> run(ThreadPool& pool, const std::vector<Tokens>& sources,
                                           const std::vector<std::vector<Tokens>>& texts) const {
    std::vector<std::vector<Hypothesis>> result(sources.size());
    for (size_t first = 0, end; first < sources.size(); first = end) {
      int64_t words = 0;
      for (end = first; end < sources.size(); end++) {
        for (const Tokens& text : texts[end]) words += text.size();
        if (words > kMaxWords && end > first) break;
      }
      score(pool, {sources.begin() + first, sources.begin() + end}, &texts[first], &result[first]);
    }
    return result;
  }

 private:
  static SearchOptions plain(SearchOptions options) {
    options.align = false, options.temperature = options.repetition_penalty = 1;
    return options;
  }

  static constexpr int64_t kMaxWords = 2048;  // whose logits are in memory at a time; one source may have more

  void score(ThreadPool& pool, const std::vector<Tokens>& sources, const std::vector<Tokens>* texts,
             std::vector<Hypothesis>* result) const {
    Batch batch = begin(pool, sources);
    Call call;
    std::map<std::pair<int32_t, int32_t>, int32_t> children;  // rows, by the row and the word before
    std::vector<int32_t> rows;                                // before each word of each text
    for (size_t i = 0; i < sources.size(); i++) {
      const int32_t root = call.paths.size();
      call.add(i, 0, {root}, {});
      for (const Tokens& text : texts[i]) {
        rows.push_back(root);
        for (size_t word = 0; word + 1 < text.size(); word++) {
          const int32_t before = rows.back();
          const int32_t next = call.paths.size();
          const auto [child, is_new] = children.insert({{before, text[word]}, next});
          rows.push_back(child->second);
          if (!is_new) continue;
          Path path = call.paths[before];
          path.push_back(child->second);
          Tokens written = call.written[before];
          written.push_back(text[word]);
          call.add(i, 0, path, written);
        }
      }
    }
    read(batch, call);
    pool.run(call.paths.size(), grain_of(8 * vocab_), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) normalize(batch, call, r, 0);
    });
    auto row = rows.begin();
    for (size_t i = 0; i < sources.size(); i++)
      for (const Tokens& text : texts[i]) {
        Hypothesis scored{text, {}, 0, 0, {}, {}, 0};
        double total = 0;
        for (const int32_t token : text) total += scored.token_scores.emplace_back(score_of(batch, call, *row++, 0, token));
        scored.score = normalized(total, text.size());
        result[i].push_back(std::move(scored));
      }
  }
};

}  // namespace amlp
