// Transformer encoders and decoders for inference. A batch is ragged: the words of its sentences follow each other without
// padding, so that no result depends on the batch.

#pragma once

#include <optional>
#include <stdexcept>
#include <string>

#include "attention.h"

namespace amlp {

typedef std::vector<int32_t> Tokens;

// What an encoder's layers, or a decoder's, have in common.
struct Shape {
  int64_t width, heads;  // C and H
  bool norm_first;       // layer norms before the blocks, not after their sums
};

struct Norm {
  std::vector<float> weight, bias;
  float eps = 1e-5f;

  // x (rows, C) to out, which may be x.
  void apply(ThreadPool& pool, const float* x, float* out, int64_t rows) const {
    const int64_t width = weight.size();
    pool.run(rows, grain_of(4 * width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) normalize(x + r * width, out + r * width, width, weight.data(), bias.data(), eps);
    });
  }
};

enum class Activation { kRelu, kGelu, kGeluAccurate, kTanh, kLinear };

inline void activate(Activation activation, float* x, int64_t count) {
  switch (activation) {
    case Activation::kRelu:
    case Activation::kLinear:
      return;  // ReLU is in the product
    case Activation::kGelu:
      for (int64_t i = 0; i < count; i++) x[i] *= 0.5f * (1 + std::erf(x[i] * 0.70710678f));
      return;
    case Activation::kGeluAccurate:
      for (int64_t i = 0; i < count; i++)
        x[i] *= 0.5f * (1 + std::tanh(0.79788456f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
      return;
    case Activation::kTanh:
      for (int64_t i = 0; i < count; i++) x[i] = std::tanh(x[i]);
      return;
  }
}

// A residual block's inputs x (rows, C), and room for what it computes.
struct Rows {
  std::vector<float> x, normalized, inner, attended, outer;
  int64_t count;
};

// A residual block around a function: x + f(norm(x)), or norm(x + f(x)).
struct Block {
  Norm norm;

  const float* inputs(const Shape& shape, ThreadPool& pool, Rows& rows) const {
    if (!shape.norm_first) return rows.x.data();
    rows.normalized.resize(rows.x.size());
    norm.apply(pool, rows.x.data(), rows.normalized.data(), rows.count);
    return rows.normalized.data();
  }

  // Add the block's outputs, rows.outer, to its inputs.
  void add(const Shape& shape, ThreadPool& pool, Rows& rows) const {
    float* const x = rows.x.data();
    const float* const more = rows.outer.data();
    const int64_t size = rows.x.size();
#pragma omp simd
    for (int64_t i = 0; i < size; i++) x[i] += more[i];
    if (!shape.norm_first) norm.apply(pool, x, x, rows.count);
  }
};

struct FeedForward : Block {
  std::unique_ptr<Linear> first, second;
  Activation activation;

  void apply(const Shape& shape, ThreadPool& pool, Rows& rows) const {
    first->product(pool, inputs(shape, pool, rows), rows.count, rows.inner, activation == Activation::kRelu);
    if (activation != Activation::kRelu) activate(activation, rows.inner.data(), rows.inner.size());
    second->product(pool, rows.inner.data(), rows.count, rows.outer);
    add(shape, pool, rows);
  }
};

// Self-attention of whole sentences.
struct FullAttention : Block {
  std::unique_ptr<Linear> qkv, out;

  // starts: of each sentence its first row, and the number of all rows.
  void apply(const Shape& shape, ThreadPool& pool, Rows& rows, const std::vector<int64_t>& starts) const {
    qkv->product(pool, inputs(shape, pool, rows), rows.count, rows.inner);
    const int64_t width = shape.width, head = width / shape.heads, sentences = starts.size() - 1;
    rows.attended.resize(rows.count * width);
    const int64_t work = 4 * width * rows.count / std::max<int64_t>(1, sentences);
    pool.run(sentences * shape.heads, grain_of(work), [&](int64_t begin, int64_t end) {
      std::vector<float> scores;
      for (int64_t i = begin; i < end; i++) {
        const int64_t first = starts[i / shape.heads], n = starts[i / shape.heads + 1] - first, h = i % shape.heads;
        const float* q = rows.inner.data() + first * 3 * width + h * head;
        PackedHead(q + width, q + 2 * width, n, head, 3 * width)
            .attend(q, 3 * width, n, rows.attended.data() + first * width + h * head, width, scores);
      }
    });
    out->product(pool, rows.attended.data(), rows.count, rows.outer);
    add(shape, pool, rows);
  }
};

// Self-attention of the new words of hypotheses.
struct StepAttention : Block {
  std::unique_ptr<Linear> qkv, out;

  // words: z.
  // paths: of each hypothesis its row in each step, the new one included.
  void apply(const Shape& shape, ThreadPool& pool, Rows& rows, int64_t words, Cache& cache,
             const std::vector<const int32_t*>& paths, int64_t steps) const {
    qkv->product(pool, inputs(shape, pool, rows), rows.count, rows.inner);
    const int64_t width = shape.width;
    float* const table = cache.append(paths.size());
    for (int64_t i = 0; i < rows.count; i++)
      std::copy_n(rows.inner.data() + i * 3 * width + width, 2 * width, table + i * 2 * width);
    rows.attended.resize(rows.count * width);
    pool.run(paths.size(), grain_of(4 * words * words * steps * width), [&](int64_t begin, int64_t end) {
      std::vector<float> scores;
      for (int64_t r = begin; r < end; r++)
        cache.attend(rows.inner.data() + r * words * 3 * width, 3 * width, words, shape.heads, paths[r],
                     rows.attended.data() + r * words * width, width, scores);
    });
    out->product(pool, rows.attended.data(), rows.count, rows.outer);
    add(shape, pool, rows);
  }
};

// The keys and values of a batch's sources for one layer: of each sentence its heads.
typedef std::vector<std::vector<PackedHead>> SourceHeads;

struct CrossAttention : Block {
  std::unique_ptr<Linear> q, kv, out;

  SourceHeads prepare(const Shape& shape, ThreadPool& pool, const std::vector<float>& source,
                      const std::vector<int64_t>& starts) const {
    const int64_t width = shape.width, head = width / shape.heads, sentences = starts.size() - 1;
    std::vector<float> both;
    kv->product(pool, source.data(), starts.back(), both);
    SourceHeads result(sentences, std::vector<PackedHead>(shape.heads));
    pool.run(sentences * shape.heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const int64_t sentence = i / shape.heads, h = i % shape.heads, first = starts[sentence];
        const float* k = both.data() + first * 2 * width + h * head;
        result[sentence][h] = PackedHead(k, k + width, starts[sentence + 1] - first, head, 2 * width);
      }
    });
    return result;
  }

  // groups: sentences, each with its first row and the number of its rows.
  struct Group {
    int64_t sentence, first, count;
  };

  void apply(const Shape& shape, ThreadPool& pool, Rows& rows, const SourceHeads& sources,
             const std::vector<Group>& groups) const {
    q->product(pool, inputs(shape, pool, rows), rows.count, rows.inner);
    const int64_t width = shape.width, head = width / shape.heads;
    rows.attended.resize(rows.count * width);
    pool.run(groups.size() * shape.heads, 4, [&](int64_t begin, int64_t end) {
      std::vector<float> scores;
      for (int64_t i = begin; i < end; i++) {
        const Group& group = groups[i / shape.heads];
        const int64_t h = i % shape.heads, offset = group.first * width + h * head;
        sources[group.sentence][h].attend(rows.inner.data() + offset, width, group.count, rows.attended.data() + offset, width,
                                          scores);
      }
    });
    out->product(pool, rows.attended.data(), rows.count, rows.outer);
    add(shape, pool, rows);
  }
};

// Positions p = 0, 1, … of the words of a text.
class Positions {
 public:
  enum class Kind { kNone, kSinusoidal, kLearned, kInterleaved };

  // kind: kInterleaved: the signed positions of Zhang et al. (2020), Eq. 7 and 10, for h directions.
  // width: C.
  // offset: of the first position, in kSinusoidal and in `learned`.
  // learned: (positions, C), or of kInterleaved for h > 2 (h, C).
  Positions(Kind kind, int64_t width, int64_t offset, int64_t directions, std::vector<float> learned)
      : kind_(kind), width_(width), offset_(offset), directions_(directions), learned_(std::move(learned)) {
    const int64_t half = width / 2;
    for (int64_t i = 0; i < half; i++)
      frequencies_.push_back(std::exp(i * -(std::log(10000.0f) / std::max<int64_t>(half - 1, 1))));
  }

  // Add the encoding of position p to x (C,).
  void add(int64_t p, float* x) const {
    if (kind_ == Kind::kNone) return;
    if (kind_ == Kind::kLearned) {
      add_row((p + offset_) * width_, x);
      return;
    }
    float position = p + offset_;
    if (kind_ == Kind::kInterleaved) {
      const int64_t round = p / directions_;
      position = directions_ == 2 ? (round + 1) * (p % 2 ? -1 : 1) : round;
      if (directions_ > 2) add_row(p % directions_ * width_, x);
    }
    const int64_t half = width_ / 2;
    for (int64_t i = 0; i < half; i++) {
      const float angle = position * frequencies_[i];
      x[i] += std::sin(angle), x[half + i] += std::cos(angle);
    }
  }

 private:
  Kind kind_;
  int64_t width_, offset_, directions_;
  std::vector<float> learned_, frequencies_;

  void add_row(int64_t begin, float* x) const {
    if (begin + width_ > static_cast<int64_t>(learned_.size())) throw std::out_of_range("no such position");
    for (int64_t c = 0; c < width_; c++) x[c] += learned_[begin + c];
  }
};

struct Embedding {
  std::vector<float> table;  // (V, C)
  float scale;
  Positions positions;
  std::optional<Norm> norm;
  int64_t width;

  // Inputs of tokens at positions p, p + 1, …; those before `starts` have no word.
  void embed(const int32_t* tokens, int64_t count, int64_t p, int64_t starts, float* x) const {
    for (int64_t i = 0; i < count; i++, x += width) {
      const float* row = table.data() + tokens[i] * width;
      for (int64_t c = 0; c < width; c++) x[c] = p + i < starts ? 0 : scale * row[c];
      positions.add(p + i, x);
    }
  }
};

struct Encoder {
  struct Layer {
    FullAttention attention;
    FeedForward feed_forward;
  };

  Shape shape;
  Embedding embedding;
  std::vector<Layer> layers;
  std::optional<Norm> norm;

  // Outputs (words of all sentences, C).
  std::vector<float> run(ThreadPool& pool, const std::vector<Tokens>& sources, const std::vector<int64_t>& starts) const {
    Rows rows;
    rows.count = starts.back();
    rows.x.resize(rows.count * shape.width);
    for (size_t i = 0; i < sources.size(); i++)
      embedding.embed(sources[i].data(), sources[i].size(), 0, 0, rows.x.data() + starts[i] * shape.width);
    if (embedding.norm) embedding.norm->apply(pool, rows.x.data(), rows.x.data(), rows.count);
    for (const Layer& layer : layers) {
      layer.attention.apply(shape, pool, rows, starts);
      layer.feed_forward.apply(shape, pool, rows);
    }
    if (norm) norm->apply(pool, rows.x.data(), rows.x.data(), rows.count);
    return std::move(rows.x);
  }
};

struct Decoder {
  struct Layer {
    StepAttention self_attention;
    CrossAttention cross_attention;
    FeedForward feed_forward;
  };

  Shape shape;
  Embedding embedding;
  std::vector<Layer> layers;
  std::optional<Norm> norm;
  std::unique_ptr<Linear> output;
  int64_t words, starts;  // z, and the first positions, whose words add nothing to the inputs
};

// A batch in the middle of decoding.
class Session {
 public:
  Session(const Encoder& encoder, const Decoder& decoder, ThreadPool& pool, const std::vector<Tokens>& sources)
      : decoder_(decoder), pool_(pool) {
    std::vector<int64_t> starts{0};
    for (const Tokens& source : sources) starts.push_back(starts.back() + source.size());
    const std::vector<float> source = encoder.run(pool, sources, starts);
    for (const Decoder::Layer& layer : decoder.layers) {
      sources_.push_back(layer.cross_attention.prepare(decoder.shape, pool, source, starts));
      caches_.emplace_back(decoder.shape.width, decoder.words);
    }
  }

  // Logits (R, z, V) of the next z words of R hypotheses.
  // tokens: the words of the previous step, at first any z, (R, z).
  // sentences: of each hypothesis, ascending.
  // paths: of each hypothesis its row in each step, this one included.
  const std::vector<float>& step(const Tokens& tokens, const std::vector<int64_t>& sentences,
                                 const std::vector<const int32_t*>& paths) {
    const int64_t z = decoder_.words, width = decoder_.shape.width, first = steps_++ * z;
    rows_.count = tokens.size();
    rows_.x.resize(rows_.count * width);
    for (size_t r = 0; r < sentences.size(); r++)
      decoder_.embedding.embed(&tokens[r * z], z, first, decoder_.starts, &rows_.x[r * z * width]);
    if (decoder_.embedding.norm) decoder_.embedding.norm->apply(pool_, rows_.x.data(), rows_.x.data(), rows_.count);
    std::vector<CrossAttention::Group> groups;
    for (int64_t r = 0; r < static_cast<int64_t>(sentences.size()); r++) {
      if (groups.empty() || groups.back().sentence != sentences[r]) groups.push_back({sentences[r], r * z, 0});
      groups.back().count += z;
    }
    for (size_t i = 0; i < decoder_.layers.size(); i++) {
      const Decoder::Layer& layer = decoder_.layers[i];
      layer.self_attention.apply(decoder_.shape, pool_, rows_, z, caches_[i], paths, steps_);
      layer.cross_attention.apply(decoder_.shape, pool_, rows_, sources_[i], groups);
      layer.feed_forward.apply(decoder_.shape, pool_, rows_);
    }
    if (decoder_.norm) decoder_.norm->apply(pool_, rows_.x.data(), rows_.x.data(), rows_.count);
    decoder_.output->product(pool_, rows_.x.data(), rows_.count, logits_);
    return logits_;
  }

 private:
  const Decoder& decoder_;
  ThreadPool& pool_;
  std::vector<SourceHeads> sources_;
  std::vector<Cache> caches_;
  Rows rows_;
  std::vector<float> logits_;
  int64_t steps_ = 0;
};

}  // namespace amlp
