// SPDX-License-Identifier: Apache-2.0
// The CUDA driver as Terrace uses it: found at run time by dlopen, so that nothing is linked and a machine
// without a GPU builds and runs the rest.
//
// The few functions, types and numbers below are facts of the driver's stable C ABI as NVIDIA's "CUDA Driver
// API" reference documents it; a suffix _v2 is part of a symbol's name in libcuda.so.1, which goes on offering
// every version it ever had. So dlsym by the exact name gives the exact signature, on old and new drivers.
//
// Threads   A CudaDriver never changes; the driver itself may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/result.h"

namespace terrace::device {

namespace cuda {

using Device = int32_t;
using DevicePointer = uint64_t;
using Context = struct ContextHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;

enum class Code : int32_t {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  device_unavailable = 46,
  no_device = 100,
  invalid_device = 101,
  invalid_context = 201,
  ecc_uncorrectable = 214,
  nvlink_uncorrectable = 220,
  contained = 226,
  operating_system = 304,
  not_ready = 600,
  illegal_address = 700,
  launch_timeout = 702,
  context_is_destroyed = 709,
  assertion = 710,
  host_memory_already_registered = 712,
  hardware_stack_error = 714,
  illegal_instruction = 715,
  misaligned_address = 716,
  invalid_address_space = 717,
  invalid_pc = 718,
  launch_failed = 719,
  tensor_memory_leak = 721,
  not_permitted = 800,
  not_supported = 801,
  system_driver_mismatch = 803,
  unknown = 999,
};

inline constexpr uint32_t stream_non_blocking = 1;
inline constexpr uint32_t event_blocking_sync = 1;
inline constexpr uint32_t event_disable_timing = 2;
inline constexpr uint32_t register_portable = 1;
inline constexpr uint32_t register_read_only = 8;
inline constexpr uint32_t host_alloc_portable = 1;
inline constexpr int32_t attribute_read_only_host_register = 113;

}  // namespace cuda

// X(member, symbol, arguments): all return a cuda::Code.
#define TERRACE_CUDA_FUNCTIONS(X)                                                                            \
  X(init, "cuInit", (uint32_t flags))                                                                        \
  X(driver_get_version, "cuDriverGetVersion", (int32_t * version))                                           \
  X(get_error_name, "cuGetErrorName", (cuda::Code code, const char** text))                                  \
  X(get_error_string, "cuGetErrorString", (cuda::Code code, const char** text))                              \
  X(device_get_count, "cuDeviceGetCount", (int32_t * count))                                                 \
  X(device_get, "cuDeviceGet", (cuda::Device * device, int32_t ordinal))                                     \
  X(device_get_name, "cuDeviceGetName", (char* name, int32_t bytes, cuda::Device device))                    \
  X(device_get_attribute, "cuDeviceGetAttribute", (int32_t * value, int32_t attribute, cuda::Device device)) \
  X(device_total_memory, "cuDeviceTotalMem_v2", (size_t * bytes, cuda::Device device))                       \
  X(primary_context_retain, "cuDevicePrimaryCtxRetain", (cuda::Context * context, cuda::Device device))      \
  X(primary_context_release, "cuDevicePrimaryCtxRelease_v2", (cuda::Device device))                          \
  X(context_push, "cuCtxPushCurrent_v2", (cuda::Context context))                                            \
  X(context_pop, "cuCtxPopCurrent_v2", (cuda::Context * context))                                            \
  X(context_set, "cuCtxSetCurrent", (cuda::Context context))                                                 \
  X(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))                             \
  X(memory_allocate, "cuMemAlloc_v2", (cuda::DevicePointer * pointer, size_t bytes))                         \
  X(memory_free, "cuMemFree_v2", (cuda::DevicePointer pointer))                                              \
  X(host_allocate, "cuMemHostAlloc", (void** pointer, size_t bytes, uint32_t flags))                         \
  X(host_free, "cuMemFreeHost", (void* pointer))                                                             \
  X(host_register, "cuMemHostRegister_v2", (void* pointer, size_t bytes, uint32_t flags))                    \
  X(host_unregister, "cuMemHostUnregister", (void* pointer))                                                 \
  X(copy_to_device, "cuMemcpyHtoDAsync_v2",                                                                  \
    (cuda::DevicePointer to, const void* from, size_t bytes, cuda::Stream stream))                           \
  X(copy_to_host, "cuMemcpyDtoHAsync_v2",                                                                    \
    (void* to, cuda::DevicePointer from, size_t bytes, cuda::Stream stream))                                 \
  X(copy_in_device, "cuMemcpyDtoDAsync_v2",                                                                  \
    (cuda::DevicePointer to, cuda::DevicePointer from, size_t bytes, cuda::Stream stream))                   \
  X(copy_to_peer, "cuMemcpyPeerAsync",                                                                       \
    (cuda::DevicePointer to, cuda::Context to_context, cuda::DevicePointer from, cuda::Context from_context, \
     size_t bytes, cuda::Stream stream))                                                                     \
  X(stream_create, "cuStreamCreate", (cuda::Stream * stream, uint32_t flags))                                \
  X(stream_synchronize, "cuStreamSynchronize", (cuda::Stream stream))                                        \
  X(stream_destroy, "cuStreamDestroy_v2", (cuda::Stream stream))                                             \
  X(event_create, "cuEventCreate", (cuda::Event * event, uint32_t flags))                                    \
  X(event_record, "cuEventRecord", (cuda::Event event, cuda::Stream stream))                                 \
  X(event_query, "cuEventQuery", (cuda::Event event))                                                        \
  X(event_synchronize, "cuEventSynchronize", (cuda::Event event))                                            \
  X(event_destroy, "cuEventDestroy_v2", (cuda::Event event))

// Drivers of CUDA 12.0 and newer have these; nullptr where one has not.
#define TERRACE_CUDA_NEWER_FUNCTIONS(X) X(context_id, "cuCtxGetId", (cuda::Context context, uint64_t * id))

struct CudaDriver {
  // Loads the library and looks its functions up; does not initialise it.
  // Errors    unsupported  no such library, or a function that it lacks: named, with what it comes with
  static Result<std::shared_ptr<const CudaDriver>> load(const std::string& library);

  // "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", in the driver's words.
  std::string describe(cuda::Code code) const;
  // "<what>: <the driver's words>", with the code of ours that says what to do.
  Error error(cuda::Code code, const char* where, const std::string& what) const;

#define TERRACE_CUDA_MEMBER(member, symbol, arguments) cuda::Code(*member) arguments = nullptr;
  TERRACE_CUDA_FUNCTIONS(TERRACE_CUDA_MEMBER)
  TERRACE_CUDA_NEWER_FUNCTIONS(TERRACE_CUDA_MEMBER)
#undef TERRACE_CUDA_MEMBER
};

// Errors after which the driver fails every further call of the context: only a new process helps. These are
// the ones that the reference says leave the process in an inconsistent state, a device that is gone, and
// `unknown`, which drivers give for a GPU that fell off the bus (and for less: CudaContext asks again).
bool is_sticky(cuda::Code code);

}  // namespace terrace::device
