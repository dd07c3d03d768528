// SPDX-License-Identifier: Apache-2.0
// DLPack's structures of tensors and pinned versions, for C.
#include "terrace/dlpack.h"
#include "libclient/c_api/call.h"
#include "libclient/c_api/handles.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

dlpack::Memory memory_of(const std::shared_ptr<Tensor>& tensor, bool read_only) {
  return {.data = tensor->data(),
          .dtype = tensor->dtype(),
          .shape = tensor->shape(),
          .strides = tensor->strides(),
          .keep = tensor,
          .read_only = read_only};
}

Status give_versioned(const dlpack::Memory& memory, DLManagedTensorVersioned** into) {
  TERRACE_ASSIGN_OR_RETURN(dlpack::ManagedTensorVersioned* const made, dlpack::make_versioned(memory));
  *into = reinterpret_cast<DLManagedTensorVersioned*>(made);
  return {};
}

}  // namespace

extern "C" {

terrace_code terrace_dlpack_tensor(const terrace_tensor* tensor, DLManagedTensor** managed) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_dlpack_tensor";
    TERRACE_C_NEED(where, tensor);
    TERRACE_C_NEED(where, managed);
    TERRACE_ASSIGN_OR_RETURN(dlpack::ManagedTensor* const made, dlpack::make(memory_of(tensor->tensor, false)));
    *managed = reinterpret_cast<DLManagedTensor*>(made);
    return {};
  });
}

terrace_code terrace_dlpack_tensor_versioned(const terrace_tensor* tensor, int read_only,
                                             DLManagedTensorVersioned** managed) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_dlpack_tensor_versioned";
    TERRACE_C_NEED(where, tensor);
    TERRACE_C_NEED(where, managed);
    return give_versioned(memory_of(tensor->tensor, read_only != 0), managed);
  });
}

terrace_code terrace_dlpack_pin_versioned(const terrace_pin* pin, DLManagedTensorVersioned** managed) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_dlpack_pin_versioned";
    TERRACE_C_NEED(where, pin);
    TERRACE_C_NEED(where, managed);
    const SharedTensor& tensor = pin->held->tensor;
    return give_versioned({.data = pin->held->pin.bytes().data(),
                           .dtype = tensor.dtype(),
                           .shape = tensor.shape(),
                           .strides = tensor.strides(),
                           .keep = pin->held,
                           .read_only = true},
                          managed);
  });
}

}  // extern "C"
