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

  std::unique_ptr<State> begin() const override {
    if (qkv_->rounded()) return std::make_unique<Cache<Half>>(width_, words_);
    return std::make_unique<Cache<float>>(width_, words_);
  }

  void step(ThreadPool& pool, const float* y, Rows& rows, const Step& step, State& state) const override {
    qkv_->product(pool, y, rows.count, rows.inner);
    rows.attended.resize(rows.count * width_);
    if (qkv_->rounded())
      attend(pool, rows, step, static_cast<Cache<Half>&>(state));
    else
      attend(pool, rows, step, static_cast<Cache<float>&>(state));
    out_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }

 private:
  std::unique_ptr<Linear> qkv_, out_;
  int64_t width_, heads_, words_;

  void whole(ThreadPool& pool, const float* y, Rows& rows, const Starts& starts, bool causal) const {
    qkv_->product(pool, y, rows.count, rows.inner);
    rows.attended.resize(rows.count * width_);
    if (qkv_->rounded())
      attend<Half>(pool, rows, starts, causal);
    else
      attend<float>(pool, rows, starts, causal);
    out_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }

  template <typename Number>
  void attend(ThreadPool& pool, Rows& rows, const Starts& starts, bool causal) const {
    const int64_t head = width_ / heads_, sentences = starts.size() - 1;
    const int64_t work = 4 * width_ * rows.count / std::max<int64_t>(1, sentences);
    pool.run(sentences * heads_, grain_of(work), [&](int64_t begin, int64_t end) {
      Floats scores;
      Numbers<Number> memory;
      for (int64_t i = begin; i < end; i++) {
        const int64_t first = starts[i / heads_], n = starts[i / heads_ + 1] - first, h = i % heads_;
        const float* q = rows.inner.data() + first * 3 * width_ + h * head;
        memory.resize(PackedHead<Number>::size(n, head));
        PackedHead<Number> packed(memory.data(), n, head);
        packed.pack(q + width_, q + 2 * width_, 3 * width_);
        packed.attend(q, 3 * width_, n, rows.attended.data() + first * width_ + h * head, width_, scores, causal);
      }
    });
  }

  template <typename Number>
  void attend(ThreadPool& pool, Rows& rows, const Step& step, Cache<Number>& cache) const {
    cache.append(rows.inner.data() + width_, 3 * width_, rows.count);
    const int64_t words = step.words;
    pool.run(step.paths.size(), grain_of(4 * words * words * step.paths[0].size() * width_), [&](int64_t begin, int64_t end) {
      Floats scores;
      for (int64_t r = begin; r < end; r++)
        cache.attend(rows.inner.data() + r * words * 3 * width_, 3 * width_, words, heads_, step.paths[r],
                     rows.attended.data() + r * words * width_, width_, scores);
    });
  }
};

class SoftmaxCrossAttention : public CrossAttention {
 public:
  // q: to queries, which it scales.
  // kv: to keys and values of the source.
  SoftmaxCrossAttention(std::unique_ptr<Linear> q, std::unique_ptr<Linear> kv, std::unique_ptr<Linear> out, int64_t heads)
      : q_(std::move(q)), kv_(std::move(kv)), out_(std::move(out)), width_(out_->in), heads_(heads) {}

  std::unique_ptr<State> prepare(ThreadPool& pool, const Floats& source, const Starts& starts) const override {
    Floats both;
    kv_->product(pool, source.data(), starts.back(), both);
    if (kv_->rounded()) return std::make_unique<Heads<Half>>(pool, both, starts, width_, heads_);
    return std::make_unique<Heads<float>>(pool, both, starts, width_, heads_);
  }

  void apply(ThreadPool& pool, const float* y, Rows& rows, const State& source, const std::vector<Group>& groups,
             std::vector<float>* weights) const override {
    q_->product(pool, y, rows.count, rows.inner);
    rows.attended.resize(rows.count * width_);
    if (kv_->rounded())
      attend(pool, rows, static_cast<const Heads<Half>&>(source), groups, weights);
    else
      attend(pool, rows, static_cast<const Heads<float>&>(source), groups, weights);
    out_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }

 private:
  // The keys and values of the sources, sentence after sentence and head after head.
  template <typename Number>
  class Heads : public State {
   public:
    // both: keys and values (words of all sentences, 2 C).
    Heads(ThreadPool& pool, const Floats& both, const Starts& starts, int64_t width, int64_t heads)
        : starts_(starts), head_(width / heads) {
      offsets_.push_back(0);
      for (size_t i = 1; i < starts.size(); i++)
        offsets_.push_back(offsets_.back() + heads * PackedHead<Number>::size(starts[i] - starts[i - 1], head_));
      memory_.resize(offsets_.back());
      pool.run((starts.size() - 1) * heads, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
          const float* const k = both.data() + starts[i / heads] * 2 * width + i % heads * head_;
          head(i / heads, i % heads).pack(k, k + width, 2 * width);
        }
      });
    }

    PackedHead<Number> head(int64_t sentence, int64_t h) const {
      const int64_t keys = starts_[sentence + 1] - starts_[sentence];
      Number* const memory = const_cast<Number*>(memory_.data());
      return {memory + offsets_[sentence] + h * PackedHead<Number>::size(keys, head_), keys, head_};
    }

   private:
    Starts starts_, offsets_;
    int64_t head_;
    Numbers<Number> memory_;
  };

  std::unique_ptr<Linear> q_, kv_, out_;
  int64_t width_, heads_;

  template <typename Number>
  void attend(ThreadPool& pool, Rows& rows, const Heads<Number>& heads, const std::vector<Group>& groups,
              std::vector<float>* weights) const {
    const int64_t head = width_ / heads_;
    std::vector<Floats> of_heads(weights == nullptr ? 0 : groups.size() * heads_);
    pool.run(groups.size() * heads_, 4, [&](int64_t begin, int64_t end) {
      Floats scores;
      for (int64_t i = begin; i < end; i++) {
        const Group& group = groups[i / heads_];
        const int64_t h = i % heads_, offset = group.first * width_ + h * head;
        heads.head(group.sentence, h)
            .attend(rows.inner.data() + offset, width_, group.count, rows.attended.data() + offset, width_, scores);
        if (weights != nullptr) of_heads[i] = scores;
      }
    });
    if (weights == nullptr) return;
    weights->clear();
    for (size_t g = 0; g < groups.size(); g++) {
      const int64_t keys = heads.head(groups[g].sentence, 0).keys(), stride = whole_vectors(keys);
      for (int64_t row = 0; row < groups[g].count; row++)
        for (int64_t key = 0; key < keys; key++) {
          float sum = 0;
          for (int64_t h = 0; h < heads_; h++) sum += of_heads[g * heads_ + h][row * stride + key];
          weights->push_back(sum / heads_);
        }
    }
  }
};

}  // namespace amlp
