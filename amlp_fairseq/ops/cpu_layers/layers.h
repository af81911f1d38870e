// Layers of an encoder or decoder in one call: decoding/fused_layers.py.

#pragma once

#include <utility>
#include <vector>

#include "linear_attentions.h"
#include "self_attentions.h"
#include "softmax_attention.h"

namespace {

// Activations of a block: inputs (n, C), which are replaced by the outputs, and buffers for intermediate results.
struct Activations {
  float* x;              // inputs and outputs
  int64_t count, width;  // n and C
  std::vector<float> normalized, first, attended, second;  // norm, first map, attention, second map
};

class SoftmaxLayers : public torch::CustomClassHolder {
 public:
  // See decoding/fused_layers.py.
  //
  // @param maps: linear maps of all blocks, two per block.
  // @param norm_weights: weights of the blocks' norms.
  // @param norm_biases: biases of the blocks' norms.
  // @param eps: epsilon of the norms.
  // @param heads: number of attention heads.
  // @param norm_first: pre-norm layers.
  // @param self_attentions: the layers' self-attentions if they are not softmax attention, else empty.
  // @param linear: attentions of linear cost.
  // @param blocks: indices of the blocks with these attentions.
  SoftmaxLayers(std::vector<Map> maps, std::vector<Tensor> norm_weights, std::vector<Tensor> norm_biases, double eps,
                int64_t heads, bool norm_first, std::vector<c10::intrusive_ptr<SelfAttention>> self_attentions,
                const std::vector<c10::intrusive_ptr<LinearAttention>>& linear, const std::vector<int64_t>& blocks)
      : maps_(std::move(maps)), norm_weights_(std::move(norm_weights)), norm_biases_(std::move(norm_biases)),
        self_attentions_(std::move(self_attentions)), linear_(norm_weights_.size()), eps_(eps), heads_(heads),
        norm_first_(norm_first) {
    for (size_t i = 0; i < blocks.size(); i++) linear_[blocks[i]] = linear[i];
  }

  // Decoding step; arguments and result as in StepLayers.forward.
  Tensor step(const Tensor& inputs, const Tensor& slots, int64_t end, const std::optional<Tensor>& bias,
              std::vector<Tensor> states, const std::vector<Tensor>& ks, const std::vector<Tensor>& vs,
              const std::optional<Tensor>& source_bias) const {
    const int64_t sentences = inputs.size(0), words = inputs.size(1), width = inputs.size(2);
    Tensor out = inputs.clone(at::MemoryFormat::Contiguous);
    Activations rows{out.mutable_data_ptr<float>(), sentences * words, width, {}, {}, {}, {}};
    for (size_t layer = 0; layer < states.size(); layer++) {
      const int64_t block = 3 * layer;
      const Tensor& state = states[layer];
      if (self_attentions_.empty()) {
        first_map(rows, block, false);
        write(rows, state, slots, end, words);
        const Table k{state.const_data_ptr<float>(), end, state.stride(0), state.stride(1), state.stride(3)};
        const Table v{k.data + state.stride(2), end, k.sentence_stride, k.head_stride, k.position_stride};
        attend(rows, sentences, 3, k, v, bias, false);
        add(rows, block, rows.attended);
      } else {
        self_attentions_[layer]->step(inputs_of(rows, block), words, state, end - words, rows.second);
        add_second(rows, block);
      }
      cross_attention(rows, block + 1, ks[layer], vs[layer], source_bias, {}, false);
      feed_forward(rows, block + 2);
    }
    return out;
  }

  // Whole sequences; arguments and result as in FullLayers.forward.
  Tensor forward_full(const Tensor& inputs, const std::optional<Tensor>& bias, const std::optional<Tensor>& future,
                  const std::vector<Tensor>& ks, const std::vector<Tensor>& vs,
                  const std::optional<Tensor>& source_bias) const {
    const int64_t sentences = inputs.size(0), words = inputs.size(1), width = inputs.size(2);
    Tensor out = inputs.clone(at::MemoryFormat::Contiguous);
    Activations rows{out.mutable_data_ptr<float>(), sentences * words, width, {}, {}, {}, {}};
    const bool repos = !ks.empty() && norm_weights_.size() == 4 * ks.size();  // causal self-attention after the unmasked one
    for (size_t block = 0, layer = 0; block < norm_weights_.size(); layer++) {
      if (self_attentions_.empty()) {
        self_attention(rows, block, sentences, bias);
      } else {
        self_attentions_[layer]->forward_full(inputs_of(rows, block), sentences, words, Bias(bias, 1), rows.second);
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
  std::vector<c10::intrusive_ptr<SelfAttention>> self_attentions_;
  std::vector<c10::intrusive_ptr<LinearAttention>> linear_;  // by block; null for other blocks
  double eps_;
  int64_t heads_;
  bool norm_first_;

  void normalize_rows(const float* from, float* to, const Activations& rows, int64_t norm) const {
    const int64_t width = rows.width;
    const float *weight = norm_weights_[norm].const_data_ptr<float>(), *bias = norm_biases_[norm].const_data_ptr<float>();
    at::parallel_for(0, rows.count, rows_for_a_thread(4 * width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) normalize(from + r * width, to + r * width, width, weight, bias, eps_);
    });
  }

  // Returns the index of a block's first map. Blocks with self_attentions_, the first block of a layer, have none in maps_.
  int64_t map_of(int64_t block) const {
    const int64_t blocks = norm_weights_.size(), layers = self_attentions_.size();
    return 2 * (layers == 0 ? block : block - block / (blocks / layers) - 1);
  }

  // Returns a block's inputs, after the norm in pre-norm layers.
  const float* inputs_of(Activations& rows, int64_t block) const {
    if (!norm_first_) return rows.x;
    rows.normalized.resize(rows.count * rows.width);
    normalize_rows(rows.x, rows.normalized.data(), rows, block);
    return rows.normalized.data();
  }

  void first_map(Activations& rows, int64_t block, bool relu) const {
    maps_[map_of(block)]->product_into(rows.first, inputs_of(rows, block), rows.count, relu);
  }

  // Applies a block's second map to `inner` and adds the result to the block's inputs.
  void add(Activations& rows, int64_t block, const std::vector<float>& inner) const {
    maps_[map_of(block) + 1]->product_into(rows.second, inner.data(), rows.count, false);
    add_second(rows, block);
  }

  // Residual connection: adds the result of the second map to the block's inputs.
  void add_second(Activations& rows, int64_t block) const {
    const float* from = rows.second.data();
    const int64_t size = rows.count * rows.width;
#pragma omp simd
    for (int64_t i = 0; i < size; i++) rows.x[i] += from[i];
    if (!norm_first_) normalize_rows(rows.x, rows.x, rows, block);
  }

  void feed_forward(Activations& rows, int64_t block) const {
    first_map(rows, block, true);
    add(rows, block, rows.first);
  }

  // Cross-attention block.
  //
  // @param k: keys or memory of the source.
  // @param v: values or memory of the source.
  // @param bias: bias of the source's padding.
  // @param query_bias: bias of the queries' padding.
  // @param large: whole sequences of queries, not a decoding step.
  void cross_attention(Activations& rows, int64_t block, const Tensor& k, const Tensor& v, const std::optional<Tensor>& bias,
                   const std::optional<Tensor>& query_bias, bool large) const {
    first_map(rows, block, false);
    const int64_t sentences = k.size(0), words = rows.count / sentences, width = rows.width / heads_;
    if (linear_[block])
      linear_[block]->cross_attention({rows.first.data(), words, words * rows.width, width, rows.width}, table_of(k), table_of(v),
                                  Bias(bias, 1), sentences, heads_, width, Bias(query_bias, 1), rows.attended);
    else
      attend(rows, sentences, 1, table_of(k), table_of(v), bias, large);
    add(rows, block, rows.attended);
  }

  // Self-attention block of whole sequences.
  void self_attention(Activations& rows, int64_t block, int64_t sentences, const std::optional<Tensor>& bias) const {
    first_map(rows, block, false);
    const int64_t words = rows.count / sentences, width = rows.width, stride = 3 * width;
    const auto part = [&](int64_t i) {
      return Table{rows.first.data() + i * width, words, words * stride, width / heads_, stride};
    };
    if (linear_[block])
      linear_[block]->self_attention(part(0), part(1), part(2), sentences, heads_, width / heads_, Bias(bias, 1), rows.attended);
    else
      attend(rows, sentences, 3, part(1), part(2), bias, true);
    add(rows, block, rows.attended);
  }

  // Writes keys and values of new words, from the first map's outputs (R n, 3 C), into a buffer (R, H, 2, slots, d_h).
  void write(const Activations& rows, const Tensor& buffer, const Tensor& slots, int64_t end, int64_t words) const {
    const int64_t width = rows.width, head = width / heads_;
    const float* from = rows.first.data();
    float* to = buffer.mutable_data_ptr<float>();
    const int64_t* slots_by_word = slots.dim() == 2 ? slots.const_data_ptr<int64_t>() : nullptr;
    TORCH_CHECK(buffer.stride(4) == 1 && slots.is_contiguous(), "a buffer and slots must be contiguous in their last axis");
    for (int64_t word = 0; word < rows.count; word++) {
      const int64_t row = word / words, slot = slots_by_word == nullptr ? end - words + word % words : slots_by_word[word];
      for (int64_t h = 0; h < heads_; h++)
        for (int64_t part = 0; part < 2; part++)
          std::memcpy(to + row * buffer.stride(0) + h * buffer.stride(1) + part * buffer.stride(2) + slot * buffer.stride(3),
                      from + word * 3 * width + (1 + part) * width + h * head, head * sizeof(float));
    }
  }

  // Softmax attention of queries (b n, C) to keys and values (b, H, m, d_h).
  //
  // @param sentences: b.
  // @param parts: the first map's outputs are (b n, parts C), with the queries in the first C columns.
  // @param k: keys.
  // @param v: values.
  // @param mask: bias of the scores.
  // @param large: whole sequences of queries, not a decoding step.
  void attend(Activations& rows, int64_t sentences, int64_t parts, const Table& k, const Table& v,
              const std::optional<Tensor>& mask, bool large) const {
    const int64_t channels = rows.width, width = channels / heads_, stride = parts * channels, count = rows.count / sentences;
    const Bias bias(mask, count);
    rows.attended.resize(rows.count * channels);
    const float* from = rows.first.data();
    float* to = rows.attended.data();
    const int64_t work = 4 * count * k.positions * width;
    at::parallel_for(0, sentences * heads_, rows_for_a_thread(work), [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; task++) {
        const int64_t row = task / heads_, h = task % heads_, next = task + 1;
        if (!large && next < end)
          for (const Table* table : {&k, &v}) table->prefetch(next / heads_, next % heads_, width);
        const Head head{from + row * count * stride + h * width, k.at(row, h), v.at(row, h),
                        to + row * count * channels + h * width, count, k.positions, width, stride, k.position_stride,
                        v.position_stride,
                        channels};
        large || width % kLanes ? head.attend_large_query(bias, row) : head.attend_small_query(bias, row);
      }
    });
  }
};

}  // namespace
