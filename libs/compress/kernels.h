// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_COMPRESS_KERNELS_H_
#define TALWEG_LIBS_COMPRESS_KERNELS_H_

#include <cstdint>

#include "libs/compress/kernel_table.h"

// The compressors, once for each instruction set. The compiler makes vector code of their loops:
// these have no branches, only masks.
namespace talweg::compress::internal {

// `Tag` is a type of internal linkage (kernel_table.h says why), and so all is that stands here.
template <typename Tag>
class Kernels {
 public:
  static constexpr KernelTable Table() { return {TopK, RandomK, OneBit, Dither}; }

 private:
  static constexpr uint32_t kSign = 0x80000000u;
  static constexpr uint32_t kInfinity = 0x7f800000u;
  static constexpr uint32_t kAll = 0xffffffffu;
  static constexpr float kFloatMost = 0x1.fffffep127F;
  // Steps of a pass follow each other within a block, which stays in the L1 cache.
  static constexpr uint64_t kBlock = 1024;
  // Sums have so many parts: the compiler may not reorder additions.
  static constexpr uint64_t kLanes = 8;

  static uint32_t BitsOf(float value) { return __builtin_bit_cast(uint32_t, value); }
  static float FloatOf(uint32_t bits) { return __builtin_bit_cast(float, bits); }
  static uint32_t MagnitudeOf(float value) { return BitsOf(value) & ~kSign; }
  // All ones for a number that is finite, else zeros.
  static uint32_t FiniteMask(float value) { return MagnitudeOf(value) < kInfinity ? kAll : 0; }
  static float FiniteOrZero(float value) { return FloatOf(BitsOf(value) & FiniteMask(value)); }
  static uint64_t Least(uint64_t a, uint64_t b) { return a < b ? a : b; }

  // Mix64 (libs/base/fingerprint.h) of the key and a place.
  static uint64_t Draw(uint64_t key, uint64_t place) {
    uint64_t x = key + (place + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  // Calls `act(begin, end)` for each block.
  template <typename Act>
  static void ForBlocks(uint64_t count, Act act) {
    for (uint64_t begin = 0; begin < count; begin += kBlock) {
      act(begin, Least(begin + kBlock, count));
    }
  }

  // Makes the values p.
  static void Correct(const Part& part, const Memory& memory, uint64_t begin, uint64_t end) {
    float* const __restrict values = part.values;
    if (part.momentum != nullptr) {
      float* const __restrict momentum = part.momentum;
      const float mu = memory.mu;
      for (uint64_t i = begin; i < end; ++i) {
        const float moved = mu * momentum[i] + values[i];
        values[i] = values[i] + mu * moved;
        momentum[i] = FiniteOrZero(moved);
      }
    }
    if (part.error != nullptr) {
      const float* const __restrict error = part.error;
      const float scale = memory.error_scale;
      for (uint64_t i = begin; i < end; ++i) values[i] = values[i] + scale * error[i];
    }
  }

  static uint64_t KeptOf(double k, uint64_t count) {
    if (k >= 1) return k < static_cast<double>(count) ? static_cast<uint64_t>(k) : count;
    const auto kept = static_cast<uint64_t>(k * static_cast<double>(count));
    return kept == 0 ? 1 : kept;
  }

  // Counts magnitudes by some of their bits. Four counters take turns, because values that follow
  // each other are often alike, and an addition to the same counter waits for the last one.
  class Histogram {
   public:
    explicit Histogram(uint32_t bits) : buckets_(1u << bits) {
      __builtin_memset(counts_, 0, sizeof counts_);
    }
    void Add(uint64_t turn, uint32_t bucket) { ++counts_[turn % kTurns][bucket]; }
    // Walks from the largest bucket down to the one that holds the *rank-th number, counted from 1.
    // *rank then counts within that bucket. Returns the bucket; *held: how many numbers it has.
    uint32_t Find(uint64_t* rank, uint64_t* held) const {
      for (uint32_t bucket = buckets_ - 1;; --bucket) {
        *held = 0;
        for (uint64_t turn = 0; turn < kTurns; ++turn) *held += counts_[turn][bucket];
        if (*held >= *rank || bucket == 0) return bucket;
        *rank -= *held;
      }
    }

   private:
    static constexpr uint64_t kTurns = 4;
    uint32_t buckets_;
    uint32_t counts_[kTurns][1 << 11];
  };

  // The magnitude of the k-th number, and how many numbers of that magnitude are not among the k.
  struct Threshold {
    uint32_t magnitude;
    uint64_t surplus;
  };

  // Counts the magnitudes that begin with `top`, by the 10 bits that follow at `shift`.
  static void CountWithin(const Part& part, uint32_t top, uint32_t shift, Histogram* histogram) {
    constexpr uint64_t kChunk = 16;  // Few numbers begin so: most chunks have none.
    const float* const __restrict values = part.values;
    uint64_t turn = 0;
    const auto add = [&](uint64_t i) {
      const uint32_t magnitude = MagnitudeOf(values[i]);
      if (magnitude >> (shift + 10) == top) histogram->Add(turn++, magnitude >> shift & 0x3ff);
    };
    uint64_t i = 0;
    for (; i + kChunk <= part.count; i += kChunk) {
      uint32_t any = 0;
      for (uint64_t j = i; j < i + kChunk; ++j) {
        any |= MagnitudeOf(values[j]) >> (shift + 10) == top ? kAll : 0;
      }
      if (any == 0) continue;
      for (uint64_t j = i; j < i + kChunk; ++j) add(j);
    }
    for (; i < part.count; ++i) add(i);
  }

  // Corrects, and finds the threshold, bit by bit from the top, in three passes.
  static Threshold FindThreshold(const Part& part, const Memory& memory, uint64_t kept) {
    uint64_t rank = kept;
    uint64_t held = 0;
    uint32_t top = 0;
    {
      Histogram histogram(11);
      ForBlocks(part.count, [&](uint64_t begin, uint64_t end) {
        Correct(part, memory, begin, end);
        for (uint64_t i = begin; i < end; ++i) {
          histogram.Add(i, MagnitudeOf(part.values[i]) >> 20);
        }
      });
      top = histogram.Find(&rank, &held);
    }
    for (const uint32_t shift : {10u, 0u}) {
      Histogram histogram(10);
      CountWithin(part, top, shift, &histogram);
      top = top << 10 | histogram.Find(&rank, &held);
    }
    return {top, held - rank};
  }

  // Keeps the numbers whose magnitude is `least` or more.
  static void KeepFrom(const Part& part, uint32_t least) {
    float* const __restrict values = part.values;
    float* const __restrict error = part.error;
    const auto mask = [&](uint64_t i) { return MagnitudeOf(values[i]) >= least ? kAll : 0; };
    if (error == nullptr) {
      for (uint64_t i = 0; i < part.count; ++i) values[i] = FloatOf(BitsOf(values[i]) & mask(i));
      return;
    }
    for (uint64_t i = 0; i < part.count; ++i) {
      const uint32_t keep = mask(i);
      error[i] = FloatOf(BitsOf(values[i]) & ~keep);
      values[i] = FloatOf(BitsOf(values[i]) & keep);
    }
  }

  static void TopK(const Spec& spec, const Part& part, const Memory& memory) {
    Threshold threshold = FindThreshold(part, memory, KeptOf(spec.k, part.count));
    if (threshold.magnitude >= kInfinity) threshold = {kInfinity, 0};  // All that is not finite.
    if (threshold.magnitude == 0) threshold = {1, 0};  // A zero that stays is a zero.
    KeepFrom(part, threshold.magnitude);
    for (uint64_t i = part.count; threshold.surplus > 0 && i-- > 0;) {
      if (MagnitudeOf(part.values[i]) != threshold.magnitude) continue;
      if (part.error != nullptr) part.error[i] = part.values[i];
      part.values[i] = 0;
      --threshold.surplus;
    }
  }

  // Goes through the elements once. Each stays with the probability (how many must still stay) /
  // (how many are left), so each set of k places is equally likely.
  static void RandomK(const Spec& spec, const Part& part, const Memory& memory) {
    uint64_t must_stay = KeptOf(spec.k, part.count);
    uint64_t drawn[kBlock];
    uint32_t keep[kBlock];
    ForBlocks(part.count, [&](uint64_t begin, uint64_t end) {
      Correct(part, memory, begin, end);
      const uint64_t count = end - begin;
      const uint64_t place = part.first + begin;
      for (uint64_t i = 0; i < count; ++i) drawn[i] = Draw(spec.key, place + i);
      for (uint64_t i = 0; i < count; ++i) {
        const auto scaled = static_cast<unsigned __int128>(drawn[i]) * (part.count - begin - i);
        const uint32_t stays = static_cast<uint64_t>(scaled >> 64) < must_stay ? 1 : 0;
        keep[i] = 0 - stays;
        must_stay -= stays;
      }
      float* const __restrict values = part.values + begin;
      for (uint64_t i = 0; i < count; ++i) keep[i] |= ~FiniteMask(values[i]);
      if (part.error != nullptr) {
        float* const __restrict error = part.error + begin;
        for (uint64_t i = 0; i < count; ++i) error[i] = FloatOf(BitsOf(values[i]) & ~keep[i]);
      }
      for (uint64_t i = 0; i < count; ++i) values[i] = FloatOf(BitsOf(values[i]) & keep[i]);
    });
  }

  // Replaces each finite value by coded(i, value), and remembers the difference.
  template <typename Coded>
  static void Replace(const Part& part, uint64_t begin, uint64_t end, Coded coded) {
    float* const __restrict values = part.values;
    float* const __restrict error = part.error;
    const auto outcome = [&](uint64_t i, float value) {
      const uint32_t finite = FiniteMask(value);
      return FloatOf((BitsOf(coded(i, FloatOf(BitsOf(value) & finite))) & finite) |
                     (BitsOf(value) & ~finite));
    };
    if (error == nullptr) {
      for (uint64_t i = begin; i < end; ++i) values[i] = outcome(i, values[i]);
      return;
    }
    for (uint64_t i = begin; i < end; ++i) {
      const float value = values[i];
      const float sent = outcome(i, value);
      values[i] = sent;
      error[i] = FiniteOrZero(value - sent);
    }
  }

  // Adds up term(value) of the finite values in f64. The others count as 0.
  template <typename Term>
  class LaneSum {
   public:
    explicit LaneSum(Term term) : term_(term) {}
    void Add(const float* values, uint64_t count) {
      uint64_t i = 0;
      for (; i + kLanes <= count; i += kLanes) {
        for (uint64_t lane = 0; lane < kLanes; ++lane) {
          lanes_[lane] += term_(FiniteOrZero(values[i + lane]));
        }
      }
      for (uint64_t lane = 0; i < count; ++i, ++lane) {
        lanes_[lane] += term_(FiniteOrZero(values[i]));
      }
    }
    double Total() const {
      double total = 0;
      for (uint64_t lane = 0; lane < kLanes; ++lane) total += lanes_[lane];
      return total;
    }

   private:
    Term term_;
    double lanes_[kLanes] = {};
  };

  static void OneBit(const Spec& spec, const Part& part, const Memory& memory) {
    LaneSum sum([](float value) { return static_cast<double>(FloatOf(MagnitudeOf(value))); });
    uint64_t finite = 0;
    ForBlocks(part.count, [&](uint64_t begin, uint64_t end) {
      Correct(part, memory, begin, end);
      if (!spec.scaling) return;
      sum.Add(part.values + begin, end - begin);
      uint32_t here = 0;
      for (uint64_t i = begin; i < end; ++i) here += FiniteMask(part.values[i]) & 1;
      finite += here;
    });
    float scale = 1;
    if (spec.scaling) {
      scale = finite == 0 ? 0 : static_cast<float>(sum.Total() / static_cast<double>(finite));
    }
    const uint32_t positive = BitsOf(scale);
    ForBlocks(part.count, [&](uint64_t begin, uint64_t end) {
      Replace(part, begin, end, [positive](uint64_t, float value) {
        return FloatOf(positive | (value < 0 ? kSign : 0));
      });
    });
  }

  // The norm of the finite values, which the largest of them does not pass. It is finite.
  static float NormOf(const Spec& spec, const Part& part, const Memory& memory) {
    LaneSum squares([](float value) { return static_cast<double>(value) * value; });
    int32_t largest = 0;  // Signed: more processors compare such vectors.
    ForBlocks(part.count, [&](uint64_t begin, uint64_t end) {
      Correct(part, memory, begin, end);
      if (spec.l2) {
        squares.Add(part.values + begin, end - begin);
        return;
      }
      for (uint64_t i = begin; i < end; ++i) {
        const auto magnitude = static_cast<int32_t>(MagnitudeOf(FiniteOrZero(part.values[i])));
        largest = magnitude > largest ? magnitude : largest;
      }
    });
    if (!spec.l2) return FloatOf(static_cast<uint32_t>(largest));
    const double root = __builtin_sqrt(squares.Total());
    return root < kFloatMost ? static_cast<float>(root) : kFloatMost;
  }

  template <bool kNatural>
  static void RoundToLevels(const Spec& spec, const Part& part, float norm) {
    // Where linear levels are 1 apart, and natural ones 1, 1, 2, 4, ..., the top level is so high.
    const float height =
        kNatural ? static_cast<float>(uint64_t{1} << (static_cast<uint32_t>(spec.k) - 1))
                 : static_cast<float>(spec.k);
    const float divisor = norm > 0 ? norm : 1;
    const float unit = norm / height;
    uint64_t drawn[kBlock / 2];
    float chances[kBlock];
    ForBlocks(part.count, [&](uint64_t begin, uint64_t end) {
      // Half a draw is enough for an element.
      const uint64_t place = part.first + begin;
      for (uint64_t i = 0; i < (end - begin + 1) / 2; ++i) drawn[i] = Draw(spec.key, place + 2 * i);
      for (uint64_t i = 0; i < (end - begin + 1) / 2; ++i) {
        chances[2 * i] = ChanceOf(static_cast<uint32_t>(drawn[i]));
        chances[2 * i + 1] = ChanceOf(static_cast<uint32_t>(drawn[i] >> 32));
      }
      Replace(part, begin, end, [&](uint64_t i, float value) {
        const float at = FloatOf(MagnitudeOf(value)) / divisor * height;
        float low = 0;
        float gap = 1;
        if constexpr (kNatural) {
          const uint32_t is_high = at >= 1 ? kAll : 0;
          low = FloatOf(BitsOf(at) & kInfinity & is_high);  // A float's exponent alone.
          gap = FloatOf((BitsOf(low) & is_high) | (BitsOf(1.0F) & ~is_high));
        } else {
          low = static_cast<float>(static_cast<int32_t>(at));
        }
        const float step = chances[i - begin] * gap < at - low ? gap : 0;
        const float sent = (low + step) * unit;
        const float limited = sent < norm ? sent : norm;
        const uint32_t is_positive = limited > 0 ? kAll : 0;
        return FloatOf(BitsOf(limited) | (BitsOf(value) & kSign & is_positive));
      });
    });
  }

  // From 0 on, below 1.
  static float ChanceOf(uint32_t drawn) {
    return static_cast<float>(static_cast<int32_t>(drawn >> 8)) * 0x1p-24F;
  }

  static void Dither(const Spec& spec, const Part& part, const Memory& memory) {
    const float norm = NormOf(spec, part, memory);
    if (spec.natural) {
      RoundToLevels<true>(spec, part, norm);
    } else {
      RoundToLevels<false>(spec, part, norm);
    }
  }
};

}  // namespace talweg::compress::internal

#endif  // TALWEG_LIBS_COMPRESS_KERNELS_H_
