// SPDX-License-Identifier: Apache-2.0
// Tier hbm: devices, and guards of tensors for them.
#include "bindings/python/devices.h"

#include <optional>
#include <string>
#include <utility>

#include "bindings/python/dlpack.h"
#include "bindings/python/values.h"

namespace terrace::python {
namespace {

// Closed it still keeps the tensor, and with it the pool.
struct DeviceGuardObject {
  std::shared_ptr<Tensor> tensor;  // goes after the guard
  std::optional<DeviceGuard> guard;

  const DeviceGuard& open() const {
    if (!guard) raise_closed("device guard");
    return *guard;
  }
  // Whoever keeps it keeps the guard open.
  dlpack::Memory memory() const {
    dlpack::Memory memory = take(open().dlpack_memory());
    memory.keep = kept_by(tensor, std::move(memory.keep));
    return memory;
  }
};

DeviceGuardObject open_guard(const TensorObject& self, bool write, bool overwrite, const py::object& timeout) {
  DeviceGuardOptions options{.overwrite = overwrite};
  if (!timeout.is_none()) options.timeout_ns = nanoseconds(timeout);
  const auto tensor = self.tensor;
  return {
      tensor,
      take(without_gil([&] { return write ? tensor->device_write(options) : tensor->device_read(options); }))};
}

void close_guard(DeviceGuardObject& self) {
  // Taken out first: another thread may close it, too.
  auto guard = std::exchange(self.guard, std::nullopt);
  without_gil([&] { guard.reset(); });
}

// What a GPU has. A framework would take an emulated device's for the host's own, and compute there.
dlpack::Memory device_memory(const DeviceGuardObject& self) {
  dlpack::Memory memory = self.memory();
  if (memory.device.type == dlpack::DeviceType::cpu)
    raise_buffer_error(
        "this device is emulated: its memory is this process's, and no framework's device can take it; numpy() "
        "shows its bytes. DLPack needs a pool with terrace.Device.cuda()");
  return memory;
}

py::tuple device_of(const DeviceGuardObject& self) {
  const dlpack::Device device = device_memory(self).device;
  return py::make_tuple(static_cast<int>(device.type), device.id);
}

// Its bytes have been there since the guard opened: there is no stream to wait for.
py::object dlpack_of_guard(const DeviceGuardObject& self, const py::object&, const py::object& max_version,
                           const py::object& dl_device, const py::object& copy) {
  const dlpack::Memory memory = device_memory(self);
  if (!copy.is_none() && py::bool_(copy)) raise_buffer_error("no copy is made here: copy what torch() gives");
  if (!dl_device.is_none() && !dl_device.equal(device_of(self)))
    raise_buffer_error("it is not copied to another device here");
  const bool versioned = !max_version.is_none() && max_version[py::int_(0)].cast<int>() >= 1;
  return dlpack_capsule(memory, versioned);
}

py::object torch_of_guard(const DeviceGuardObject& self, bool unmarked) {
  dlpack::Memory memory = device_memory(self);
  if (memory.read_only && !unmarked)
    raise_buffer_error(
        "device_read() is read-only, and torch has no read-only tensors: device_write(), or "
        "torch(unmarked=True), to which nothing may be stored");
  memory.read_only = false;
  return py::module_::import("torch.utils.dlpack").attr("from_dlpack")(dlpack_capsule(memory, false));
}

py::object numpy_of_guard(const DeviceGuardObject& self) {
  const dlpack::Memory memory = self.memory();
  if (memory.device.type != dlpack::DeviceType::cpu)
    raise_buffer_error(
        "a GPU's memory is no numpy array: the tensor's read(), once the guard is closed, has its bytes");
  return numpy_of(ArrayView{.data = const_cast<void*>(memory.data),
                            .dtype = memory.dtype,
                            .shape = memory.shape,
                            .strides = memory.strides,
                            .read_only = memory.read_only,
                            .bytes = self.open().bytes(),
                            .keep = memory.keep});
}

DeviceObject cuda(int ordinal) {
  CudaDeviceOptions options;
  options.ordinal = ordinal;
  return {take(without_gil([&] { return DeviceMemory::open_cuda(options); }))};
}

DeviceObject emulated(uint64_t capacity_bytes, uint64_t upload_bytes_per_s, uint64_t download_bytes_per_s) {
  EmulatedDeviceOptions options;
  options.capacity_bytes = capacity_bytes;
  options.upload_bytes_per_s = upload_bytes_per_s;
  options.download_bytes_per_s = download_bytes_per_s;
  return {take(DeviceMemory::make_emulated(options))};
}

// Structured bindings name every field: one that is added does not compile here until it is told.
py::object info_of(const DeviceObject& self) {
  const auto& [kind, ordinal, name, capacity_bytes, driver_version, description] = self.device->info();
  return named("DeviceInfo",
               py::dict(py::arg("kind") = std::string(device_kind_name(kind)), py::arg("ordinal") = ordinal,
                        py::arg("name") = name, py::arg("capacity_bytes") = capacity_bytes,
                        py::arg("driver_version") = driver_version, py::arg("description") = description));
}

py::object use_of(const DeviceObject& self) {
  const DeviceUse use = take(without_gil([&] { return self.device->use(); }));
  const auto& [capacity_bytes, free_bytes, allocated_bytes] = use;
  return named("DeviceUse",
               py::dict(py::arg("capacity_bytes") = capacity_bytes, py::arg("free_bytes") = free_bytes,
                        py::arg("allocated_bytes") = allocated_bytes));
}

void add_guards(py::module_& module) {
  py::class_<DeviceGuardObject>(module, "DeviceGuard", "A tensor in use by a device, at its address there.")
      .def_property_readonly(
          "address", [](const DeviceGuardObject& self) { return self.open().address(); },
          "Of the first element in the device's memory.")
      .def_property_readonly(
          "nbytes", [](const DeviceGuardObject& self) { return self.open().bytes(); }, "Bytes of its elements.")
      .def("numpy", &numpy_of_guard, "An array over an emulated device's memory, which keeps the guard open.")
      .def("torch", &torch_of_guard, py::kw_only(), py::arg("unmarked") = false,
           "A CUDA tensor over the device's copy. unmarked=True: also of a read-only guard, where nothing may "
           "be stored.")
      .def("__dlpack__", &dlpack_of_guard, py::kw_only(), py::arg("stream") = py::none(),
           py::arg("max_version") = py::none(), py::arg("dl_device") = py::none(), py::arg("copy") = py::none(),
           "For from_dlpack() of torch, cupy and others: the device's memory. Raises BufferError.")
      .def("__dlpack_device__", &device_of, "Its DLPack device.")
      .def("close", &close_guard, "Ends the use; work on the device must be over.")
      .def(
          "__enter__", [](py::object self) { return self; }, "The guard itself.")
      .def(
          "__exit__", [](DeviceGuardObject& self, const py::args&) { close_guard(self); }, "As close().");
}

}  // namespace

void add_device_use(py::class_<TensorObject>& tensor) {
  tensor
      .def(
          "device_read",
          [](const TensorObject& self, const py::object& timeout) {
            return open_guard(self, false, false, timeout);
          },
          py::kw_only(), py::arg("timeout") = py::none(),
          "A guard over the device's copy, for loads; waits for the copy (timeout: seconds, Busy: not yet).")
      .def(
          "device_write",
          [](const TensorObject& self, bool overwrite, const py::object& timeout) {
            return open_guard(self, true, overwrite, timeout);
          },
          py::kw_only(), py::arg("overwrite") = false, py::arg("timeout") = py::none(),
          "A guard over the device's copy, for stores; overwrite=True copies nothing up first.")
      .def(
          "write_back",
          [](const TensorObject& self) { take(without_gil([&] { return self.tensor->write_back(); })); },
          "Makes the host's bytes as new as the device's.")
      .def(
          "discard_hbm",
          [](const TensorObject& self) { take(without_gil([&] { return self.tensor->discard_hbm(); })); },
          "Gives the device's copy up, with what was not written back.");
}

void add_devices(py::module_& module) {
  py::class_<DeviceObject>(module, "Device", "A device whose memory is a pool's tier hbm.")
      .def_static("cuda", &cuda, py::arg("ordinal") = 0,
                  "The GPU of that number. Raises Unsupported without a driver.")
      .def_static("emulated", &emulated, py::arg("capacity_bytes"), py::kw_only(),
                  py::arg("upload_bytes_per_s") = 0, py::arg("download_bytes_per_s") = 0,
                  "A device whose memory is this process's own, for machines without a GPU.")
      .def_property_readonly(
          "is_emulated",
          [](const DeviceObject& self) { return self.device->info().kind == DeviceKind::emulated; },
          "Whether it is an emulated one.")
      .def_property_readonly(
          "capacity_bytes", [](const DeviceObject& self) { return self.device->info().capacity_bytes; },
          "Of its memory.")
      .def_property_readonly(
          "description", [](const DeviceObject& self) { return self.device->info().description; },
          "A line about it, for people.")
      .def_property_readonly("info", &info_of, "Its name, number, driver and capacity.")
      .def("use", &use_of, "Asks the driver how much of its memory is free.")
      .def("__repr__",
           [](const DeviceObject& self) { return "<terrace.Device " + self.device->info().description + ">"; });
  add_guards(module);
}

}  // namespace terrace::python
