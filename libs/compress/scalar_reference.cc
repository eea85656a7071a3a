// SPDX-License-Identifier: Apache-2.0
#include "libs/compress/scalar_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "libs/base/fingerprint.h"

namespace talweg::compress {
namespace {

// How large a number counts: NaN most of all.
double SizeOf(float value) {
  return std::isnan(value)   ? std::numeric_limits<double>::infinity()
         : std::isinf(value) ? std::numeric_limits<double>::max()
                             : std::fabs(value);
}

uint64_t KeptOf(double k, size_t count) {
  const double kept = k < 1 ? std::max(1.0, std::floor(k * static_cast<double>(count))) : k;
  return static_cast<uint64_t>(std::min(kept, static_cast<double>(count)));
}

std::vector<float> TopKOf(const Spec& spec, std::span<const float> p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return SizeOf(p[a]) > SizeOf(p[b]); });
  order.resize(KeptOf(spec.k, p.size()));
  std::vector<float> c(p.size(), 0.0F);
  for (const size_t i : order) c[i] = p[i] == 0 ? 0 : p[i];
  return c;
}

uint64_t Draw(const Spec& spec, size_t place) {
  return Mix64(spec.key + place * 0x9e3779b97f4a7c15u);
}

std::vector<float> RandomKOf(const Spec& spec, std::span<const float> p, size_t first) {
  std::vector<float> c(p.size(), 0.0F);
  uint64_t must_stay = KeptOf(spec.k, p.size());
  for (size_t i = 0; i < p.size(); ++i) {
    const unsigned __int128 drawn = Draw(spec, first + i);
    if (static_cast<uint64_t>(drawn * (p.size() - i) >> 64) >= must_stay) continue;
    c[i] = p[i];
    --must_stay;
  }
  return c;
}

// Adds as eight adders do that take turns.
template <typename Term>
double SumOf(std::span<const float> p, Term term) {
  double lanes[8] = {};
  for (size_t i = 0; i < p.size(); ++i) lanes[i % 8] += std::isfinite(p[i]) ? term(p[i]) : 0;
  return std::accumulate(std::begin(lanes), std::end(lanes), 0.0);
}

std::vector<float> OneBitOf(const Spec& spec, std::span<const float> p) {
  float scale = 1;
  if (spec.scaling) {
    const auto finite = std::count_if(p.begin(), p.end(), [](float x) { return std::isfinite(x); });
    const double sum = SumOf(p, [](float x) { return std::fabs(static_cast<double>(x)); });
    scale = finite == 0 ? 0 : static_cast<float>(sum / static_cast<double>(finite));
  }
  std::vector<float> c;
  for (const float x : p) c.push_back(x < 0 ? -scale : scale);
  return c;
}

std::vector<float> DitheredOf(const Spec& spec, std::span<const float> p, size_t first) {
  float norm = 0;
  if (spec.l2) {
    const double root = std::sqrt(SumOf(p, [](float x) { return static_cast<double>(x) * x; }));
    norm =
        static_cast<float>(std::min(root, static_cast<double>(std::numeric_limits<float>::max())));
  } else {
    for (const float x : p) norm = std::isfinite(x) ? std::max(norm, std::fabs(x)) : norm;
  }
  std::vector<float> c(p.size(), 0.0F);
  if (norm == 0) return c;
  const auto top = static_cast<float>(spec.natural ? std::exp2(spec.k - 1) : spec.k);
  for (size_t i = 0; i < p.size(); ++i) {
    if (!std::isfinite(p[i])) continue;
    const float at = std::fabs(p[i]) / norm * top;
    float low = std::floor(at);
    float gap = 1;
    if (spec.natural && at >= 1) low = gap = std::exp2(std::floor(std::log2(at)));
    // Two elements share a draw.
    const uint64_t both = Draw(spec, first + i / 2 * 2);
    const auto half = static_cast<uint32_t>(i % 2 == 0 ? both : both >> 32);
    const float chance = static_cast<float>(half >> 8) * 0x1p-24F;
    const float level = chance * gap < at - low ? low + gap : low;
    const float size = std::min(level * (norm / top), norm);
    c[i] = size > 0 ? std::copysign(size, p[i]) : 0;
  }
  return c;
}

std::vector<float> Coded(const Spec& spec, std::span<const float> p, size_t first) {
  std::vector<float> c = spec.kind == Kind::kTopK      ? TopKOf(spec, p)
                         : spec.kind == Kind::kRandomK ? RandomKOf(spec, p, first)
                         : spec.kind == Kind::kOneBit  ? OneBitOf(spec, p)
                                                       : DitheredOf(spec, p, first);
  for (size_t i = 0; i < p.size(); ++i) c[i] = std::isfinite(p[i]) ? c[i] : p[i];
  return c;
}

}  // namespace

void CompressByRules(const Spec& spec, const Memory& factors, Tensor& tensor) {
  std::vector<float>& values = tensor.values;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!tensor.momentum.empty()) {
      const float moved = factors.mu * tensor.momentum[i] + values[i];
      values[i] += factors.mu * moved;
      tensor.momentum[i] = std::isfinite(moved) ? moved : 0;
    }
    if (!tensor.error.empty()) values[i] += factors.error_scale * tensor.error[i];
  }
  const size_t partition = spec.partition == 0 ? values.size() : spec.partition;
  for (size_t first = 0; first < values.size(); first += partition) {
    const size_t count = std::min(partition, values.size() - first);
    const std::span<float> p = std::span(values).subspan(first, count);
    const std::vector<float> c = Coded(spec, p, first);
    for (size_t i = 0; i < count; ++i) {
      const float rest = p[i] - c[i];
      if (!tensor.error.empty()) tensor.error[first + i] = std::isfinite(rest) ? rest : 0;
      p[i] = c[i];
    }
  }
}

}  // namespace talweg::compress
