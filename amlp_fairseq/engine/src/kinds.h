// Attentions by their kinds, as the classes of amlp_fairseq/attention/ describe themselves.

#pragma once

#include "amlp.h"
#include "average.h"
#include "bounded_memory.h"
#include "convolution.h"
#include "local.h"
#include "softmax.h"
#include "ssru.h"
#include "weights.h"

namespace amlp {
namespace {

// A size of an attention, such as its heads: at least `least`.
int64_t count_of(const py::dict& attention, const char* name, int64_t least = 1) {
  const int64_t count = get<int64_t>(attention, name);
  if (count < least || count > 1 << 20) throw std::invalid_argument("an attention with " + std::to_string(count) + " " + name);
  return count;
}

int64_t heads_of(const py::dict& attention, int64_t width) {
  const int64_t heads = count_of(attention, "heads");
  if (width < 2 || width % heads) throw std::invalid_argument("heads that do not divide the width");
  return heads;
}

float query_scale(int64_t width, int64_t heads) { return 1 / std::sqrt(static_cast<float>(width / heads)); }

Controls controls_of(const py::dict& attention, const Weights& weights, const std::string& prefix, int64_t head) {
  const int64_t size = count_of(attention, "slots") * head;
  return {weights.vector(prefix + ".k_control.weight", size), weights.vector(prefix + ".v_control.weight", size)};
}

// width: C.
std::unique_ptr<HeadAttention> amlp_of(const py::dict& attention, const Weights& weights, const std::string& prefix, int64_t width) {
  const int64_t heads = heads_of(attention, width), head = width / heads, inner = count_of(attention, "inner_width");
  AmlpHead::Weights shared{weights.vector(prefix + ".c_q", inner * width), weights.vector(prefix + ".c_k", inner * width),
                           get<float>(attention, "scale"), {}};
  if (get<bool>(attention, "output_norm")) shared.norm = weights.norm(prefix + ".norm", head);
  if (get<std::string>(attention, "kind") == "amlp_pquery")
    return std::make_unique<AmlpPQueryHead>(
        head, inner, std::move(shared), weights.linear({prefix + ".fuse"}, 2 * head, head),
        AmlpPQueryHead::Options{get<float>(attention, "pool_scale"), get<double>(attention, "beta"),
                                get<bool>(attention, "bias_correction")});
  return std::make_unique<AmlpCovHead>(
      head, inner, std::move(shared),
      get<bool>(attention, "temperatures") ? weights.vector(prefix + ".temperature", 3 * heads) : std::vector<float>(3 * heads, 1),
      get<bool>(attention, "normalize"), get<bool>(attention, "published_contraction"));
}

std::unique_ptr<SelfAttention> convolution_of(const py::dict& attention, const Weights& weights, const std::string& prefix,
                                              int64_t width, int64_t words) {
  const Convolution::Sizes sizes{count_of(attention, "channels"), count_of(attention, "heads"),
                                 count_of(attention, "kernel_size"), words, get<bool>(attention, "glu")};
  if (sizes.channels % sizes.heads) throw std::invalid_argument("heads that do not divide the channels");
  const bool dynamic = get<bool>(attention, "dynamic");
  const int64_t size = sizes.heads * sizes.kernel;
  return std::make_unique<Convolution>(
      sizes, weights.linear({prefix + ".linear1"}, width, sizes.channels * (sizes.glu ? 2 : 1)),
      weights.linear({prefix + ".linear2"}, sizes.channels, width),
      dynamic ? weights.linear({prefix + ".conv.weight_linear"}, sizes.channels, size) : nullptr,
      dynamic ? std::vector<float>{} : weights.vector(prefix + ".conv.weight", size),
      Normalization(get<std::string>(attention, "normalization")));
}

std::unique_ptr<SelfAttention> average_of(const py::dict& attention, const Weights& weights, const std::string& prefix,
                                          int64_t width, int64_t words) {
  std::unique_ptr<Linear> inner, outer, gates;
  if (const int64_t size = count_of(attention, "inner_width", 0)) {
    inner = weights.linear({prefix + ".ffn.0"}, width, size);
    outer = weights.linear({prefix + ".ffn.3"}, size, width);
  }
  if (get<bool>(attention, "gates")) gates = weights.linear({prefix + ".gates"}, 2 * width, 2 * width);
  return std::make_unique<AverageAttention>(width, words, std::move(inner), std::move(outer), std::move(gates));
}

std::unique_ptr<SelfAttention> ssru_of(const py::dict& attention, const Weights& weights, const std::string& prefix, int64_t width,
                                       int64_t words) {
  const int64_t directions = count_of(attention, "directions");
  if (words % directions)
    throw std::invalid_argument("an attention with " + std::to_string(directions) + " directions, which do not divide a step");
  return std::make_unique<Ssru>(width, words, directions, weights.linear({prefix + ".forget", prefix + ".candidate"}, width, 2 * width),
                                directions == 1 ? std::vector<float>{} : weights.vector(prefix + ".others", width));
}

bool is_amlp(const std::string& kind) { return kind == "amlp_cov" || kind == "amlp_pquery"; }

// Heads of an attention with queries, keys and values.
int64_t checked_heads(const std::string& kind, const py::dict& attention, int64_t width) {
  if (kind != "softmax" && kind != "abc" && kind != "local" && !is_amlp(kind))
    throw std::invalid_argument("the attention " + kind + " is unknown");
  return heads_of(attention, width);
}

// width: C.
// words: z of a decoder.
std::unique_ptr<SelfAttention> self_attention_of(const py::dict& attention, const Weights& weights, const std::string& prefix,
                                                 int64_t width, int64_t words) {
  const std::string kind = get<std::string>(attention, "kind");
  if (kind == "average") return average_of(attention, weights, prefix, width, words);
  if (kind == "convolution") return convolution_of(attention, weights, prefix, width, words);
  if (kind == "ssru") return ssru_of(attention, weights, prefix, width, words);
  const int64_t heads = checked_heads(kind, attention, width);
  auto qkv = weights.linear({prefix + ".q_proj", prefix + ".k_proj", prefix + ".v_proj"}, width, 3 * width,
                            is_amlp(kind) ? 1 : query_scale(width, heads));
  auto out = weights.linear({prefix + ".out_proj"}, width, width);
  if (kind == "softmax") return std::make_unique<SoftmaxSelfAttention>(std::move(qkv), std::move(out), heads, words);
  if (kind == "abc")
    return std::make_unique<BoundedMemorySelfAttention>(std::move(qkv), std::move(out), heads, words,
                                                        controls_of(attention, weights, prefix, width / heads));
  if (kind == "local")
    return std::make_unique<LocalSelfAttention>(std::move(qkv), std::move(out), heads, words, count_of(attention, "left", 0),
                                                count_of(attention, "right", 0));
  return std::make_unique<MultiHeadSelfAttention>(std::move(qkv), std::move(out), heads,
                                                  amlp_of(attention, weights, prefix, width));
}

std::unique_ptr<CrossAttention> cross_attention_of(const py::dict& attention, const Weights& weights, const std::string& prefix,
                                                   int64_t width, int64_t source_width) {
  const std::string kind = get<std::string>(attention, "kind");
  const int64_t heads = checked_heads(kind, attention, width), head = width / heads;
  auto q = weights.linear({prefix + ".q_proj"}, width, width, is_amlp(kind) ? 1 : query_scale(width, heads));
  auto kv = weights.linear({prefix + ".k_proj", prefix + ".v_proj"}, source_width, 2 * width);
  auto out = weights.linear({prefix + ".out_proj"}, width, width);
  if (kind == "softmax") return std::make_unique<SoftmaxCrossAttention>(std::move(q), std::move(kv), std::move(out), heads);
  std::unique_ptr<HeadAttention> inner;
  if (kind == "abc") inner = std::make_unique<BoundedMemoryHead>(head, controls_of(attention, weights, prefix, head));
  if (kind == "local")
    inner = std::make_unique<LocalHead>(head, count_of(attention, "left", 0), count_of(attention, "right", 0));
  if (is_amlp(kind)) inner = amlp_of(attention, weights, prefix, width);
  return std::make_unique<MultiHeadCrossAttention>(std::move(q), std::move(kv), std::move(out), heads, std::move(inner));
}

}  // namespace
}  // namespace amlp
