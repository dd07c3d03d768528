// SPDX-License-Identifier: Apache-2.0
// Tier hbm of a tensor pool on a real GPU. Exits with 77 where there is none.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "core/base/units.h"
#include "tests/unit/placement/pools.h"

using namespace terrace;
using namespace terrace::test;

namespace {

using Bytes = std::vector<std::byte>;
std::shared_ptr<DeviceMemory> gpu;

Bytes pattern(uint64_t bytes, uint64_t seed) {
  Bytes result(bytes);
  fill(result, seed);
  return result;
}

// As a framework's kernels see it: through the driver.
Bytes seen_by_gpu(const DeviceGuard& guard) {
  Bytes back(guard.buffer()->bytes());
  const auto stream = take(gpu->make_stream());
  REQUIRE(take(stream->download(back, guard.buffer(), 0)).wait().ok());
  return back;
}

void written_by_gpu(const DeviceGuard& guard, const Bytes& bytes) {
  const auto stream = take(gpu->make_stream());
  REQUIRE(take(stream->upload(guard.buffer(), 0, bytes)).wait().ok());
}

}  // namespace

TEST_CASE("GPU: a pool's tensors go up, come back changed, and make room for each other") {
  constexpr uint64_t size = 32 * mib;
  Pools pools(16 * size, 0, {.device = gpu, .hbm_bytes = 2 * size});
  std::vector<std::shared_ptr<Tensor>> tensors;
  for (uint64_t i = 0; i < 4; ++i) {
    tensors.push_back(pools.tensor("t" + std::to_string(i), size));
    fill(take(tensors[i]->write()).bytes(), i);
  }
  for (uint64_t i = 0; i < 4; ++i) CHECK(seen_by_gpu(take(tensors[i]->device_read())) == pattern(size, i));
  for (uint64_t i = 0; i < 4; ++i)
    written_by_gpu(take(tensors[i]->device_write({.overwrite = true})), pattern(size, 10 + i));
  for (uint64_t i = 0; i < 4; ++i) CHECK(whole(take(tensors[i]->read()).bytes(), 10 + i));
  const HbmStatistics hbm = pools.pool->statistics().hbm;
  CHECK(hbm.used_bytes <= 2 * size);
  CHECK(hbm.write_backs == 4);
  CHECK(hbm.refused == 0);
  auto guard = take(tensors[0]->device_read());
  CHECK(take(guard.dlpack_memory()).device.type == dlpack::DeviceType::cuda);
}

int main(int count, char** arguments) {
  auto device = DeviceMemory::open_cuda({});
  if (!device.ok()) {
    std::printf("skipped: %s\n", device.error().to_string().c_str());
    return 77;
  }
  gpu = std::move(*device);
  doctest::Context context(count, arguments);
  const int result = context.run();
  gpu.reset();
  return result;
}
