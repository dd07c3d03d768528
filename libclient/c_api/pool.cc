// SPDX-License-Identifier: Apache-2.0
// Pools of tensors for C.
#include <cstdio>
#include <utility>
#include <vector>

#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"
#include "libclient/c_api/spec.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

Result<TensorPoolOptions> pool_options(const terrace_pool_options* options, const char* where) {
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
  TERRACE_ASSIGN_OR_RETURN(const auto wait,
                           enum_of<GuardWait>(given.guard_wait, 3, "wait (TERRACE_WAIT_...)", where));
  TensorPoolOptions wanted;
  wanted.session = given.session == nullptr ? nullptr : given.session->session.get();
  if (given.name != nullptr) wanted.name = given.name;
  wanted.ddr_bytes = given.ddr_bytes;
  if (given.copy_bytes_per_s_max != 0)
    wanted.copy_bytes_per_s_max =
        given.copy_bytes_per_s_max == TERRACE_NO_BOUND ? 0 : given.copy_bytes_per_s_max;
  if (given.copy_batch_bytes != 0) wanted.copy_batch_bytes = given.copy_batch_bytes;
  wanted.policy = text_of(given.policy);
  wanted.step_aware = given.ignore_steps == 0;
  wanted.guard_wait = wait;
  wanted.ddr_latency_ns = given.ddr_latency_ns;
  wanted.cxl_latency_ns = given.cxl_latency_ns;
  wanted.ddr_bytes_per_s = given.ddr_bytes_per_s;
  wanted.cxl_bytes_per_s = given.cxl_bytes_per_s;
  if (given.device != nullptr) wanted.device = given.device->device;
  wanted.hbm_bytes = given.hbm_bytes;
  return wanted;
}

struct terrace_pool_statistics in_c(const TensorPoolStatistics& of) {
  struct terrace_pool_statistics told {};
  told.tensors = of.tensors;
  told.tensor_bytes = of.tensor_bytes;
  told.capacity_bytes = of.capacity_bytes;
  told.free_bytes = of.free_bytes;
  told.ddr_bytes_max = of.ddr_bytes_max;
  told.ddr_bytes = of.ddr_bytes;
  told.cxl_bytes = of.cxl_bytes;
  told.pinned_bytes = of.pinned_bytes;
  told.steps = of.steps;
  told.orders_learned = of.orders_learned;
  told.orders_forgotten = of.orders_forgotten;
  told.deviations = of.deviations;
  told.planned_bytes_per_step = of.planned_bytes_per_step;
  told.copied_to_ddr_bytes = of.copied_to_ddr_bytes;
  told.copied_to_cxl_bytes = of.copied_to_cxl_bytes;
  told.copy_ns = of.copy_ns;
  told.guards = of.guards;
  told.guard_waits = of.guard_waits;
  told.guard_wait_ns = of.guard_wait_ns;
  told.guard_waits_given_up = of.guard_waits_given_up;
  told.uses_per_step = of.uses_per_step;
  told.step_state = static_cast<int>(of.step_state);
  std::snprintf(told.reason, sizeof told.reason, "%s", of.reason.c_str());
  return told;
}

}  // namespace

namespace terrace::c_api {

Result<TensorSpec> spec_of(const terrace_tensor_spec* spec, const char* where) {
  TERRACE_C_NEED(where, spec);
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(spec, where));
  const auto dtype = given.dtype < 0 || given.dtype > 255
                         ? std::nullopt
                         : dtype_from_number(static_cast<uint8_t>(given.dtype));
  if (!dtype) return invalid(where, std::to_string(given.dtype) + " is no dtype (TERRACE_DTYPE_...)");
  TensorSpec wanted;
  wanted.name = text_of(given.name);
  wanted.dtype = *dtype;
  TERRACE_ASSIGN_OR_RETURN(wanted.shape, shape_of(given.rank, given.dimensions, where));
  TERRACE_ASSIGN_OR_RETURN(wanted.hint, hint_of(given.hint, where));
  if (given.flags > TensorFlags::all)
    return invalid(where, std::to_string(given.flags) + " has flags that are none (TERRACE_FLAG_...)");
  wanted.flags = static_cast<uint8_t>(given.flags);
  return wanted;
}

}  // namespace terrace::c_api

extern "C" {

terrace_code terrace_pool_make(const terrace_pool_options* options, terrace_lease* const* leases,
                               size_t lease_count, terrace_pool** pool) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_pool_make";
    TERRACE_C_NEED(where, pool);
    TERRACE_ASSIGN_OR_RETURN(const TensorPoolOptions wanted, pool_options(options, where));
    if (lease_count > 0) TERRACE_C_NEED(where, leases);
    std::vector<std::shared_ptr<Lease>> behind;
    for (size_t i = 0; i < lease_count; ++i) {
      if (leases[i] == nullptr) return invalid(where, "lease " + std::to_string(i) + " is NULL");
      behind.push_back(leases[i]->lease);
    }
    TERRACE_ASSIGN_OR_RETURN(auto made, TensorPool::make(wanted, std::move(behind)));
    *pool = new terrace_pool{std::move(made)};
    return {};
  });
}

terrace_code terrace_pool_create(terrace_pool* pool, const terrace_tensor_spec* spec, terrace_tensor** tensor) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_pool_create";
    TERRACE_C_NEED(where, pool);
    TERRACE_C_NEED(where, tensor);
    TERRACE_ASSIGN_OR_RETURN(const TensorSpec wanted, spec_of(spec, where));
    TERRACE_ASSIGN_OR_RETURN(auto made, pool->pool->create(wanted));
    *tensor = new terrace_tensor{std::move(made)};
    return {};
  });
}

terrace_code terrace_pool_find(terrace_pool* pool, const char* name, terrace_tensor** tensor) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_pool_find";
    TERRACE_C_NEED(where, pool);
    TERRACE_C_NEED(where, name);
    TERRACE_C_NEED(where, tensor);
    TERRACE_ASSIGN_OR_RETURN(auto found, pool->pool->find(name));
    *tensor = new terrace_tensor{std::move(found)};
    return {};
  });
}

terrace_code terrace_pool_step(terrace_pool* pool) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_pool_step", pool);
    pool->pool->step();
    return {};
  });
}

terrace_code terrace_pool_get_statistics(const terrace_pool* pool, struct terrace_pool_statistics* statistics) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_pool_get_statistics";
    TERRACE_C_NEED(where, pool);
    TERRACE_C_NEED(where, statistics);
    return give(statistics, in_c(pool->pool->statistics()), where);
  });
}

terrace_code terrace_pool_set_copy_budget(terrace_pool* pool, uint64_t bytes_per_s) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_pool_set_copy_budget", pool);
    pool->pool->set_copy_budget(bytes_per_s == TERRACE_NO_BOUND ? 0 : bytes_per_s);
    return {};
  });
}

void terrace_pool_free(terrace_pool* pool) {
  delete pool;
}

}  // extern "C"
