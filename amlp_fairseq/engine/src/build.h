// Encoders and decoders as a model describes itself (models/description.py).

#pragma once

#include "kinds.h"
#include "parallel.h"

namespace amlp {
namespace {

Activation activation_of(const std::string& name) {
  if (name == "relu") return Activation::kRelu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_accurate") return Activation::kGeluAccurate;
  if (name == "tanh") return Activation::kTanh;
  if (name == "linear") return Activation::kLinear;
  throw std::invalid_argument("the activation " + name + " is unknown");
}

Embedding embedding_of(const py::dict& side, const Weights& weights, const std::string& prefix) {
  const std::string kind = get<std::string>(side, "positions");
  const int64_t width = get<int64_t>(side, "width"), directions = get<int64_t>(side, "directions");
  if (width < 2) throw std::invalid_argument("a width below 2");
  Positions::Kind positions = Positions::Kind::kNone;
  std::string learned;
  if (kind == "sinusoidal") positions = Positions::Kind::kSinusoidal;
  if (kind == "learned") positions = Positions::Kind::kLearned, learned = prefix + ".embed_positions.weight";
  if (kind == "interleaved") {
    positions = Positions::Kind::kInterleaved;
    if (directions > 2) learned = prefix + ".embed_directions.weight";
  }
  std::optional<Norm> norm;
  if (get<bool>(side, "embedding_norm")) norm = weights.norm(prefix + ".layernorm_embedding", width);
  std::unique_ptr<Linear> join;
  if (side.contains("join_positions")) join = weights.linear({prefix + ".join_positions"}, 2 * width, width);
  return {weights.table(prefix + ".embed_tokens.weight", get<int64_t>(side, "vocabulary"), width), get<float>(side, "scale"),
          Positions(positions, width, get<int64_t>(side, "position_offset"), directions,
                    learned.empty() ? std::vector<float>{} : weights.floats(learned)),
          std::move(join), norm, width};
}

Block block_of(const py::dict& side, const Weights& weights, const std::string& norm) {
  return {weights.norm(norm, get<int64_t>(side, "width")), get<bool>(side, "norm_first")};
}

FeedForward feed_forward_of(const py::dict& side, const py::dict& layer, const Weights& weights, const std::string& prefix) {
  const Activation activation = activation_of(get<std::string>(layer, "activation"));
  const int64_t width = get<int64_t>(side, "width"), inner = get<int64_t>(layer, "inner_width");
  return {block_of(side, weights, prefix + ".final_layer_norm"),
          weights.linear({prefix + ".fc1"}, width, inner),
          weights.linear({prefix + ".fc2"}, inner, width, 1, activation == Activation::kRelu),
          activation};
}

std::optional<Norm> final_norm_of(const py::dict& side, const Weights& weights, const std::string& prefix) {
  if (!get<bool>(side, "final_norm")) return {};
  return weights.norm(prefix + ".layer_norm", get<int64_t>(side, "width"));
}

Encoder encoder_of(const py::dict& side, const Weights& weights) {
  Encoder encoder{embedding_of(side, weights, "encoder"), {}, final_norm_of(side, weights, "encoder")};
  const int64_t width = encoder.embedding.width;
  for (const py::dict& layer : get<std::vector<py::dict>>(side, "layers")) {
    const std::string prefix = "encoder.layers." + std::to_string(encoder.layers.size());
    encoder.layers.push_back(
        {{block_of(side, weights, prefix + ".self_attn_layer_norm"),
          self_attention_of(get<py::dict>(layer, "self_attention"), weights, prefix + ".self_attn", width, 1)},
         feed_forward_of(side, layer, weights, prefix)});
  }
  return encoder;
}

// source_width: C of the encoder.
Decoder decoder_of(const py::dict& side, const Weights& weights, int64_t source_width) {
  const int64_t words = get<int64_t>(side, "words_per_step");
  if (words < 1) throw std::invalid_argument("steps without words");
  Decoder decoder{embedding_of(side, weights, "decoder"), {}, final_norm_of(side, weights, "decoder"), {}, words,
                  get<int64_t>(side, "starts")};
  const int64_t width = decoder.embedding.width;
  for (const py::dict& layer : get<std::vector<py::dict>>(side, "layers")) {
    const std::string prefix = "decoder.layers." + std::to_string(decoder.layers.size());
    decoder.layers.push_back(
        {{block_of(side, weights, prefix + ".self_attn_layer_norm"),
          self_attention_of(get<py::dict>(layer, "self_attention"), weights, prefix + ".self_attn", width, words)},
         {block_of(side, weights, prefix + ".encoder_attn_layer_norm"),
          cross_attention_of(get<py::dict>(layer, "cross_attention"), weights, prefix + ".encoder_attn", width, source_width)},
         feed_forward_of(side, layer, weights, prefix)});
    decoder.layers.back().self_attention.attention->begin();  // refuses what cannot write step by step
  }
  decoder.output = weights.linear({get<std::string>(side, "output")}, width, get<int64_t>(side, "vocabulary"));
  return decoder;
}

std::shared_ptr<const EncoderDecoder> encoder_decoder_of(const py::dict& description, const Weights& weights) {
  Encoder encoder = encoder_of(get<py::dict>(description, "encoder"), weights);
  Decoder decoder = decoder_of(get<py::dict>(description, "decoder"), weights, encoder.embedding.width);
  return std::make_shared<EncoderDecoder>(EncoderDecoder{std::move(encoder), std::move(decoder)});
}

// source_width: C of the encoder.
ParallelDecoder parallel_decoder_of(const py::dict& side, const Weights& weights, int64_t source_width) {
  const int64_t vocabulary = get<int64_t>(side, "vocabulary");
  ParallelDecoder decoder{embedding_of(side, weights, "decoder"), {}, final_norm_of(side, weights, "decoder"), {}, {}, {}, {}};
  const int64_t width = decoder.embedding.width;
  for (const py::dict& layer : get<std::vector<py::dict>>(side, "layers")) {
    const std::string prefix = "decoder.layers." + std::to_string(decoder.layers.size());
    const auto self_attention = [&](const char* kind, const std::string& name) -> SelfAttentionBlock {
      return {block_of(side, weights, prefix + name + "_layer_norm"),
              self_attention_of(get<py::dict>(layer, kind), weights, prefix + name, width, 1)};
    };
    std::optional<SelfAttentionBlock> causal;
    if (layer.contains("causal_attention")) causal = self_attention("causal_attention", ".causal_attn");
    decoder.layers.push_back(
        {self_attention("self_attention", ".self_attn"),
         std::move(causal),
         {block_of(side, weights, prefix + ".encoder_attn_layer_norm"),
          cross_attention_of(get<py::dict>(layer, "cross_attention"), weights, prefix + ".encoder_attn", width, source_width)},
         feed_forward_of(side, layer, weights, prefix)});
  }
  decoder.output = weights.parts(get<std::string>(side, "output"), width, vocabulary, kOutputPart);
  const int64_t lengths = get<int64_t>(side, "lengths");
  if (lengths < 1) throw std::invalid_argument("no lengths");
  decoder.lengths = weights.vector("decoder.embed_length.weight", lengths * source_width);
  if (get<bool>(side, "length_offsets")) decoder.length_offset = lengths / 2;
  decoder.corrects = get<bool>(side, "corrects");
  return decoder;
}

}  // namespace
}  // namespace amlp
