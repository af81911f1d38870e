// Attentions of linear cost: several heads between linear maps, for whole texts.

#pragma once

#include <stdexcept>

#include "attention.h"

namespace amlp {

// The numbers (rows, d_h) of one head of a text.
struct HeadRows {
  const float* data;
  int64_t rows, stride;

  const float* row(int64_t i) const { return data + i * stride; }
};

// The keys and values of a head, or c means of them, to which queries attend by softmax.
class Slots : public State {
 public:
  // k, v: (c, d_h).
  Slots(const HeadRows& k, const HeadRows& v, int64_t width)
      : memory_(PackedHead<float>::size(k.rows, width)), head_(memory_.data(), k.rows, width) {
    head_.pack(k.data, v.data, k.stride);
  }

  Slots(Slots&&) = default;

  // Outputs (n, d_h).
  void attend(const HeadRows& q, float* out, int64_t stride) const {
    Floats scores;
    head_.attend(q.data, q.stride, q.rows, out, stride, scores);
  }

 private:
  Floats memory_;
  PackedHead<float> head_;
};

// What a head of a kind of attention computes.
class HeadAttention {
 public:
  virtual ~HeadAttention() = default;

  // What the queries of head h need of the keys and values of a text.
  virtual std::unique_ptr<State> memory(int64_t h, const HeadRows& k, const HeadRows& v) const = 0;

  // Outputs of the queries of a text.
  virtual void attend(int64_t h, const HeadRows& q, const State& memory, float* out, int64_t stride) const = 0;
};

class MultiHeadSelfAttention : public SelfAttention {
 public:
  // qkv: to queries, keys and values, (C, 3 C).
  MultiHeadSelfAttention(std::unique_ptr<Linear> qkv, std::unique_ptr<Linear> out, int64_t heads,
                         std::unique_ptr<HeadAttention> attention)
      : qkv_(std::move(qkv)), out_(std::move(out)), width_(out_->in), heads_(heads), attention_(std::move(attention)) {}

  void full(ThreadPool& pool, const float* y, Rows& rows, const Starts& starts) const override {
    qkv_->product(pool, y, rows.count, rows.inner);
    const int64_t head = width_ / heads_, sentences = starts.size() - 1;
    rows.attended.resize(rows.count * width_);
    const int64_t work = 4 * width_ * rows.count / std::max<int64_t>(1, sentences);
    pool.run(sentences * heads_, grain_of(work), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const int64_t first = starts[i / heads_], n = starts[i / heads_ + 1] - first, h = i % heads_;
        const float* const q = rows.inner.data() + first * 3 * width_ + h * head;
        const HeadRows keys{q + width_, n, 3 * width_}, values{q + 2 * width_, n, 3 * width_};
        attention_->attend(h, {q, n, 3 * width_}, *attention_->memory(h, keys, values),
                           rows.attended.data() + first * width_ + h * head, width_);
      }
    });
    out_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }

  std::unique_ptr<State> begin() const override {
    throw std::invalid_argument("a decoder that writes step by step has an attention to all words");
  }

  void step(ThreadPool&, const float*, Rows&, const Step&, State&) const override { begin(); }

 protected:
  std::unique_ptr<Linear> qkv_, out_;
  int64_t width_, heads_;
  std::unique_ptr<HeadAttention> attention_;
};

class MultiHeadCrossAttention : public CrossAttention {
 public:
  // q: to queries.
  // kv: to keys and values of the source.
  MultiHeadCrossAttention(std::unique_ptr<Linear> q, std::unique_ptr<Linear> kv, std::unique_ptr<Linear> out, int64_t heads,
                          std::unique_ptr<HeadAttention> attention)
      : q_(std::move(q)), kv_(std::move(kv)), out_(std::move(out)), width_(out_->in), heads_(heads),
        attention_(std::move(attention)) {}

  std::unique_ptr<State> prepare(ThreadPool& pool, const Floats& source, const Starts& starts) const override {
    const int64_t head = width_ / heads_, sentences = starts.size() - 1;
    std::vector<float> both;
    kv_->product(pool, source.data(), starts.back(), both);
    auto result = std::make_unique<Memories>();
    result->of_heads.resize(sentences * heads_);
    pool.run(sentences * heads_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const int64_t h = i % heads_, first = starts[i / heads_], n = starts[i / heads_ + 1] - first;
        const float* const k = both.data() + first * 2 * width_ + h * head;
        result->of_heads[i] = attention_->memory(h, {k, n, 2 * width_}, {k + width_, n, 2 * width_});
      }
    });
    return result;
  }

  void apply(ThreadPool& pool, const float* y, Rows& rows, const State& source, const std::vector<Group>& groups,
             std::vector<float>*) const override {
    const Memories& memories = static_cast<const Memories&>(source);
    q_->product(pool, y, rows.count, rows.inner);
    const int64_t head = width_ / heads_;
    rows.attended.resize(rows.count * width_);
    pool.run(groups.size() * heads_, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) {
        const Group& group = groups[i / heads_];
        const int64_t h = i % heads_, offset = group.first * width_ + h * head;
        attention_->attend(h, {rows.inner.data() + offset, group.count, width_}, *memories.of_heads[group.sentence * heads_ + h],
                           rows.attended.data() + offset, width_);
      }
    });
    out_->product(pool, rows.attended.data(), rows.count, rows.outer);
  }

 private:
  // Of each sentence those of its heads.
  struct Memories : State {
    std::vector<std::unique_ptr<State>> of_heads;
  };

  std::unique_ptr<Linear> q_, kv_, out_;
  int64_t width_, heads_;
  std::unique_ptr<HeadAttention> attention_;
};

}  // namespace amlp
