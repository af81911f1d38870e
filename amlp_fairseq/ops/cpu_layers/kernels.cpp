// Linear maps, layers and search steps for CPUs, in one call each. A row's result does not depend, bit for bit, on other rows.
// Notation: docs/glossary.md.

#include "decoder.h"

TORCH_LIBRARY_FRAGMENT(amlp_fairseq, library) {
  library.def("has_int8() -> bool", &has_int8);
  library.def("embed(Tensor words, Tensor slots, Tensor table, float scale, Tensor encodings, int starts) -> Tensor",
              &embed);
  library.def("log_softmax_(Tensor(a!) logits) -> Tensor(a!)", &log_softmax_);
  library.class_<LinearMap>("LinearMap")
      .def(torch::init<const Tensor&, const Tensor&, const std::optional<Tensor>&, double, int64_t>())
      .def("product", &LinearMap::product)
      .def("split_heads", &LinearMap::split_heads);
  library.class_<SelfAttention>("SelfAttention")
      .def_static("average", &average_attention)
      .def_static("convolution", &convolution);
  library.class_<LinearAttention>("LinearAttention")
      .def_static("bounded_memory", &bounded_memory)
      .def_static("amlp_cov", &amlp_cov)
      .def_static("amlp_pquery", &amlp_pquery)
      .def("source_memory", &LinearAttention::source_memory);
  library.class_<SoftmaxLayers>("SoftmaxLayers")
      .def(torch::init<std::vector<Map>, std::vector<Tensor>, std::vector<Tensor>, double, int64_t, bool,
                       std::vector<c10::intrusive_ptr<SelfAttention>>,
                       const std::vector<c10::intrusive_ptr<LinearAttention>>&, const std::vector<int64_t>&>())
      .def("step", &SoftmaxLayers::step)
      .def("forward_full", &SoftmaxLayers::forward_full);
  library.class_<Decoder>("Decoder")
      .def(torch::init<c10::intrusive_ptr<SoftmaxLayers>, Tensor, double, int64_t, std::optional<Tensor>,
                       std::optional<Tensor>, double, Map>())
      .def("search", &Decoder::search);
}
