// Blocks of Transformer layers. A batch is ragged: the words of its sentences follow each other without padding, so that no
// result depends on the batch.

#pragma once

#include <memory>

#include "linear.h"

namespace amlp {

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

// Of each sentence of a batch its first row, and the number of all rows.
typedef std::vector<int64_t> Starts;

// A residual block's inputs x (rows, C), and room for what it computes.
struct Rows {
  Floats x, normalized, inner, attended, outer;
  int64_t count;
};

// A residual block around a function: x + f(norm(x)), or norm(x + f(x)).
struct Block {
  Norm norm;
  bool norm_first;

  const float* inputs(ThreadPool& pool, Rows& rows) const {
    if (!norm_first) return rows.x.data();
    rows.normalized.resize(rows.x.size());
    norm.apply(pool, rows.x.data(), rows.normalized.data(), rows.count);
    return rows.normalized.data();
  }

  // Add the block's outputs, rows.outer, to its inputs.
  void add(ThreadPool& pool, Rows& rows) const {
    float* const x = rows.x.data();
    const float* const more = rows.outer.data();
    const int64_t size = rows.x.size();
#pragma omp simd
    for (int64_t i = 0; i < size; i++) x[i] += more[i];
    if (!norm_first) norm.apply(pool, x, x, rows.count);
  }
};

struct FeedForward : Block {
  std::unique_ptr<Linear> first, second;
  Activation activation;

  void apply(ThreadPool& pool, Rows& rows) const {
    first->product(pool, inputs(pool, rows), rows.count, rows.inner, activation == Activation::kRelu);
    if (activation != Activation::kRelu) activate(activation, rows.inner.data(), rows.inner.size());
    second->product(pool, rows.inner.data(), rows.count, rows.outer);
    add(pool, rows);
  }
};

// What an attention keeps of one batch: of a decoder's words so far, or of the sources.
struct State {
  virtual ~State() = default;
};

// The rows of a hypothesis, one in each step, the new one included. The rows of all steps are numbered in the order in which
// they were made.
typedef std::vector<int32_t> Path;

// The words of rows that are decoded together.
struct Step {
  int64_t words;  // z, of a row
  const std::vector<Path>& paths;
  const std::vector<int32_t>& starts;  // of each step so far its first row

  int64_t steps() const { return starts.size(); }

  // The row of a hypothesis in a step, counted from that step's first one, for hypotheses with a row in each step.
  int64_t row(int64_t hypothesis, int64_t step) const { return paths[hypothesis][step] - starts[step]; }
};

// Self-attention without its residual block: of inputs y (rows, C) to rows.outer (rows, C). Kinds: kinds.h.
class SelfAttention {
 public:
  virtual ~SelfAttention() = default;

  // Whole sentences.
  virtual void full(ThreadPool& pool, const float* y, Rows& rows, const Starts& starts) const = 0;

  // Whole sentences, whose words see themselves and those before them: word by word, where a kind has no faster way.
  virtual void causal(ThreadPool& pool, const float* y, Rows& rows, const Starts& starts) const {
    const int64_t width = rows.x.size() / rows.count;
    rows.outer.resize(rows.x.size());
    const std::unique_ptr<State> state = begin();
    std::vector<Path> paths(starts.size() - 1);
    std::vector<int32_t> step_starts;
    int32_t count = 0;
    for (int64_t word = 0;; word++) {
      std::vector<int64_t> open;  // rows of this word
      std::vector<Path> open_paths;
      step_starts.push_back(count);
      Rows next;
      for (size_t i = 0; i < paths.size(); i++) {
        if (starts[i] + word >= starts[i + 1]) continue;
        paths[i].push_back(count++);
        open.push_back(starts[i] + word), open_paths.push_back(paths[i]);
        next.x.insert(next.x.end(), y + open.back() * width, y + (open.back() + 1) * width);
      }
      if (open.empty()) return;
      next.count = open.size();
      step(pool, next.x.data(), next, {1, open_paths, step_starts}, *state);
      for (size_t i = 0; i < open.size(); i++) std::copy_n(&next.outer[i * width], width, &rows.outer[open[i] * width]);
    }
  }

  // The state before the first step.
  virtual std::unique_ptr<State> begin() const = 0;

  // The next words of hypotheses, which see the words before them and each other; a row may see others of the same step.
  virtual void step(ThreadPool& pool, const float* y, Rows& rows, const Step& step, State& state) const = 0;
};

// Rows that attend to the same source.
struct Group {
  int64_t sentence, first, count;
};

// Attention of a decoder to sources, as SelfAttention.
class CrossAttention {
 public:
  virtual ~CrossAttention() = default;

  // What all words read of the sources, given the encoder's outputs (words of all sentences, C').
  virtual std::unique_ptr<State> prepare(ThreadPool& pool, const Floats& source, const Starts& starts) const = 0;

  // weights: null, or is filled with the mean over heads of the attention to each word of the source, row after row, by kinds
  //   that have such weights.
  virtual void apply(ThreadPool& pool, const float* y, Rows& rows, const State& source, const std::vector<Group>& groups,
                     std::vector<float>* weights) const = 0;
};

}  // namespace amlp
