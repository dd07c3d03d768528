// SPDX-License-Identifier: Apache-2.0
#include "terrace/dlpack.h"

#include <array>
#include <limits>
#include <string>

namespace terrace::dlpack {
namespace {

constexpr const char* where = "dlpack::make";

// What a managed tensor keeps; it lies behind it.
template <typename Managed>
struct Owner {
  Managed managed{};
  std::array<int64_t, Shape::rank_max> shape{}, strides{};
  std::shared_ptr<const void> keep;

  static void release(Managed* self) { delete static_cast<Owner*>(self->manager_context); }
};

Status check_counts(const Memory& memory) {
  const auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  bool fits = memory.shape.elements().value_or(most + 1) <= most;
  for (const uint64_t dimension : memory.shape.dimensions()) fits = fits && dimension <= most;
  if (fits) return {};
  return Error{ErrorCode::invalid_argument, 0, where,
               "a tensor of shape " + memory.shape.to_string() + " has more elements than DLPack counts"};
}

template <typename Managed>
Result<Managed*> make_managed(const Memory& memory, DataType dtype) {
  TERRACE_RETURN_IF_ERROR(check_counts(memory));
  auto owner = std::make_unique<Owner<Managed>>();
  for (uint32_t index = 0; index < memory.shape.rank(); ++index) {
    owner->shape[index] = static_cast<int64_t>(memory.shape[index]);
    owner->strides[index] = memory.strides[index];
  }
  Managed& managed = owner->managed;
  const bool empty = memory.shape.elements() == uint64_t{0};
  // torch 1.13 never calls the deleter of a tensor without elements; there is no memory to keep for one.
  if (!empty) owner->keep = memory.keep;
  managed.tensor = {.data = empty ? nullptr : const_cast<void*>(memory.data),  // NOLINT: DLPack knows no const
                    .device = memory.device,
                    .rank = static_cast<int32_t>(memory.shape.rank()),
                    .dtype = dtype,
                    .shape = owner->shape.data(),
                    .strides = owner->strides.data(),
                    .byte_offset = 0};
  managed.manager_context = owner.get();
  managed.deleter = &Owner<Managed>::release;
  return &owner.release()->managed;
}

bool since_1_1(TypeCode code) {
  return code > TypeCode::boolean;
}

TypeCode code_of(DType dtype) {
  switch (dtype) {
    case DType::boolean: return TypeCode::boolean;
    case DType::f4: return TypeCode::float4_e2m1fn;
    case DType::f6_e2m3: return TypeCode::float6_e2m3fn;
    case DType::f6_e3m2: return TypeCode::float6_e3m2fn;
    case DType::f8_e5m2: return TypeCode::float8_e5m2;
    case DType::f8_e4m3: return TypeCode::float8_e4m3fn;  // safetensors' F8_E4M3 is torch's float8_e4m3fn
    case DType::f8_e8m0: return TypeCode::float8_e8m0fnu;
    case DType::f8_e4m3fnuz: return TypeCode::float8_e4m3fnuz;
    case DType::f8_e5m2fnuz: return TypeCode::float8_e5m2fnuz;
    case DType::u8:
    case DType::u16:
    case DType::u32:
    case DType::u64: return TypeCode::unsigned_integer;
    case DType::i8:
    case DType::i16:
    case DType::i32:
    case DType::i64: return TypeCode::signed_integer;
    case DType::f16:
    case DType::f32:
    case DType::f64: return TypeCode::ieee_float;
    case DType::bf16: return TypeCode::bfloat;
    case DType::c64: return TypeCode::complex_float;
  }
  return TypeCode::unsigned_integer;
}

}  // namespace

Result<DataType> data_type(DType dtype, bool before_1_1) {
  const TypeCode code = code_of(dtype);
  if (before_1_1 && since_1_1(code)) {
    return Error{ErrorCode::unsupported, 0, where,
                 "DLPack before 1.1 has no name for " + std::string(dtype_name(dtype)) +
                     ": export it as U8 and view it, or use a versioned capsule"};
  }
  return DataType{code, static_cast<uint8_t>(dtype_bits(dtype)), 1};
}

Result<ManagedTensor*> make(const Memory& memory) {
  if (memory.read_only) {
    return Error{
        ErrorCode::unsupported, 0, where,
        "DLPack before 1.0 cannot say that a tensor is read-only: its consumer could write to memory that "
        "is not to be written; use a versioned capsule, or a writable mapping"};
  }
  TERRACE_ASSIGN_OR_RETURN(const DataType dtype, data_type(memory.dtype, true));
  return make_managed<ManagedTensor>(memory, dtype);
}

Result<ManagedTensorVersioned*> make_versioned(const Memory& memory) {
  TERRACE_ASSIGN_OR_RETURN(const DataType dtype, data_type(memory.dtype, false));
  TERRACE_ASSIGN_OR_RETURN(ManagedTensorVersioned * made, make_managed<ManagedTensorVersioned>(memory, dtype));
  made->version = {1, since_1_1(dtype.code) ? 1u : 0u};
  made->flags = memory.read_only ? flag_read_only : 0;
  return made;
}

}  // namespace terrace::dlpack
