// SPDX-License-Identifier: Apache-2.0
// Randomness as a seam. Prng is a small seeded generator (xoshiro256**, by Blackman and Vigna, public
// domain algorithm) for simulations, tests and back-off jitter: the same seed gives the same run on
// every machine. secure_random_u64() asks the kernel, for keys that others must not guess.
//
// Threads   A Prng belongs to one thread; secure_random_u64 is safe anywhere.
#pragma once

#include <bit>
#include <cstdint>

namespace terrace {

class Prng {
 public:
  explicit Prng(uint64_t seed) {
    for (uint64_t& word : state_) {  // splitmix64 spreads a small seed over the state
      seed += 0x9e3779b97f4a7c15ull;
      uint64_t z = seed;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
      word = z ^ (z >> 31);
    }
  }

  uint64_t next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound); bound must not be 0. The bias of the multiply is below 2^-32 for small bounds.
  uint64_t below(uint64_t bound) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>((static_cast<Wide>(next()) * bound) >> 64);
  }
  // Uniform in [low, high].
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  // True with probability numerator / denominator.
  bool chance(uint64_t numerator, uint64_t denominator) { return below(denominator) < numerator; }

 private:
  uint64_t state_[4]{};
};

uint64_t secure_random_u64();

}  // namespace terrace
