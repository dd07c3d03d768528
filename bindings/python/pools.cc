// SPDX-License-Identifier: Apache-2.0
// TensorPool.
#include <pybind11/stl.h>

#include <string>

#include "bindings/python/devices.h"
#include "bindings/python/handles.h"
#include "bindings/python/values.h"

namespace terrace::python {
namespace {

TensorObject tensor_object(const std::shared_ptr<TensorPool>& pool, std::shared_ptr<Tensor> tensor) {
  return {kept_by(pool, std::move(tensor)), 0, pool};
}

PoolObject make(const SessionObject* session, const std::vector<LeaseObject>& leases, uint64_t ddr_bytes,
                const std::string& name, const py::object& copy_bytes_per_s_max, uint64_t copy_batch_bytes,
                const std::string& policy, bool step_aware, const std::string& guard_wait,
                const DeviceObject* device, uint64_t hbm_bytes) {
  TensorPoolOptions options;
  std::vector<std::shared_ptr<Lease>> behind;
  std::shared_ptr<Session> open_session;  // used by make() only
  for (const LeaseObject& lease : leases) behind.push_back(lease.lease);
  if (session != nullptr)
    options.session = (open_session = session->open()).get();
  else if (!leases.empty())
    options.session = leases.front().session.get();
  options.name = name;
  options.ddr_bytes = ddr_bytes;
  options.copy_bytes_per_s_max = copy_bytes_per_s_max.is_none() ? 0 : copy_bytes_per_s_max.cast<uint64_t>();
  options.copy_batch_bytes = copy_batch_bytes;
  options.policy = policy;
  options.step_aware = step_aware;
  options.guard_wait = guard_wait_of(guard_wait);
  if (device != nullptr) options.device = device->device;
  options.hbm_bytes = hbm_bytes;
  auto made = take(without_gil([&] { return TensorPool::make(options, behind); }));
  return {ends_without_gil<TensorPool>(std::move(made))};
}

TensorObject create(const PoolObject& self, const py::object& shape, const py::object& dtype,
                    const std::string& name, const py::object& hint, bool read_mostly, bool streaming,
                    bool pinned) {
  const TensorSpec spec{.name = name,
                        .dtype = dtype_of(dtype),
                        .shape = shape_of(shape),
                        .hint = hint_of(hint),
                        .flags = flags_of(read_mostly, streaming, pinned)};
  const auto pool = self.open();
  return tensor_object(pool, take(without_gil([&] { return pool->create(spec); })));
}

TensorObject find(const PoolObject& self, const std::string& name) {
  const auto pool = self.open();
  return tensor_object(pool, take(without_gil([&] { return pool->find(name); })));
}

const char* name_of(StepState state) {
  return state == StepState::off ? "off" : state == StepState::observing ? "observing" : "following";
}

py::object hbm_statistics(const HbmStatistics& of) {
  return named(
      "HbmStatistics",
      py::dict(py::arg("capacity_bytes") = of.capacity_bytes, py::arg("budget_bytes") = of.budget_bytes,
               py::arg("used_bytes") = of.used_bytes, py::arg("pinned_bytes") = of.pinned_bytes,
               py::arg("in_use_bytes") = of.in_use_bytes, py::arg("dirty_bytes") = of.dirty_bytes,
               py::arg("stale_bytes") = of.stale_bytes, py::arg("under_way_bytes") = of.under_way_bytes,
               py::arg("replicas") = of.replicas, py::arg("uploads") = of.uploads,
               py::arg("uploaded_bytes") = of.uploaded_bytes, py::arg("uploads_ahead") = of.uploads_ahead,
               py::arg("write_backs") = of.write_backs, py::arg("written_back_bytes") = of.written_back_bytes,
               py::arg("evictions") = of.evictions, py::arg("evicted_bytes") = of.evicted_bytes,
               py::arg("failed_copies") = of.failed_copies, py::arg("refused") = of.refused,
               py::arg("guards") = of.guards, py::arg("guard_waits") = of.guard_waits,
               py::arg("guard_wait_ns") = of.guard_wait_ns, py::arg("host_waits") = of.host_waits,
               py::arg("host_wait_ns") = of.host_wait_ns, py::arg("following") = of.following,
               py::arg("uses_per_step") = of.uses_per_step,
               py::arg("planned_bytes_per_step") = of.planned_bytes_per_step));
}

py::object statistics(const PoolObject& self) {
  const auto pool = self.open();
  const TensorPoolStatistics of = without_gil([&] { return pool->statistics(); });
  return named("TensorPoolStatistics",
               py::dict(py::arg("tensors") = of.tensors, py::arg("tensor_bytes") = of.tensor_bytes,
                        py::arg("capacity_bytes") = of.capacity_bytes, py::arg("free_bytes") = of.free_bytes,
                        py::arg("ddr_bytes_max") = of.ddr_bytes_max, py::arg("ddr_bytes") = of.ddr_bytes,
                        py::arg("cxl_bytes") = of.cxl_bytes, py::arg("pinned_bytes") = of.pinned_bytes,
                        py::arg("step_state") = name_of(of.step_state), py::arg("reason") = of.reason,
                        py::arg("steps") = of.steps, py::arg("orders_learned") = of.orders_learned,
                        py::arg("orders_forgotten") = of.orders_forgotten,
                        py::arg("deviations") = of.deviations, py::arg("uses_per_step") = of.uses_per_step,
                        py::arg("planned_bytes_per_step") = of.planned_bytes_per_step,
                        py::arg("copied_to_ddr_bytes") = of.copied_to_ddr_bytes,
                        py::arg("copied_to_cxl_bytes") = of.copied_to_cxl_bytes,
                        py::arg("copy_ns") = of.copy_ns, py::arg("guards") = of.guards,
                        py::arg("guard_waits") = of.guard_waits, py::arg("guard_wait_ns") = of.guard_wait_ns,
                        py::arg("guard_waits_given_up") = of.guard_waits_given_up,
                        py::arg("hbm") = hbm_statistics(of.hbm)));
}

}  // namespace

std::shared_ptr<TensorPool> PoolObject::open() const {
  if (pool == nullptr) raise_closed("pool");
  return pool;
}

void add_pools(py::module_& module) {
  const TensorPoolOptions defaults;
  py::class_<PoolObject>(module, "TensorPool",
                         "Tensors whose addresses stay while their bytes move between DDR and CXL.")
      .def(py::init(&make), py::arg("session") = nullptr, py::arg("leases") = std::vector<LeaseObject>(),
           py::kw_only(), py::arg("ddr_bytes") = 0, py::arg("name") = defaults.name,
           py::arg("copy_bytes_per_s_max") = defaults.copy_bytes_per_s_max,
           py::arg("copy_batch_bytes") = defaults.copy_batch_bytes, py::arg("policy") = "",
           py::arg("step_aware") = true, py::arg("guard_wait") = "by_cost", py::arg("device") = nullptr,
           py::arg("hbm_bytes") = 0,
           "A pool over leases and ddr_bytes of this machine's DDR. Budgets are bytes a second, None for no "
           "bound; docs/python.md has the rest.")
      .def("create", &create, py::arg("shape"), py::arg("dtype") = "float32", py::kw_only(),
           py::arg("name") = "", py::arg("hint") = py::none(), py::arg("read_mostly") = false,
           py::arg("streaming") = false, py::arg("pinned") = false,
           "A tensor, zeroed. hint: what it is for; its first place follows from it. Raises CapacityExhausted, "
           "AlreadyExists.")
      .def(
          "create_from",
          [](const py::object& self, const py::object& source, const py::object& dtype,
             const py::kwargs& options) {
            return py::module_::import("terrace._elements").attr("create_from")(self, source, dtype, options);
          },
          py::arg("source"), py::arg("dtype") = py::none(),
          "A tensor with the numbers of an array, a tensor of numpy, torch or Terrace, or nested lists; of its "
          "type, or of "
          "dtype. Keywords as create().")
      .def("find", &find, py::arg("name"), "The tensor of that name that somebody still has. Raises NotFound.")
      .def("__getitem__", &find, py::arg("name"), "As find().")
      .def(
          "step",
          [](const PoolObject& self) {
            const auto pool = self.open();
            without_gil([&] { pool->step(); });
          },
          "A step is over: the uses since the last call were one.")
      .def_property_readonly("statistics", &statistics, "What it holds, and how much has moved.")
      .def(
          "set_copy_budget",
          [](const PoolObject& self, const py::object& bytes_per_s) {
            self.open()->set_copy_budget(bytes_per_s.is_none() ? 0 : bytes_per_s.cast<uint64_t>());
          },
          py::arg("bytes_per_s"), "How many bytes a second its moves may copy; None: no bound.")
      .def(
          "close", [](PoolObject& self) { self.pool.reset(); },
          "No more calls; it ends once its tensors and their arrays are gone.")
      .def(
          "__enter__", [](py::object self) { return self; }, "The pool itself.")
      .def(
          "__exit__", [](PoolObject& self, const py::args&) { self.pool.reset(); }, "As close().");
}

}  // namespace terrace::python
