// SPDX-License-Identifier: Apache-2.0
// What the tests of tensor pools share: a pool over leases that are memory files.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/units.h"
#include "terrace/tensor_pool.h"
#include "tests/support/eventually.h"
#include "tests/support/fake_session.h"
#include "tests/support/skip.h"

namespace terrace::test {

template <typename Value>
Value take(Result<Value> result) {
  REQUIRE_MESSAGE(result.ok(), (result.ok() ? std::string() : result.error().to_string()));
  return std::move(*result);
}

inline constexpr uint64_t patience_ns = 60 * ns_per_s;

struct Pools {
  Pools(uint64_t ddr_bytes, uint64_t cxl_bytes, TensorPoolOptions options = {}) : session(4 * gib) {
    options.ddr_bytes = ddr_bytes;
    options.session = &session;
    if (cxl_bytes > 0) lease = grant(cxl_bytes);
    std::vector<std::shared_ptr<Lease>> leases;
    if (lease != nullptr) leases.push_back(lease);
    pool = take(TensorPool::make(options, leases));
  }
  std::shared_ptr<Lease> grant(uint64_t bytes) {
    LeaseRequest request;
    request.bytes = bytes;
    return *session.grant(request);
  }
  std::shared_ptr<Tensor> tensor(std::string name, uint64_t bytes, TensorHint hint = TensorHint::weights) {
    return take(pool->create({.name = std::move(name), .dtype = DType::u8, .shape = {bytes}, .hint = hint}));
  }
  bool moves() const {
    const std::string why = pool->statistics().reason;
    if (!why.empty()) TERRACE_SKIP(migration, why);
    return why.empty();
  }

  FakeSession session;
  std::shared_ptr<Lease> lease;
  std::unique_ptr<TensorPool> pool;
};

// Not instrumented: a move maps other pages at the same address, which ThreadSanitizer takes for a store to
// them. The pool's own data is checked; that the bytes are right, the patterns say.
__attribute__((no_sanitize("thread"))) inline void fill(std::span<std::byte> bytes, uint64_t seed) {
  auto* words = reinterpret_cast<uint64_t*>(bytes.data());
  for (uint64_t i = 0; i < bytes.size() / 8; ++i) words[i] = (i + seed) * 0x9e3779b97f4a7c15u;
}

__attribute__((no_sanitize("thread"))) inline bool whole(std::span<const std::byte> bytes, uint64_t seed) {
  const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
  for (uint64_t i = 0; i < bytes.size() / 8; ++i)
    if (words[i] != (i + seed) * 0x9e3779b97f4a7c15u) return false;
  return true;
}

// Tensors that are used in turn.
struct Layers {
  Layers(Pools& pools, uint32_t count, uint64_t bytes) {
    for (uint32_t i = 0; i < count; ++i) {
      layers.push_back(pools.tensor("layer." + std::to_string(i), bytes));
      fill(layers.back()->bytes(), i);
    }
  }
  // Forward and backward; says of each layer whether all of it was in DDR under its guard.
  uint32_t pass(TensorPool& pool, const GuardOptions& options = {}) {
    uint32_t in_ddr = 0;
    const auto use = [&](uint32_t i) {
      ReadGuard guard = take(layers[i]->read(options));
      in_ddr += layers[i]->residency().cxl_bytes == 0 ? 1 : 0;
      CHECK(whole(guard.bytes(), i));
    };
    for (uint32_t i = 0; i < layers.size(); ++i) use(i);
    for (uint32_t i = static_cast<uint32_t>(layers.size()); i-- > 0;) use(i);
    pool.step();
    return in_ddr;
  }
  std::vector<std::shared_ptr<Tensor>> layers;
};

inline bool follows(TensorPool& pool) {
  return eventually([&] { return pool.statistics().step_state == StepState::following; });
}

}  // namespace terrace::test
