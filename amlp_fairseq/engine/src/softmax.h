// Softmax attention, of a layer.

#pragma once

#include "attention.h"

namespace amlp {

class SoftmaxSelfAttention : public SelfAttention {
 public:
  // qkv: to queries, which it scales, keys and values, (C, 3 C).
  // words: z, words of a step.
  SoftmaxSelfAttention(std::unique_ptr<Linear> qkv, std::unique_ptr<Linear> out, int64_t heads, int64_t words)
      : qkv_(std::move(qkv)), out_(std::move(out)), width_(out_->in), heads_(heads), words_(words) {}

  void full(ThreadPool& pool, const float* y, Rows& rows, const Starts& starts) const override {
    whole(pool, y, rows, starts, false);
  }

  void causal(ThreadPool& pool, const float* y, Rows& rows, const Starts& starts) const override {
    whole(pool, y, rows, starts, true);
  }

  std::unique_ptr<State> begin() const override { return std::make_unique<Cache>(width_, words_); }

  void step(ThreadPool& pool, const float* y, Rows& rows, const Step& step, State& state) const override {
    Cache& cache = static_cast<Cache&>(state);
    qkv_->product(pool, y, rows.count, rows.inner);
    float* const table = cache.append(step.paths.size());
    for (int64_t i = 0; i < rows.count; i++)
      std::copy_n(rows.inner.data() + i * 3 * width_ + width_, 2 * width_, table + i * 2 * width_);
    rows.attended.resize(rows.count * width_);
    const int64_t words = step.words;
    pool.run(step.paths.size(), grain_of(4 * words * words * step.steps * width_), [&](int64_t begin, int64_t end) {
      std::vector<float> scores;
      for (int64_t r = begin; r < end; r++)
        cache.attend(rows.inner.data() + r * words * 3 * width_, 3 * width_, words, heads_, step.paths[r],
                     rows.attended.data() + r * words * width_, width_, scores);
    });
    out_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }

 private:
  std::unique_ptr<Linear> qkv_, out_;
  int64_t width_, heads_, words_;

  void whole(ThreadPool& pool, const float* y, Rows& rows, const Starts& starts, bool causal) const {
    qkv_->product(pool, y, rows.count, rows.inner);
    const int64_t head = width_ / heads_, sentences = starts.size() - 1;
    rows.attended.resize(rows.count * width_);
    const int64_t work = 4 * width_ * rows.count / std::max<int64_t>(1, sentences);
    pool.run(sentences * heads_, grain_of(work), [&](int64_t begin, int64_t end) {
      std::vector<float> scores;
      for (int64_t i = begin; i < end; i++) {
        const int64_t first = starts[i / heads_], n = starts[i / heads_ + 1] - first, h = i % heads_;
        const float* q = rows.inner.data() + first * 3 * width_ + h * head;
        PackedHead(q + width_, q + 2 * width_, n, head, 3 * width_)
            .attend(q, 3 * width_, n, rows.attended.data() + first * width_ + h * head, width_, scores, causal);
      }
    });
    out_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }
};

class SoftmaxCrossAttention : public CrossAttention {
 public:
  // q: to queries, which it scales.
  // kv: to keys and values of the source.
  SoftmaxCrossAttention(std::unique_ptr<Linear> q, std::unique_ptr<Linear> kv, std::unique_ptr<Linear> out, int64_t heads)
      : q_(std::move(q)), kv_(std::move(kv)), out_(std::move(out)), width_(out_->in), heads_(heads) {}

  std::unique_ptr<State> prepare(ThreadPool& pool, const std::vector<float>& source, const Starts& starts) const override {
    const int64_t head = width_ / heads_, sentences = starts.size() - 1;
    std::vector<float> both;
    kv_->product(pool, source.data(), starts.back(), both);
    auto result = std::make_unique<Heads>();
    result->of_sentences.assign(sentences, std::vector<PackedHead>(heads_));
    pool.run(sentences * heads_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const int64_t sentence = i / heads_, h = i % heads_, first = starts[sentence];
        const float* k = both.data() + first * 2 * width_ + h * head;
        result->of_sentences[sentence][h] = PackedHead(k, k + width_, starts[sentence + 1] - first, head, 2 * width_);
      }
    });
    return result;
  }

  void apply(ThreadPool& pool, const float* y, Rows& rows, const State& source, const std::vector<Group>& groups) const override {
    const Heads& heads = static_cast<const Heads&>(source);
    q_->product(pool, y, rows.count, rows.inner);
    const int64_t head = width_ / heads_;
    rows.attended.resize(rows.count * width_);
    pool.run(groups.size() * heads_, 4, [&](int64_t begin, int64_t end) {
      std::vector<float> scores;
      for (int64_t i = begin; i < end; i++) {
        const Group& group = groups[i / heads_];
        const int64_t h = i % heads_, offset = group.first * width_ + h * head;
        heads.of_sentences[group.sentence][h].attend(rows.inner.data() + offset, width_, group.count,
                                                     rows.attended.data() + offset, width_, scores);
      }
    });
    out_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }

 private:
  struct Heads : State {
    std::vector<std::vector<PackedHead>> of_sentences;
  };

  std::unique_ptr<Linear> q_, kv_, out_;
  int64_t width_, heads_;
};

}  // namespace amlp
