// SPDX-License-Identifier: Apache-2.0
// Tier hbm of pools.
#pragma once

#include <memory>

#include "bindings/python/handles.h"
#include "terrace/device_memory.h"

namespace terrace::python {

struct DeviceObject {
  std::shared_ptr<DeviceMemory> device;
};

// Device and DeviceGuard.
void add_devices(py::module_& module);
// Of class Tensor: device_read(), device_write(), write_back(), discard_hbm().
void add_device_use(py::class_<TensorObject>& tensor);

}  // namespace terrace::python
