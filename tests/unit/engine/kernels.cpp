// The engine's products, attention, norms and exponentials beside plain double arithmetic, for processors on which no Python
// runs: test_aarch64.py compiles this for each of their instruction sets. Prints what is wrong and ends with 1, or with 0.

#ifdef NEON
#define AMLP_NEON
#endif

#include <cstdio>
#include <numeric>
#include <random>

#include "attention.h"

using namespace amlp;

constexpr double kUlp = 0x1p-24;  // of rounding a number to float, as a part of it

std::mt19937 chance(1);
int wrong = 0;

void check(bool right, const char* what, int64_t first, int64_t second, int64_t third) {
  if (right) return;
  std::printf("%s is wrong for %ld, %ld, %ld\n", what, long(first), long(second), long(third));
  wrong = 1;
}

std::vector<float> normal(int64_t count) {
  std::normal_distribution<float> numbers;
  std::vector<float> result(count);
  for (float& number : result) number = numbers(chance);
  return result;
}

bool all_near(const float* found, const std::vector<double>& exact, double bound) {
  for (size_t i = 0; i < exact.size(); i++)
    if (!(std::abs(found[i] - exact[i]) <= bound)) return false;
  return true;
}

// A product by one thread; that of three and of each row alone must be the same.
std::vector<float> product(const Linear& linear, const std::vector<float>& x, int64_t rows, bool relu) {
  std::vector<float> y, other, row;
  ThreadPool one(1), three(3);
  linear.product(one, x.data(), rows, y, relu);
  linear.product(three, x.data(), rows, other, relu);
  check(y == other, "a product of three threads", rows, linear.in, linear.out);
  for (int64_t r = 0; r < rows; r++) {
    linear.product(one, &x[r * linear.in], 1, row, relu);
    check(std::equal(row.begin(), row.end(), &y[r * linear.out]), "a row alone", r, linear.in, linear.out);
  }
  return y;
}

void float_products(int64_t rows, int64_t in, int64_t out) {
  const std::vector<float> weight = normal(out * in), bias = normal(out), x = normal(rows * in);
  for (const bool relu : {false, true}) {
    std::vector<double> exact(rows * out);
    double size = 0;  // of the sums of magnitudes
    for (int64_t r = 0; r < rows; r++)
      for (int64_t o = 0; o < out; o++) {
        double sum = bias[o], terms = std::abs(bias[o]);
        for (int64_t i = 0; i < in; i++) {
          sum += double(x[r * in + i]) * weight[o * in + i];
          terms += std::abs(double(x[r * in + i]) * weight[o * in + i]);
        }
        exact[r * out + o] = relu ? std::max(sum, 0.0) : sum;
        size = std::max(size, terms);
      }
    const std::vector<float> found = product(FloatLinear(weight, bias), x, rows, relu);
    check(all_near(found.data(), exact, 2 * (in + 1) * kUlp * size), "a product in float32", rows, in, out);
  }
}

// The first row is of one number and meets weights of one number: their sums are the largest that there are.
void int8_products(int64_t rows, int64_t in, int64_t out, bool nonnegative) {
  std::vector<int8_t> weight(out * in);
  for (int8_t& unit : weight) unit = std::uniform_int_distribution<int>(-127, 127)(chance);
  std::fill_n(weight.begin(), in, 127);
  if (out > 1) std::fill_n(weight.begin() + in, in, -127);
  std::vector<float> scales = normal(out), bias = normal(out), x = normal(rows * in);
  for (float& scale : scales) scale = std::abs(scale);
  std::fill_n(x.begin(), in, nonnegative ? 3.0f : -3.0f);
  if (nonnegative)
    for (float& number : x) number = std::abs(number);
  const int64_t zero = nonnegative ? 0 : kMaxUnit / 2 + 1;
  const float steps = kMaxUnit - zero;
  std::vector<double> exact(rows * out);
  double size = 0;
  for (int64_t r = 0; r < rows; r++) {
    float largest = 0;
    for (int64_t i = 0; i < in; i++) largest = std::max(largest, std::abs(x[r * in + i]));
    const float factor = 1 / largest;
    for (int64_t o = 0; o < out; o++) {
      int64_t sum = 0;
      for (int64_t i = 0; i < in; i++) sum += std::llrint(x[r * in + i] * factor * steps) * weight[o * in + i];
      exact[r * out + o] = sum * (double(scales[o]) / steps) * largest + bias[o];
      size = std::max(size, std::abs(exact[r * out + o]) + 2 * std::abs(bias[o]));
    }
  }
  const std::vector<float> found = product(Int8Linear(weight, scales, bias, nonnegative), x, rows, false);
  check(all_near(found.data(), exact, 8 * kUlp * size), "a product in int8", rows, in, out);
}

// Attention of `rows` queries to keys and values (keys, width), in double.
std::vector<double> exact_attention(const std::vector<float>& q, int64_t rows, const std::vector<double>& k,
                                    const std::vector<double>& v, int64_t width, bool causal) {
  const int64_t keys = k.size() / width;
  std::vector<double> result(rows * width, 0);
  for (int64_t r = 0; r < rows; r++) {
    const int64_t seen = causal ? r + 1 : keys;
    std::vector<double> weights(seen, 0);
    for (int64_t j = 0; j < seen; j++)
      for (int64_t c = 0; c < width; c++) weights[j] += q[r * width + c] * k[j * width + c];
    const double largest = *std::max_element(weights.begin(), weights.end());
    double total = 0;
    for (double& weight : weights) total += weight = std::exp(weight - largest);
    for (int64_t j = 0; j < seen; j++)
      for (int64_t c = 0; c < width; c++) result[r * width + c] += weights[j] / total * v[j * width + c];
  }
  return result;
}

template <typename Number>
void attention(int64_t keys, int64_t width, const char* name) {
  const std::vector<float> q = normal(keys * width), k = normal(keys * width), v = normal(keys * width);
  std::vector<double> kept_k, kept_v;
  for (const float number : k) kept_k.push_back(Number(number));
  for (const float number : v) kept_v.push_back(Number(number));
  // sums of `width` products of normal numbers, which weights follow exponentially, and of `keys` values, all below 6
  const double bound = (2 * width * 6 * std::sqrt(width) + keys + 8) * kUlp * 6;

  Cache<Number> cache(width, 1);
  for (int64_t key = 0; key < keys; key++) {
    std::vector<float> entry(k.begin() + key * width, k.begin() + (key + 1) * width);
    entry.insert(entry.end(), v.begin() + key * width, v.begin() + (key + 1) * width);
    cache.append(entry.data(), 2 * width, 1);
  }
  Path path(keys);
  std::iota(path.begin(), path.end(), 0);
  std::vector<float> found(keys * width);
  Floats scores;
  cache.attend(q.data(), width, 1, 1, path, found.data(), width, scores);
  check(all_near(found.data(), exact_attention({q.begin(), q.begin() + width}, 1, kept_k, kept_v, width, false), bound), name, keys,
        width, 0);

  Numbers<Number> memory(PackedHead<Number>::size(keys, width));
  PackedHead<Number> packed(memory.data(), keys, width);
  packed.pack(k.data(), v.data(), width);
  for (const bool causal : {false, true}) {
    packed.attend(q.data(), width, keys, found.data(), width, scores, causal);
    check(all_near(found.data(), exact_attention(q, keys, kept_k, kept_v, width, causal), bound), name, keys, width, 1 + causal);
  }
}

void norms(int64_t width) {
  const std::vector<float> x = normal(width), weight = normal(width), bias = normal(width);
  std::vector<float> found(width);
  normalize(x.data(), found.data(), width, weight.data(), bias.data(), 1e-5f);
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / width;
  double squares = 0;
  for (const float number : x) squares += (number - mean) * (number - mean);
  std::vector<double> exact;
  for (int64_t i = 0; i < width; i++) exact.push_back((x[i] - mean) / std::sqrt(squares / width + 1e-5) * weight[i] + bias[i]);
  check(all_near(found.data(), exact, 2 * (width + 8) * kUlp * 30), "a norm", width, 0, 0);
}

void halves() {
  for (int i = 0; i < 2000; i++) {
    const float number = std::ldexp(normal(1)[0], i % 14);
    const double bound = std::max(std::abs(number) * 0x1p-11, 0x1p-25);  // 11 bits, steps of at least 2^-24
    check(std::abs(double(float(Half(number))) - number) <= bound, "a float16", i, 0, 0);
  }
  check(sizeof(Half) == 4 || (float(Half(1e6f)) == 65504 && float(Half(-1e6f)) == -65504), "the largest float16", 0, 0, 0);
}

void exponentials() {
  for (float x = 0; x > -87; x -= 0.001f) {
    const double exact = std::exp(double(x));
    check(std::abs(exponential(x) - exact) <= 2 * 2 * kUlp * exact, "an exponential", x * 1000, 0, 0);
  }
  check(exponential(-INFINITY) == 0 && std::isnan(exponential(NAN)), "the exponential of no number", 0, 0, 0);
}

int main() {
  const int64_t sizes[][3] = {{1, 5, 3}, {7, 64, 70}, {50, 33, 129}};
  for (const auto& [rows, in, out] : sizes) {
    float_products(rows, in, out);
    for (const bool nonnegative : {false, true}) int8_products(rows, in, out, nonnegative);
  }
  for (const auto& [keys, width] : {std::pair<int64_t, int64_t>{1, 8}, {9, 20}, {40, 64}}) {
    attention<float>(keys, width, "attention to float32");
    attention<Half>(keys, width, "attention to float16");
  }
  for (const int64_t width : {2, 20, 512}) norms(width);
  halves();
  exponentials();
  std::printf("%s, %ld lanes, %zu bytes of a key\n", wrong ? "wrong" : "right", long(kLanes), sizeof(Half));
  return wrong;
}
