// SPDX-License-Identifier: Apache-2.0
// Tensor, its guards and moves.
#include <string>
#include <utility>

#include "bindings/python/devices.h"
#include "bindings/python/elements.h"
#include "bindings/python/handles.h"
#include "bindings/python/index.h"
#include "bindings/python/values.h"

namespace terrace::python {
namespace {

// A view keeps the pool as its tensor does.
TensorObject kept(const TensorObject& base, TensorObject view) {
  return {kept_by(base.tensor, std::move(view.tensor)), view.offset, base.pool};
}

Picked all_of(const TensorObject& self) {
  return {.shape = self.tensor->shape(),
          .strides = self.tensor->strides(),
          .offset = self.offset,
          .name = self.tensor->name()};
}

TensorObject view_of(const TensorObject& self, const Picked& picked) {
  auto view = take(self.tensor->as_strided(picked.shape, picked.strides, static_cast<uint64_t>(picked.offset)));
  return kept(self, {std::move(view), picked.offset});
}

TensorObject get_item(const TensorObject& self, const py::object& key) {
  return view_of(self, pick(key, all_of(self)));
}

// Through numpy, which broadcasts: a mask or a list of indices as key goes there as well.
void set_item(const py::object& self, const py::object& key, const py::object& value) {
  const auto& tensor = self.cast<const TensorObject&>();
  py::module_::import("terrace._elements").attr("assign")(py::cast(get_item(tensor, key)), value);
}

[[noreturn]] py::object refuse_pickle(const TensorObject& self) {
  throw py::type_error(
      "tensor " + quoted_name(self.tensor->name()) +
      " of a pool is not pickled: its bytes move in this process's address space. Other processes "
      "open what terrace.open_model() or a terrace.TensorSpace has; a copy is numpy().copy()");
}

TensorObject as_strided(const TensorObject& self, const py::object& shape, const py::object& strides,
                        uint64_t offset) {
  const Shape wanted = shape_of(shape);
  const Strides how = strides_of(strides, wanted.rank());
  return kept(self, {take(self.tensor->as_strided(wanted, how, offset)), static_cast<int64_t>(offset)});
}

MoveObject moved(const TensorObject& self, Result<std::shared_ptr<MoveHandle>> handle) {
  return {self.tensor, take(std::move(handle))};
}

GuardObject open_guard(const py::object& owner, bool for_write, bool hold, const py::object& wait) {
  const auto& self = owner.cast<const TensorObject&>();
  GuardOptions options{.hold = hold};
  if (!wait.is_none()) options.wait = guard_wait_of(wait.cast<std::string>());
  GuardObject guard;
  guard.tensor = owner;
  guard.view = self.array();
  guard.view.read_only = !for_write;
  if (for_write)
    guard.write = take(without_gil([&] { return self.tensor->write(options); }));
  else
    guard.read = take(without_gil([&] { return self.tensor->read(options); }));
  return guard;
}

void close_guard(GuardObject& guard) {
  // Taken out first: another thread may close it, too.
  auto read = std::exchange(guard.read, std::nullopt);
  auto write = std::exchange(guard.write, std::nullopt);
  without_gil([&] {
    read.reset();
    write.reset();
  });
}

// The guard is the array's base: numpy asks the base whether an array may be made writable.
py::object array_of(const py::object& guard) {
  return numpy_of(guard.cast<const GuardObject&>().view, guard);
}

// numpy is not needed to use guards.
py::object array_or_memory(const py::object& guard) {
  try {
    return array_of(guard);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ImportError)) throw;
  }
  return py::memoryview(guard);
}

std::string text_of(const TensorObject& self) {
  const Tensor& tensor = *self.tensor;
  return "<terrace.Tensor " + quoted_name(tensor.name()) + " " + std::string(dtype_name(tensor.dtype())) + " " +
         tensor.shape().to_string() + (tensor.is_view() ? " view>" : ">");
}

void advise(const TensorObject& self, const py::object& hint, const py::object& read_mostly,
            const py::object& streaming, const py::object& passes) {
  TensorAdvice advice;
  if (!hint.is_none()) advice.hint = hint_of(hint);
  uint8_t flags = self.tensor->flags();
  const auto change = [&](const py::object& to, uint8_t flag) {
    if (to.is_none()) return;
    flags = static_cast<uint8_t>(py::bool_(to) ? flags | flag : flags & ~flag);
    advice.flags = flags;
  };
  change(read_mostly, TensorFlags::read_mostly);
  change(streaming, TensorFlags::streaming);
  if (!passes.is_none()) {
    advice.passes = passes.cast<float>();
    if (!(*advice.passes >= 0)) raise_invalid("passes is negative, or no number");
  }
  self.tensor->advise(advice);
}

py::object statistics(const TensorObject& self) {
  const TensorStatistics of = self.tensor->statistics();
  return named(
      "TensorStatistics",
      py::dict(py::arg("reads") = of.reads, py::arg("writes") = of.writes,
               py::arg("uses_per_step") = of.uses_per_step, py::arg("guard_waits") = of.guard_waits,
               py::arg("guard_wait_ns") = of.guard_wait_ns, py::arg("pins") = of.pins,
               py::arg("device_reads") = of.device_reads, py::arg("device_writes") = of.device_writes));
}

py::object residency(const TensorObject& self) {
  const TensorResidency of = self.tensor->residency();
  return named("Residency",
               py::dict(py::arg("ddr_bytes") = of.ddr_bytes, py::arg("cxl_bytes") = of.cxl_bytes,
                        py::arg("hbm_bytes") = of.hbm_bytes, py::arg("hbm_dirty_bytes") = of.hbm_dirty_bytes));
}

void wait(const MoveObject& self, const py::object& timeout) {
  take(patiently(
      nanoseconds(timeout), [&](uint64_t wait_ns) { return self.handle->wait(wait_ns); },
      [&] { return self.handle->done(); }));
}

using Class = py::class_<TensorObject>;

void add_description(Class& tensor) {
  tensor
      .def_property_readonly(
          "name", [](const TensorObject& self) { return self.tensor->name(); },
          "As it was created; '' without one.")
      .def_property_readonly(
          "dtype", [](const TensorObject& self) { return std::string(dtype_name(self.tensor->dtype())); },
          "As safetensors names it: 'F32', 'BF16'.")
      .def_property_readonly(
          "shape", [](const TensorObject& self) { return tuple_of(self.tensor->shape()); },
          "Elements a dimension.")
      .def_property_readonly(
          "strides",
          [](const TensorObject& self) {
            return tuple_of(self.tensor->strides(), self.tensor->shape().rank());
          },
          "In elements.")
      .def_property_readonly(
          "size", [](const TensorObject& self) { return self.tensor->shape().elements().value_or(0); },
          "How many elements.")
      .def_property_readonly(
          "ndim", [](const TensorObject& self) { return self.tensor->shape().rank(); }, "How many dimensions.")
      .def_property_readonly(
          "nbytes",
          [](const TensorObject& self) {
            return tensor_bytes(self.tensor->dtype(), self.tensor->shape()).value();
          },
          "Bytes of its elements.")
      .def_property_readonly(
          "address", [](const TensorObject& self) { return reinterpret_cast<uintptr_t>(self.tensor->data()); },
          "Of its first element; it stays while bytes move.")
      .def_property_readonly(
          "hint", [](const TensorObject& self) { return std::string(hint_name(self.tensor->hint())); },
          "What it is for: 'weights', 'none', ...")
      .def_property_readonly(
          "read_mostly",
          [](const TensorObject& self) { return (self.tensor->flags() & TensorFlags::read_mostly) != 0; },
          "Whether copies of it are cheap.")
      .def_property_readonly(
          "streaming",
          [](const TensorObject& self) { return (self.tensor->flags() & TensorFlags::streaming) != 0; },
          "Whether each byte is used once a step, so that keeping it near is waste.")
      .def_property_readonly(
          "flags", [](const TensorObject& self) { return self.tensor->flags(); },
          "read_mostly 1, streaming 2, pinned 4.")
      .def_property_readonly(
          "is_view", [](const TensorObject& self) { return self.tensor->is_view(); },
          "Whether it is a part of another tensor.")
      .def_property_readonly("residency", &residency, "Where its bytes are now.")
      .def_property_readonly("statistics", &statistics, "How often it was used, and waited for.")
      .def(
          "__len__",
          [](const TensorObject& self) {
            if (self.tensor->shape().rank() == 0) throw py::type_error("a scalar has no length");
            return self.tensor->shape()[0];
          },
          "Elements of the first dimension.")
      .def("__repr__", &text_of);
}

void add_moves(Class& tensor) {
  tensor
      .def(
          "pin",
          [](const TensorObject& self, const std::string& tier) {
            const Tier wanted = tier_of(tier);
            return moved(self, without_gil([&] { return self.tensor->pin(wanted); }));
          },
          py::arg("tier") = "ddr", "Moves it to the tier and keeps it there until unpin().")
      .def(
          "unpin", [](const TensorObject& self) { take(without_gil([&] { return self.tensor->unpin(); })); },
          "Ends one pin(). Raises InvalidArgument where there is none.")
      .def(
          "prefetch",
          [](const TensorObject& self, const std::string& tier) {
            const Tier wanted = tier_of(tier);
            return moved(self, without_gil([&] { return self.tensor->prefetch(wanted); }));
          },
          py::arg("tier") = "ddr", "Moves it to the tier if there is room; nobody need wait for that.")
      .def(
          "move_to",
          [](const TensorObject& self, const std::string& tier) {
            const Tier wanted = tier_of(tier);
            return moved(self, without_gil([&] { return self.tensor->move_to(wanted); }));
          },
          py::arg("tier"), "Moves it to the tier 'ddr', 'cxl' or 'hbm'. Loads and stores go on meanwhile.")
      .def("advise", &advise, py::kw_only(), py::arg("hint") = py::none(), py::arg("read_mostly") = py::none(),
           py::arg("streaming") = py::none(), py::arg("passes") = py::none(),
           "Changes what was said of its use; passes: how often a step reads it.");
}

void add_helpers(py::module_& module) {
  py::class_<MoveObject>(module, "Move", "A move under way; it goes on without this object.")
      .def_property_readonly(
          "done", [](const MoveObject& self) { return self.handle->done(); }, "Whether it is over.")
      .def_property_readonly(
          "bytes_there", [](const MoveObject& self) { return self.handle->bytes_there(); },
          "How many bytes are there by now.")
      .def("wait", &wait, py::arg("timeout") = py::none(),
           "Waits for its end, for timeout seconds (None: for ever). Raises Busy: not yet, or why it ended "
           "otherwise.");
  auto guard =
      py::class_<GuardObject>(module, "Guard", "An open use of a tensor.", exports_buffer<GuardObject>())
          .def("numpy", &array_of, "The guarded elements as a numpy array, which keeps the guard open.")
          .def("close", &close_guard, "Ends the use; once is enough.")
          .def("__enter__", &array_or_memory, "A numpy array of the elements; a memoryview without numpy.")
          .def(
              "__exit__", [](GuardObject& self, const py::args&) { close_guard(self); }, "As close().");
  add_dlpack<GuardObject>(guard);
}

}  // namespace

ArrayView TensorObject::array() const {
  return {.data = tensor->data(),
          .dtype = tensor->dtype(),
          .shape = tensor->shape(),
          .strides = tensor->strides(),
          .bytes = tensor->bytes().size(),
          .keep = tensor};
}

void add_tensors(py::module_& module) {
  add_helpers(module);
  Class tensor(module, "Tensor", "A tensor of a pool, or a view of one: its address stays, its bytes may move.",
               exports_buffer<TensorObject>());
  add_description(tensor);
  add_moves(tensor);
  add_device_use(tensor);
  tensor
      .def(
          "numpy",
          [](const py::object& self) { return numpy_of(self.cast<const TensorObject&>().array(), self); },
          "A numpy array over the same memory, which it keeps.")
      .def("__getitem__", &get_item, py::arg("key"), "A view: by integers, slices, ... and None, as numpy's.")
      .def("__setitem__", &set_item, py::arg("key"), py::arg("value"),
           "Stores numbers, an array or a tensor, which broadcast to the view of that key.")
      .def(
          "reshape",
          [](const TensorObject& self, const py::args& shape) {
            return view_of(self, reshaped(shape, all_of(self)));
          },
          "The same elements in other dimensions, without a copy; one may be -1. Raises InvalidArgument where "
          "that needs one.")
      .def("__reduce__", &refuse_pickle, "Refused: a pool's tensors are of one process.")
      .def("as_strided", &as_strided, py::arg("shape"), py::arg("strides"), py::arg("offset") = 0,
           "A view of any shape and strides (elements) within the whole tensor, from element `offset` of that "
           "on.")
      .def(
          "read",
          [](const py::object& self, bool hold, const py::object& how) {
            return open_guard(self, false, hold, how);
          },
          py::kw_only(), py::arg("hold") = false, py::arg("wait") = py::none(),
          "Opens a guard for loads: it notes the use. hold=True keeps the bytes in their place meanwhile. In "
          "`with` it is a read-only array.")
      .def(
          "write",
          [](const py::object& self, bool hold, const py::object& how) {
            return open_guard(self, true, hold, how);
          },
          py::kw_only(), py::arg("hold") = false, py::arg("wait") = py::none(),
          "Opens a guard for stores; otherwise as read().");
  add_dlpack<TensorObject>(tensor);
  add_elements(tensor);
}

}  // namespace terrace::python
