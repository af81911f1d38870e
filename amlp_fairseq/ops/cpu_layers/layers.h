// All layers of an encoder or decoder: decoding/fused_layers.py.

#pragma once

#include <utility>
#include <vector>

#include "linear_attentions.h"
#include "self_attentions.h"
#include "softmax_attention.h"

namespace {

// The inputs (n, C) of a block, which become its outputs, and room for what is computed on the way.
struct Rows {
  float* x;
  int64_t count, width;
  std::vector<float> normalized, first, read, second;
};

class SoftmaxLayers : public torch::CustomClassHolder {
 public:
  // Of all maps, and of all norms weights and biases. Where the layers' self-attentions are others, these are given, and of
  // attentions of linear cost the numbers of their blocks. See decoding/fused_layers.py.
  SoftmaxLayers(std::vector<Map> maps, std::vector<Tensor> norm_weights, std::vector<Tensor> norm_biases, double eps,
                int64_t heads, bool norm_first, std::vector<c10::intrusive_ptr<SelfAttention>> others,
                const std::vector<c10::intrusive_ptr<LinearAttention>>& linear, const std::vector<int64_t>& blocks)
      : maps_(std::move(maps)), norm_weights_(std::move(norm_weights)), norm_biases_(std::move(norm_biases)),
        others_(std::move(others)), linear_(norm_weights_.size()), eps_(eps), heads_(heads), norm_first_(norm_first) {
    for (size_t i = 0; i < blocks.size(); i++) linear_[blocks[i]] = linear[i];
  }

  // See StepLayers.forward.
  Tensor step(const Tensor& inputs, const Tensor& slots, int64_t end, const std::optional<Tensor>& bias,
              std::vector<Tensor> states, const std::vector<Tensor>& ks, const std::vector<Tensor>& vs,
              const std::optional<Tensor>& source_bias) const {
    const int64_t sentences = inputs.size(0), words = inputs.size(1), width = inputs.size(2);
    Tensor out = inputs.clone(at::MemoryFormat::Contiguous);
    Rows rows{out.mutable_data_ptr<float>(), sentences * words, width, {}, {}, {}, {}};
    for (size_t layer = 0; layer < states.size(); layer++) {
      const int64_t block = 3 * layer;
      const Tensor& state = states[layer];
      if (others_.empty()) {
        first_map(rows, block, false);
        write(rows, state, slots, end, words);
        const Table k{state.const_data_ptr<float>(), end, state.stride(0), state.stride(1), state.stride(3)};
        attend(rows, sentences, 3, k, {k.data + state.stride(2), end, k.sentence, k.head, k.position}, bias, false);
        add(rows, block, rows.read);
      } else {
        others_[layer]->step(inputs_of(rows, block), words, state, end - words, rows.second);
        add_second(rows, block);
      }
      cross_attention(rows, block + 1, ks[layer], vs[layer], source_bias, {}, false);
      feed_forward(rows, block + 2);
    }
    return out;
  }

  // See FullLayers.forward.
  Tensor forward_full(const Tensor& inputs, const std::optional<Tensor>& bias, const std::optional<Tensor>& future,
                  const std::vector<Tensor>& ks, const std::vector<Tensor>& vs,
                  const std::optional<Tensor>& source_bias) const {
    const int64_t sentences = inputs.size(0), words = inputs.size(1), width = inputs.size(2);
    Tensor out = inputs.clone(at::MemoryFormat::Contiguous);
    Rows rows{out.mutable_data_ptr<float>(), sentences * words, width, {}, {}, {}, {}};
    const bool repos = !ks.empty() && norm_weights_.size() == 4 * ks.size();  // a causal self-attention after the other one
    for (size_t block = 0, layer = 0; block < norm_weights_.size(); layer++) {
      if (others_.empty()) {
        self_attention(rows, block, sentences, bias);
      } else {
        others_[layer]->mix(inputs_of(rows, block), sentences, words, Bias(bias, 1), rows.second);
        add_second(rows, block);
      }
      block++;
      if (repos) {
        self_attention(rows, block, sentences, linear_[block] ? bias : future);
        block++;
      }
      if (!ks.empty()) cross_attention(rows, block++, ks[layer], vs[layer], source_bias, bias, true);
      feed_forward(rows, block++);
    }
    return out;
  }

 private:
  std::vector<Map> maps_;
  std::vector<Tensor> norm_weights_, norm_biases_;
  std::vector<c10::intrusive_ptr<SelfAttention>> others_;
  std::vector<c10::intrusive_ptr<LinearAttention>> linear_;  // of blocks that have one
  double eps_;
  int64_t heads_;
  bool norm_first_;

  void normalize_rows(const float* from, float* to, const Rows& rows, int64_t norm) const {
    const int64_t width = rows.width;
    const float *weight = norm_weights_[norm].const_data_ptr<float>(), *bias = norm_biases_[norm].const_data_ptr<float>();
    at::parallel_for(0, rows.count, rows_for_a_thread(4 * width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) normalize(from + r * width, to + r * width, width, weight, bias, eps_);
    });
  }

  // The number of the first of a block's two maps. Other self-attentions, which are a layer's first block, have their own.
  int64_t map_of(int64_t block) const {
    const int64_t blocks = norm_weights_.size(), layers = others_.size();
    return 2 * (layers == 0 ? block : block - block / (blocks / layers) - 1);
  }

  // A block's inputs, or their norm.
  const float* inputs_of(Rows& rows, int64_t block) const {
    if (!norm_first_) return rows.x;
    rows.normalized.resize(rows.count * rows.width);
    normalize_rows(rows.x, rows.normalized.data(), rows, block);
    return rows.normalized.data();
  }

  void first_map(Rows& rows, int64_t block, bool relu) const {
    maps_[map_of(block)]->product_into(rows.first, inputs_of(rows, block), rows.count, relu);
  }

  // A block's second map, of what it has made, added to its inputs.
  void add(Rows& rows, int64_t block, const std::vector<float>& made) const {
    maps_[map_of(block) + 1]->product_into(rows.second, made.data(), rows.count, false);
    add_second(rows, block);
  }

  void add_second(Rows& rows, int64_t block) const {
    const float* from = rows.second.data();
    const int64_t size = rows.count * rows.width;
#pragma omp simd
    for (int64_t i = 0; i < size; i++) rows.x[i] += from[i];
    if (!norm_first_) normalize_rows(rows.x, rows.x, rows, block);
  }

  void feed_forward(Rows& rows, int64_t block) const {
    first_map(rows, block, true);
    add(rows, block, rows.first);
  }

  // Cross-attention; `own`: the bias of the words themselves.
  void cross_attention(Rows& rows, int64_t block, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias,
                   const std::optional<Tensor>& own, bool many) const {
    first_map(rows, block, false);
    const int64_t sentences = k.size(0), words = rows.count / sentences, width = rows.width / heads_;
    if (linear_[block])
      linear_[block]->cross_attention({rows.first.data(), words, words * rows.width, width, rows.width}, table_of(k), table_of(v),
                                  Bias(bias, 1), sentences, heads_, width, Bias(own, 1), rows.read);
    else
      attend(rows, sentences, 1, table_of(k), table_of(v), bias, many);
    add(rows, block, rows.read);
  }

  // Self-attention of all words of a sentence.
  void self_attention(Rows& rows, int64_t block, int64_t sentences, const std::optional<Tensor>& bias) const {
    first_map(rows, block, false);
    const int64_t words = rows.count / sentences, width = rows.width, step = 3 * width;
    const auto part = [&](int64_t i) { return Table{rows.first.data() + i * width, words, words * step, width / heads_, step}; };
    if (linear_[block])
      linear_[block]->self_attention(part(0), part(1), part(2), sentences, heads_, width / heads_, Bias(bias, 1), rows.read);
    else
      attend(rows, sentences, 3, part(1), part(2), bias, true);
    add(rows, block, rows.read);
  }

  // Keys and values of new words, of the first map's (R n, 3 C), into a buffer (R, H, 2, slots, d_h).
  void write(const Rows& rows, const Tensor& buffer, const Tensor& slots, int64_t end, int64_t words) const {
    const int64_t width = rows.width, head = width / heads_;
    const float* from = rows.first.data();
    float* to = buffer.mutable_data_ptr<float>();
    const int64_t* own = slots.dim() == 2 ? slots.const_data_ptr<int64_t>() : nullptr;
    TORCH_CHECK(buffer.stride(4) == 1 && slots.is_contiguous(), "a buffer of another layout");
    for (int64_t word = 0; word < rows.count; word++) {
      const int64_t row = word / words, slot = own == nullptr ? end - words + word % words : own[word];
      for (int64_t h = 0; h < heads_; h++)
        for (int64_t part = 0; part < 2; part++)
          std::memcpy(to + row * buffer.stride(0) + h * buffer.stride(1) + part * buffer.stride(2) + slot * buffer.stride(3),
                      from + word * 3 * width + (1 + part) * width + h * head, head * sizeof(float));
    }
  }

  // Attention of the first map's first C numbers of each `parts` C, the queries (b n, C), to keys and values (b, H, m, d_h).
  void attend(Rows& rows, int64_t sentences, int64_t parts, const Table& k, const Table& v,
              const std::optional<Tensor>& mask, bool many) const {
    const int64_t channels = rows.width, width = channels / heads_, step = parts * channels, count = rows.count / sentences;
    const Bias bias(mask, count);
    rows.read.resize(rows.count * channels);
    const float* from = rows.first.data();
    float* to = rows.read.data();
    const int64_t work = 4 * count * k.positions * width;
    at::parallel_for(0, sentences * heads_, rows_for_a_thread(work), [&](int64_t begin, int64_t end) {
      for (int64_t each = begin; each < end; each++) {
        const int64_t row = each / heads_, h = each % heads_, next = each + 1;
        if (!many && next < end)
          for (const Table* table : {&k, &v}) table->fetch(next / heads_, next % heads_, width);
        const Head head{from + row * count * step + h * width, k.at(row, h), v.at(row, h),
                        to + row * count * channels + h * width, count, k.positions, width, step, k.position, v.position,
                        channels};
        many || width % kLanes ? head.attend_large_query(bias, row) : head.attend_small_query(bias, row);
      }
    });
  }
};

}  // namespace
