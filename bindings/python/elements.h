// SPDX-License-Identifier: Apache-2.0
// What numpy's and torch's users expect of a tensor's elements: numbers of them, `in`, iteration, bool(). The work is
// done in terrace/_elements.py.
#pragma once

#include <string>

#include "bindings/python/common.h"

namespace terrace::python {

inline py::object elements(const char* function, const py::object& tensor) {
  return py::module_::import("terrace._elements").attr(function)(tensor);
}

template <typename Class>
void add_elements(Class& tensor) {
  const auto number = [&](const char* name, const char* type, const char* doc) {
    tensor.def(
        name,
        [type](const py::object& self) {
          return py::module_::import("builtins").attr(type)(elements("item", self));
        },
        doc);
  };
  tensor
      .def(
          "item", [](const py::object& self) { return elements("item", self); },
          "The number of a tensor of one element. BF16 and floats of eight bits are numbers, too.")
      .def(
          "tolist", [](const py::object& self) { return elements("tolist", self); },
          "Its numbers as nested lists.")
      .def(
          "__iter__", [](const py::object& self) { return elements("iterate", self); },
          "Views of its first dimension, one after the other.")
      .def(
          "__index__", [](const py::object& self) { return elements("as_index", self); },
          "The number of an integer tensor of one element.")
      .def(
          "__contains__",
          [](const py::object& self, const py::object& value) {
            return py::module_::import("terrace._elements").attr("contains")(self, value);
          },
          py::arg("number"), "Whether some element is the number.");
  number("__bool__", "bool", "The truth of a tensor of one element; ValueError for others, as numpy's.");
  number("__int__", "int", "The number of a tensor of one element, as an integer.");
  number("__float__", "float", "The number of a tensor of one element.");
}

}  // namespace terrace::python
