// SPDX-License-Identifier: Apache-2.0
// Tier hbm of pools, for C.
#include <cstddef>
#include <utility>

#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"

using namespace terrace;
using namespace terrace::c_api;

struct terrace_device_guard {
  std::shared_ptr<terrace::Tensor> tensor;  // goes after the guard
  terrace::DeviceGuard guard;
};

namespace {

// Nothing behind the last member: a member that is added later changes the size.
static_assert(sizeof(terrace_pool_options) == offsetof(terrace_pool_options, hbm_bytes) + sizeof(uint64_t));
static_assert(sizeof(terrace_cuda_options) == offsetof(terrace_cuda_options, staging_bytes) + sizeof(uint64_t));
static_assert(sizeof(terrace_device_guard_options) ==
              offsetof(terrace_device_guard_options, timeout_ns) + sizeof(uint64_t));
static_assert(sizeof(struct terrace_hbm_statistics) ==
              offsetof(struct terrace_hbm_statistics, following) + sizeof(int));
static_assert(sizeof(terrace_device_info) == offsetof(terrace_device_info, reserved) + sizeof(int));
static_assert(sizeof(terrace_device_use) == offsetof(terrace_device_use, allocated_bytes) + sizeof(uint64_t));
static_assert(static_cast<int>(DeviceKind::emulated) == TERRACE_DEVICE_EMULATED);
static_assert(static_cast<int>(DeviceKind::cuda) == TERRACE_DEVICE_CUDA);

Status reserved_is_unset(int reserved, const char* where) {
  if (reserved == 0) return {};
  return Error{ErrorCode::version_mismatch, 0, where,
               "`reserved` of the options is set, which this libterrace does not know"};
}

Status open_guard(terrace_tensor* tensor, bool write, const terrace_device_guard_options* options,
                  terrace_device_guard** guard, const char* where) {
  TERRACE_C_NEED(where, tensor);
  TERRACE_C_NEED(where, guard);
  TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
  TERRACE_RETURN_IF_ERROR(reserved_is_unset(given.reserved, where));
  DeviceGuardOptions wanted;
  wanted.overwrite = given.overwrite != 0;
  if (given.timeout_ns != 0) wanted.timeout_ns = given.timeout_ns;
  TERRACE_ASSIGN_OR_RETURN(DeviceGuard open,
                           write ? tensor->tensor->device_write(wanted) : tensor->tensor->device_read(wanted));
  *guard = new terrace_device_guard{tensor->tensor, std::move(open)};
  return {};
}

// Structured bindings name every field: one that is added does not compile here until it is told.
terrace_device_info in_c(const DeviceInfo& of) {
  const auto& [kind, ordinal, name, capacity_bytes, driver_version, description] = of;
  return {.size = sizeof(terrace_device_info),
          .capacity_bytes = capacity_bytes,
          .name = name.c_str(),
          .description = description.c_str(),
          .kind = static_cast<int>(kind),
          .ordinal = ordinal,
          .driver_version = driver_version,
          .reserved = 0};
}

terrace_device_use in_c(const DeviceUse& of) {
  const auto& [capacity_bytes, free_bytes, allocated_bytes] = of;
  return {.size = sizeof(terrace_device_use),
          .capacity_bytes = capacity_bytes,
          .free_bytes = free_bytes,
          .allocated_bytes = allocated_bytes};
}

struct terrace_hbm_statistics in_c(const HbmStatistics& of) {
  struct terrace_hbm_statistics told {};
  told.capacity_bytes = of.capacity_bytes;
  told.budget_bytes = of.budget_bytes;
  told.used_bytes = of.used_bytes;
  told.pinned_bytes = of.pinned_bytes;
  told.in_use_bytes = of.in_use_bytes;
  told.dirty_bytes = of.dirty_bytes;
  told.stale_bytes = of.stale_bytes;
  told.under_way_bytes = of.under_way_bytes;
  told.replicas = of.replicas;
  told.uploads = of.uploads;
  told.uploaded_bytes = of.uploaded_bytes;
  told.uploads_ahead = of.uploads_ahead;
  told.write_backs = of.write_backs;
  told.written_back_bytes = of.written_back_bytes;
  told.evictions = of.evictions;
  told.evicted_bytes = of.evicted_bytes;
  told.failed_copies = of.failed_copies;
  told.refused = of.refused;
  told.guards = of.guards;
  told.guard_waits = of.guard_waits;
  told.guard_wait_ns = of.guard_wait_ns;
  told.host_waits = of.host_waits;
  told.host_wait_ns = of.host_wait_ns;
  told.planned_bytes_per_step = of.planned_bytes_per_step;
  told.uses_per_step = of.uses_per_step;
  told.following = of.following ? 1 : 0;
  return told;
}

}  // namespace

extern "C" {

terrace_code terrace_device_open_cuda(const terrace_cuda_options* options, terrace_device** device) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_device_open_cuda";
    TERRACE_C_NEED(where, device);
    TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
    TERRACE_RETURN_IF_ERROR(reserved_is_unset(given.reserved, where));
    CudaDeviceOptions wanted;
    wanted.ordinal = given.ordinal;
    if (given.staging_bytes != 0) wanted.staging_bytes = given.staging_bytes;
    TERRACE_ASSIGN_OR_RETURN(auto opened, DeviceMemory::open_cuda(wanted));
    *device = new terrace_device{std::move(opened)};
    return {};
  });
}

terrace_code terrace_device_make_emulated(const terrace_emulated_options* options, terrace_device** device) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_device_make_emulated";
    TERRACE_C_NEED(where, device);
    TERRACE_ASSIGN_OR_RETURN(const auto given, options_of(options, where));
    EmulatedDeviceOptions wanted;
    if (given.capacity_bytes != 0) wanted.capacity_bytes = given.capacity_bytes;
    wanted.upload_bytes_per_s = given.upload_bytes_per_s;
    wanted.download_bytes_per_s = given.download_bytes_per_s;
    wanted.latency_ns = given.latency_ns;
    TERRACE_ASSIGN_OR_RETURN(auto made, DeviceMemory::make_emulated(wanted));
    *device = new terrace_device{std::move(made)};
    return {};
  });
}

const char* terrace_device_description(const terrace_device* device) {
  return device == nullptr ? "" : device->device->info().description.c_str();
}

int terrace_device_is_emulated(const terrace_device* device) {
  return device != nullptr && device->device->info().kind == DeviceKind::emulated ? 1 : 0;
}

terrace_code terrace_device_get_info(const terrace_device* device, terrace_device_info* info) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_device_get_info";
    TERRACE_C_NEED(where, device);
    TERRACE_C_NEED(where, info);
    return give(info, in_c(device->device->info()), where);
  });
}

terrace_code terrace_device_get_use(const terrace_device* device, terrace_device_use* use) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_device_get_use";
    TERRACE_C_NEED(where, device);
    TERRACE_C_NEED(where, use);
    TERRACE_ASSIGN_OR_RETURN(const DeviceUse now, device->device->use());
    return give(use, in_c(now), where);
  });
}

void terrace_device_free(terrace_device* device) {
  delete device;
}

terrace_code terrace_tensor_device_read(terrace_tensor* tensor, const terrace_device_guard_options* options,
                                        terrace_device_guard** guard) {
  return call([&] { return open_guard(tensor, false, options, guard, "terrace_tensor_device_read"); });
}

terrace_code terrace_tensor_device_write(terrace_tensor* tensor, const terrace_device_guard_options* options,
                                         terrace_device_guard** guard) {
  return call([&] { return open_guard(tensor, true, options, guard, "terrace_tensor_device_write"); });
}

uint64_t terrace_device_guard_address(const terrace_device_guard* guard) {
  return guard == nullptr ? 0 : guard->guard.address();
}

uint64_t terrace_device_guard_bytes(const terrace_device_guard* guard) {
  return guard == nullptr ? 0 : guard->guard.bytes();
}

void terrace_device_guard_free(terrace_device_guard* guard) {
  delete guard;
}

terrace_code terrace_tensor_write_back(terrace_tensor* tensor) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_tensor_write_back", tensor);
    return tensor->tensor->write_back();
  });
}

terrace_code terrace_tensor_discard_hbm(terrace_tensor* tensor) {
  return call([&]() -> Status {
    TERRACE_C_NEED("terrace_tensor_discard_hbm", tensor);
    return tensor->tensor->discard_hbm();
  });
}

terrace_code terrace_tensor_hbm_residency(const terrace_tensor* tensor, uint64_t* hbm_bytes,
                                          uint64_t* dirty_bytes) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_tensor_hbm_residency";
    TERRACE_C_NEED(where, tensor);
    TERRACE_C_NEED(where, hbm_bytes);
    TERRACE_C_NEED(where, dirty_bytes);
    const TensorResidency residency = tensor->tensor->residency();
    *hbm_bytes = residency.hbm_bytes;
    *dirty_bytes = residency.hbm_dirty_bytes;
    return {};
  });
}

terrace_code terrace_pool_get_hbm_statistics(const terrace_pool* pool,
                                             struct terrace_hbm_statistics* statistics) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_pool_get_hbm_statistics";
    TERRACE_C_NEED(where, pool);
    TERRACE_C_NEED(where, statistics);
    return give(statistics, in_c(pool->pool->statistics().hbm), where);
  });
}

terrace_code terrace_dlpack_device_guard(const terrace_device_guard* guard, DLManagedTensor** managed) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_dlpack_device_guard";
    TERRACE_C_NEED(where, guard);
    TERRACE_C_NEED(where, managed);
    TERRACE_ASSIGN_OR_RETURN(const dlpack::Memory memory, guard->guard.dlpack_memory());
    TERRACE_ASSIGN_OR_RETURN(dlpack::ManagedTensor* const made, dlpack::make(memory));
    *managed = reinterpret_cast<DLManagedTensor*>(made);
    return {};
  });
}

terrace_code terrace_dlpack_device_guard_versioned(const terrace_device_guard* guard,
                                                   DLManagedTensorVersioned** managed) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_dlpack_device_guard_versioned";
    TERRACE_C_NEED(where, guard);
    TERRACE_C_NEED(where, managed);
    TERRACE_ASSIGN_OR_RETURN(const dlpack::Memory memory, guard->guard.dlpack_memory());
    TERRACE_ASSIGN_OR_RETURN(dlpack::ManagedTensorVersioned* const made, dlpack::make_versioned(memory));
    *managed = reinterpret_cast<DLManagedTensorVersioned*>(made);
    return {};
  });
}

}  // extern "C"
