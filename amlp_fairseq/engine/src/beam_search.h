// Beam search that writes z words a step (Zhang et al. 2020, Algorithm 1).

#pragma once

#include "search.h"

namespace amlp {

class BeamSearch : public Search {
 public:
  using Search::Search;

  // Of each source (with its end symbol) at most `beam` hypotheses, best first.
  std::vector<std::vector<Hypothesis>> run(ThreadPool& pool, const std::vector<Tokens>& sources) const {
    Batch batch = begin(pool, sources);
    std::vector<Sentence> open;
    std::vector<std::vector<Hypothesis>> result(sources.size());
    for (size_t i = 0; i < sources.size(); i++) open.push_back({static_cast<int64_t>(i), max_length(sources[i]), {Row()}, {}});
    while (!open.empty()) {
      Call call;
      for (Sentence& sentence : open)
        for (Row& row : sentence.rows) {
          row.path.push_back(batch.session.next_row() + call.paths.size());
          call.add(sentence.index, sentence.limit, row.path, row.tokens);
        }
      decode(batch, call);
      std::vector<Sentence> remaining;
      int64_t row = 0;
      for (Sentence& sentence : open) {
        const int64_t first = row;
        row += sentence.rows.size();
        if (options_.no_repeat_ngram > 0 && order_.directions > 1) drop_repetitions(sentence, &call.continuations[first]);
        if (advance(batch, sentence, call, first))
          result[sentence.index] = sorted(std::move(sentence.finished));
        else
          remaining.push_back(std::move(sentence));
      }
      open = std::move(remaining);
    }
    return result;
  }

 private:
  struct Sentence {
    int64_t index, limit;
    std::vector<Row> rows;
    std::vector<Hypothesis> finished;
  };

  // Exclude continuations that end a hypothesis with a repeated n-gram, where two directions meet. Hypotheses at the length
  // limit are exempt, and all of a sentence that would have none: every sentence needs one.
  void drop_repetitions(const Sentence& sentence, std::vector<Continuation>* continuations) const {
    std::vector<std::pair<float*, float>> dropped;
    bool any = !sentence.finished.empty();
    for (size_t row = 0; row < sentence.rows.size(); row++)
      for (Continuation& continuation : continuations[row]) {
        const int64_t end = end_of(continuation);
        const Tokens& written = sentence.rows[row].tokens;
        const bool refused = end < decoder_.words && continuation.score > kNone &&
                             static_cast<int64_t>(written.size()) + end < sentence.limit &&
                             ngrams_.repeats(written, {continuation.tokens.begin(), continuation.tokens.begin() + end});
        if (refused) dropped.push_back({&continuation.score, continuation.score}), continuation.score = kNone;
        any |= continuation.score > kNone;
      }
    if (!any)
      for (const auto& [score, before] : dropped) *score = before;
  }

  // Choose the hypotheses that go on, and those that end (lines 15-24). Returns true if the sentence is finished.
  // first: the call's first row of the sentence.
  bool advance(const Batch& batch, Sentence& sentence, const Call& call, int64_t first) const {
    const int64_t z = decoder_.words;
    const std::vector<Continuation>* const continuations = &call.continuations[first];
    struct Option {
      float score;
      int64_t row, index;
    };
    std::vector<Option> all;
    for (size_t row = 0; row < sentence.rows.size(); row++)
      for (size_t i = 0; i < continuations[row].size(); i++)
        all.push_back({sentence.rows[row].score + continuations[row][i].score, static_cast<int64_t>(row),
                       static_cast<int64_t>(i)});
    const auto extended = [&](const Option& option) {
      const Row& before = sentence.rows[option.row];
      const Tokens& tokens = continuations[option.row][option.index].tokens;
      Row row{option.score, before.path, before.tokens, before.token_scores};
      for (int64_t slot = 0; slot < z; slot++) {
        row.tokens.push_back(tokens[slot]);
        // 0 for padding after an end symbol
        row.token_scores.push_back(tokens[slot] == symbols_.pad ? 0 : score_of(call, first + option.row, slot, tokens[slot]));
      }
      return row;
    };
    const int64_t beam = options_.beam;
    bool any = false;
    for (const int64_t i : best_of(all, options_.keep_all ? all.size() : beam)) {
      const int64_t end = end_of(continuations[all[i].row][all[i].index]);
      if (end == z) continue;
      any = true;
      const bool room = options_.keep_all || static_cast<int64_t>(sentence.finished.size()) < beam;
      if (all[i].score > kNone && room) sentence.finished.push_back(finish(batch, extended(all[i]), end, call.paths[first].size()));
    }
    if (any)
      for (Option& option : all)
        if (end_of(continuations[option.row][option.index]) < z) option.score = kNone;
    std::vector<Row> rows;
    for (const int64_t i : best_of(all, beam))
      if (all[i].score > kNone) rows.push_back(extended(all[i]));
    sentence.rows = std::move(rows);
    return static_cast<int64_t>(sentence.finished.size()) >= beam || sentence.rows.empty();
  }

  std::vector<Hypothesis> sorted(std::vector<Hypothesis> hypotheses) const {
    std::stable_sort(hypotheses.begin(), hypotheses.end(),
                     [](const Hypothesis& one, const Hypothesis& other) { return one.score > other.score; });
    if (static_cast<int64_t>(hypotheses.size()) > options_.beam) hypotheses.resize(options_.beam);
    return hypotheses;
  }
};

}  // namespace amlp
