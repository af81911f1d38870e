// Encoders and decoders for inference.

#pragma once

#include "embedding.h"
#include "shortlist.h"

namespace amlp {

struct SelfAttentionBlock : Block {
  std::unique_ptr<SelfAttention> attention;

  void full(ThreadPool& pool, Rows& rows, const Starts& starts) const {
    attention->full(pool, inputs(pool, rows), rows, starts);
    add(pool, rows);
  }

  void causal(ThreadPool& pool, Rows& rows, const Starts& starts) const {
    attention->causal(pool, inputs(pool, rows), rows, starts);
    add(pool, rows);
  }

  void step(ThreadPool& pool, Rows& rows, const Step& step, State& state) const {
    attention->step(pool, inputs(pool, rows), rows, step, state);
    add(pool, rows);
  }
};

struct CrossAttentionBlock : Block {
  std::unique_ptr<CrossAttention> attention;

  void apply(ThreadPool& pool, Rows& rows, const State& source, const std::vector<Group>& groups,
             std::vector<float>* weights = nullptr) const {
    attention->apply(pool, inputs(pool, rows), rows, source, groups, weights);
    add(pool, rows);
  }
};

inline int64_t longest(const std::vector<Tokens>& texts) {
  size_t result = 0;
  for (const Tokens& text : texts) result = std::max(result, text.size());
  return result;
}

struct Encoder {
  struct Layer {
    SelfAttentionBlock self_attention;
    FeedForward feed_forward;
  };

  Embedding embedding;
  std::vector<Layer> layers;
  std::optional<Norm> norm;

  // Outputs (words of all sentences, C).
  Floats run(ThreadPool& pool, const std::vector<Tokens>& sources, const Starts& starts) const {
    Rows rows;
    rows.count = starts.back();
    embedding.embed(pool, sources, starts, embedding.encodings(longest(sources)), rows.x);
    for (const Layer& layer : layers) {
      layer.self_attention.full(pool, rows, starts);
      layer.feed_forward.apply(pool, rows);
    }
    if (norm) norm->apply(pool, rows.x.data(), rows.x.data(), rows.count);
    return std::move(rows.x);
  }
};

struct Decoder {
  struct Layer {
    SelfAttentionBlock self_attention;
    CrossAttentionBlock cross_attention;
    FeedForward feed_forward;
  };

  Embedding embedding;
  std::vector<Layer> layers;
  std::optional<Norm> norm;
  std::unique_ptr<Linear> output;
  int64_t words, starts;  // z, and the first positions, whose words add nothing to the inputs
};

struct EncoderDecoder {
  Encoder encoder;
  Decoder decoder;
};

// Models whose probabilities are averaged: they write as many words a step, and have the same vocabularies.
typedef std::vector<std::shared_ptr<const EncoderDecoder>> Models;

// A batch in the middle of decoding with one model.
class Session {
 public:
  // lists: the words that each output may have.
  Session(const EncoderDecoder& model, ThreadPool& pool, const std::vector<Tokens>& sources, const std::vector<Listed>& lists)
      : decoder_(model.decoder), pool_(pool) {
    Starts starts{0};
    for (const Tokens& source : sources) starts.push_back(starts.back() + source.size());
    const Floats source = model.encoder.run(pool, sources, starts);
    for (const Decoder::Layer& layer : decoder_.layers) {
      sources_.push_back(layer.cross_attention.attention->prepare(pool, source, starts));
      states_.push_back(layer.self_attention.attention->begin());
    }
    if (lists.empty() || !lists[0].is_list()) return;
    outputs_.resize(sources.size());
    for_sentences(pool, sources.size(), [&](ThreadPool& some, int64_t i) {
      outputs_[i] = outputs_of(some, {&decoder_.output, 1}, lists[i]);
    });
  }

  // The number of the first row of the next step.
  int32_t next_row() const { return rows_so_far_; }

  // Logits of the next z words of R rows, (R, z, V), or row after row (z, words of its sentence's list).
  // tokens: the words of the previous step, at first any z, (R, z).
  // sentences: of each row, ascending.
  // weights: null, or is filled with the last layer's attention to the words of the source, the mean over heads, (R, z, S) row
  //   after row.
  Floats& step(const Tokens& tokens, const std::vector<int64_t>& sentences, const std::vector<Path>& paths,
               std::vector<float>* weights = nullptr) {
    const int64_t z = decoder_.words, width = decoder_.embedding.width;
    starts_.push_back(rows_so_far_);
    rows_so_far_ += paths.size();
    rows_.count = tokens.size();
    rows_.x.resize(rows_.count * width);
    for (size_t r = 0; r < sentences.size(); r++)
      decoder_.embedding.embed(&tokens[r * z], z, (paths[r].size() - 1) * z, decoder_.starts, &rows_.x[r * z * width]);
    if (decoder_.embedding.norm) decoder_.embedding.norm->apply(pool_, rows_.x.data(), rows_.x.data(), rows_.count);
    std::vector<Group> groups;
    for (int64_t r = 0; r < static_cast<int64_t>(sentences.size()); r++) {
      if (groups.empty() || groups.back().sentence != sentences[r]) groups.push_back({sentences[r], r * z, 0});
      groups.back().count += z;
    }
    for (size_t i = 0; i < decoder_.layers.size(); i++) {
      const Decoder::Layer& layer = decoder_.layers[i];
      layer.self_attention.step(pool_, rows_, {z, paths, starts_}, *states_[i]);
      layer.cross_attention.apply(pool_, rows_, *sources_[i], groups, i + 1 < decoder_.layers.size() ? nullptr : weights);
      layer.feed_forward.apply(pool_, rows_);
    }
    if (decoder_.norm) decoder_.norm->apply(pool_, rows_.x.data(), rows_.x.data(), rows_.count);
    if (outputs_.empty())
      decoder_.output->product(pool_, rows_.x.data(), rows_.count, logits_);
    else
      project(groups);
    return logits_;
  }

 private:
  const Decoder& decoder_;
  ThreadPool& pool_;
  std::vector<std::unique_ptr<State>> sources_, states_;  // of the layers
  Rows rows_;
  Floats logits_;
  int32_t rows_so_far_ = 0;
  std::vector<int32_t> starts_;  // of each step its first row
  std::vector<std::unique_ptr<Linear>> outputs_;  // of each sentence's list, if there are lists

  // The logits of lists.
  void project(const std::vector<Group>& groups) {
    Starts starts{0};
    for (const Group& group : groups) starts.push_back(starts.back() + group.count * outputs_[group.sentence]->out);
    logits_.resize(starts.back());
    for_sentences(pool_, groups.size(), [&](ThreadPool& some, int64_t i) {
      const Linear& output = *outputs_[groups[i].sentence];
      output.product(some, &rows_.x[groups[i].first * output.in], groups[i].count, &logits_[starts[i]], false);
    });
  }
};

}  // namespace amlp
