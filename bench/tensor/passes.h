// SPDX-License-Identifier: Apache-2.0
// Steps over more tensors than DDR holds, timed against the bound max(compute, copies over bandwidth).
//
// "CXL" is a second memory file in the same DRAM. What makes it a device is the pool's copy budget, which
// stands for the link's bandwidth in both directions together, and that a use waits until its bytes are in DDR
// (GuardWait::always), as where only DDR is fast enough to compute from.
//
// compute    Each layer's work touches all its bytes and then takes until its calibrated time is over, asleep,
//            as a host waits for its device.
// copies     What Belady's rule must bring in, without look-ahead and with all of DDR, and as much out again:
//            clean bytes are copied out like others, since a granule that rises gives its CXL place up.
// bandwidth  Measured in the same run: tensors of the same pool moved out and in with nothing else going on; or
//            what a step achieved, where that is more.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/tensor/parts.h"
#include "libclient/placement/schedule.h"
#include "terrace/tensor_pool.h"
#include "tests/support/fake_session.h"

namespace terrace::bench {

struct PassSizes {
  uint32_t layers = 48;
  uint64_t layer_bytes = 16ull << 20;
  uint64_t ddr_bytes = 384ull << 20;
  uint64_t copy_bytes_per_s = 512ull << 20;
  int settle_steps = 4, steps = 3;
  // Calibrated compute of a step, over the time of its copies.
  std::vector<double> compute_over_copies = {0.5, 1, 1.5};
};
PassSizes pass_sizes(const Sizes& sizes);

// As a manager's leases are: with their pages.
void populate(int fd, uint64_t bytes);

// A pool of its own. nullptr where nothing moves here: `why` says it.
struct PassPool {
  explicit PassPool(const PassSizes& sizes);
  std::shared_ptr<Tensor> tensor(const std::string& name, uint64_t bytes, TensorHint hint);

  test::FakeSession session;
  std::unique_ptr<TensorPool> pool;
};

// Of the pool, both directions together, with nothing else to do. The tensors fit DDR.
double measure_copy_bytes_per_s(PassPool& pool, std::span<const std::shared_ptr<Tensor>> tensors);

// The granules that a guard on the tensor covers.
placement::Use use_of(PassPool& pool, const Tensor& tensor);

// Runs `step`, which opens the guards in the order of `cycle` and works for `seconds` a layer each of
// `layer_uses` times, and adds the figure `key` (the worst of all shares of compute).
void measure_passes(const std::string& key, const PassSizes& sizes, PassPool& pool,
                    const std::vector<placement::Use>& cycle, uint32_t layer_uses, double copy_bytes_per_s,
                    const std::function<void(double seconds)>& step, nlohmann::json& out);

// Sleeps until `seconds` after `begin_ns`.
void work_until(uint64_t begin_ns, double seconds);

// Null, and why.
void missing(const std::string& key, const std::string& why, nlohmann::json& out);

}  // namespace terrace::bench
