// SPDX-License-Identifier: Apache-2.0
// Tensors for other frameworks, without a copy: DLPack's structures, made of any memory of Terrace's, on the
// host or on a device. torch, numpy, jax, cupy and others take them in.
//
//   auto managed = dlpack::make({.data = view.bytes.data(), .device = dlpack::host(), .dtype = view.dtype,
//                                .shape = view.shape, .strides = view.strides, .keep = mapping});
//   PyCapsule_New(*managed, "dltensor", ...);   // its consumer calls the deleter, which lets `keep` go
//
// The layouts are facts of DLPack's ABI (https://dmlc.github.io/dlpack, dlpack.h of versions 0.8 and 1.1),
// declared here under our own names, so that a program may include dlpack.h as well; a ManagedTensor* is a
// DLManagedTensor*, a ManagedTensorVersioned* a DLManagedTensorVersioned*.
//
// Ownership  A managed tensor belongs to its receiver, which calls its deleter once, from any thread.
// Threads    Any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/base/result.h"
#include "terrace/device_memory.h"
#include "terrace/tensor.h"

namespace terrace::dlpack {

// Names of the Python capsules that carry them; a consumer renames one to "used_..." when it takes it.
inline constexpr const char* capsule_name = "dltensor";
inline constexpr const char* versioned_capsule_name = "dltensor_versioned";

enum class DeviceType : int32_t { cpu = 1, cuda = 2, cuda_host = 3 };

struct Device {
  DeviceType type = DeviceType::cpu;
  int32_t id = 0;
};

enum class TypeCode : uint8_t {
  signed_integer = 0,
  unsigned_integer = 1,
  ieee_float = 2,
  bfloat = 4,
  complex_float = 5,
  boolean = 6,
  // Since 1.1.
  float8_e4m3fn = 10,
  float8_e4m3fnuz = 11,
  float8_e5m2 = 12,
  float8_e5m2fnuz = 13,
  float8_e8m0fnu = 14,
  float6_e2m3fn = 15,
  float6_e3m2fn = 16,
  float4_e2m1fn = 17,
};

struct DataType {
  TypeCode code = TypeCode::unsigned_integer;
  uint8_t bits = 8;
  uint16_t lanes = 1;
};

struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};

// For consumers older than DLPack 1.0, and for most of today's.
struct ManagedTensor {
  Tensor tensor;
  void* manager_context;
  void (*deleter)(ManagedTensor* self);
};

struct Version {
  uint32_t major;
  uint32_t minor;
};

inline constexpr uint64_t flag_read_only = 1;

struct ManagedTensorVersioned {
  Version version;
  void* manager_context;
  void (*deleter)(ManagedTensorVersioned* self);
  uint64_t flags;
  Tensor tensor;
};

static_assert(sizeof(Device) == 8 && sizeof(DataType) == 4);
static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, rank) == 16 && offsetof(Tensor, dtype) == 20 &&
              offsetof(Tensor, shape) == 24 && offsetof(Tensor, byte_offset) == 40);
static_assert(sizeof(ManagedTensor) == 64 && offsetof(ManagedTensor, deleter) == 56);
static_assert(sizeof(ManagedTensorVersioned) == 80 && offsetof(ManagedTensorVersioned, flags) == 24 &&
              offsetof(ManagedTensorVersioned, tensor) == 32);

// The memory to export.
struct Memory {
  const void* data = nullptr;  // an address of `device`
  Device device = {};
  DType dtype = DType::u8;
  Shape shape = {};
  Strides strides = {};                   // in elements; row_major_strides(shape) for a dense tensor
  std::shared_ptr<const void> keep = {};  // released by the deleter
  bool read_only = false;
};

inline Device host() {
  return {};
}
// DLPack's device for a DeviceMemory: the memory of an emulated device is the host's.
inline Device device_of(const DeviceInfo& info) {
  return info.kind == DeviceKind::cuda ? Device{DeviceType::cuda, info.ordinal} : Device{};
}

// DLPack's name of an element type.
// Errors    unsupported  floats of eight bits and less, which DLPack before 1.1 has no names for
Result<DataType> data_type(DType dtype, bool before_1_1);

// Errors    unsupported       an element type that DLPack 0.8 has no name for, or read-only memory, which it
//                             cannot mark: a consumer would write to it
//           invalid_argument  more elements than DLPack counts
Result<ManagedTensor*> make(const Memory& memory);
// For consumers of DLPack 1.x, which ask with max_version. The tensor's version is 1.0 if that has a name for
// its element type, else 1.1.
// Errors    invalid_argument  more elements than DLPack counts
Result<ManagedTensorVersioned*> make_versioned(const Memory& memory);

}  // namespace terrace::dlpack
