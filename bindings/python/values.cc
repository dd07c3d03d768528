// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/values.h"

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "bindings/python/common.h"

namespace terrace::python {
namespace {

// Names of numpy, torch and jax beside safetensors' own.
constexpr std::pair<std::string_view, DType> other_names[] = {
    {"bool", DType::boolean},
    {"bool_", DType::boolean},
    {"uint8", DType::u8},
    {"int8", DType::i8},
    {"uint16", DType::u16},
    {"int16", DType::i16},
    {"uint32", DType::u32},
    {"int32", DType::i32},
    {"uint64", DType::u64},
    {"int64", DType::i64},
    {"float16", DType::f16},
    {"float32", DType::f32},
    {"float64", DType::f64},
    {"bfloat16", DType::bf16},
    {"complex64", DType::c64},
    {"float8_e4m3fn", DType::f8_e4m3},
    {"float8_e5m2", DType::f8_e5m2},
    {"float8_e8m0fnu", DType::f8_e8m0},
    {"float8_e4m3fnuz", DType::f8_e4m3fnuz},
    {"float8_e5m2fnuz", DType::f8_e5m2fnuz},
    {"float", DType::f64},
    {"int", DType::i64},
};

std::string upper(std::string text) {
  for (char& letter : text)
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  return text;
}

// numpy.dtype("float32") has a name, numpy.float32 and float are types with one, torch.float32 is its own text.
std::string dtype_text(py::handle given) {
  if (py::isinstance<py::str>(given)) return given.cast<std::string>();
  for (const char* attribute : {"name", "__name__"})
    if (py::hasattr(given, attribute)) return py::str(given.attr(attribute)).cast<std::string>();
  const std::string text = py::str(given).cast<std::string>();
  const size_t dot = text.rfind('.');
  return dot == std::string::npos ? text : text.substr(dot + 1);
}

template <typename Value>
Value number_of(py::handle given, const char* what) {
  if (const auto index = py::reinterpret_steal<py::object>(PyNumber_Index(given.ptr()))) {
    try {
      return index.cast<Value>();
    } catch (const py::cast_error&) {  // negative, or too much
    }
  }
  PyErr_Clear();
  raise_invalid(std::string(what) + ": " + py::repr(given).cast<std::string>() + " is no number for it");
}

template <typename Value>
std::array<Value, Shape::rank_max> numbers_of(py::handle given, const char* what, size_t& count) {
  std::array<Value, Shape::rank_max> numbers{};
  count = 0;
  if (PyIndex_Check(given.ptr()) != 0) {
    numbers[count++] = number_of<Value>(given, what);
    return numbers;
  }
  if (!py::isinstance<py::iterable>(given))
    raise_invalid(std::string(what) + ": " + py::repr(given).cast<std::string>() +
                  " is neither a number nor several");
  for (const py::handle item : given) {
    if (count == numbers.size())
      raise_invalid(std::string(what) + ": more than " + std::to_string(Shape::rank_max) + " dimensions");
    numbers[count++] = number_of<Value>(item, what);
  }
  return numbers;
}

}  // namespace

void raise_invalid(const std::string& text) {
  raise(Error{ErrorCode::invalid_argument, 0, "terrace", text});
}

DType dtype_of(py::handle given) {
  const std::string text = dtype_text(given);
  if (const auto dtype = dtype_from_name(upper(text))) return *dtype;
  for (const auto& other : other_names)
    if (other.first == text) return other.second;
  raise_invalid("'" + text + "' is no element type: " + dtype_names() + ", or numpy's or torch's name of one");
}

Shape shape_of(py::handle given) {
  size_t rank = 0;
  const auto dimensions = numbers_of<uint64_t>(given, "shape", rank);
  return take(Shape::from({dimensions.data(), rank}));
}

Strides strides_of(py::handle given, uint32_t rank) {
  size_t count = 0;
  const Strides strides = numbers_of<int64_t>(given, "strides", count);
  if (count != rank)
    raise_invalid(std::to_string(count) + " strides for " + std::to_string(rank) + " dimensions");
  return strides;
}

py::tuple tuple_of(const Shape& shape) {
  py::tuple numbers(shape.rank());
  for (uint32_t i = 0; i < shape.rank(); ++i) numbers[i] = shape[i];
  return numbers;
}

py::tuple tuple_of(const Strides& strides, uint32_t rank) {
  py::tuple numbers(rank);
  for (uint32_t i = 0; i < rank; ++i) numbers[i] = strides[i];
  return numbers;
}

Tier tier_of(const std::string& name) {
  for (const Tier tier : {Tier::ddr, Tier::cxl, Tier::hbm})
    if (tier_name(tier) == name) return tier;
  raise_invalid("'" + name + "' is no tier: ddr, cxl, hbm");
}

TensorHint hint_of(py::handle name) {
  if (name.is_none()) return TensorHint::none;
  const std::string text = py::str(name).cast<std::string>();
  if (const auto hint = hint_from_name(text)) return *hint;
  raise_invalid("'" + text + "' is no hint: none, weights, activations, gradients, optimizer_state, kv_cache");
}

GuardWait guard_wait_of(const std::string& name) {
  constexpr std::pair<std::string_view, GuardWait> waits[] = {
      {"by_cost", GuardWait::by_cost}, {"always", GuardWait::always}, {"never", GuardWait::never}};
  for (const auto& wait : waits)
    if (wait.first == name) return wait.second;
  raise_invalid("'" + name + "' is no way to wait: by_cost, always, never");
}

SpaceCoherence coherence_of(const std::string& name) {
  if (name == "coherent") return SpaceCoherence::coherent;
  if (name == "noncoherent") return SpaceCoherence::noncoherent;
  raise_invalid("'" + name + "' is no coherence: coherent, noncoherent");
}

SpaceOwnership ownership_of(const std::string& name) {
  if (name == "manager") return SpaceOwnership::manager;
  if (name == "hosts") return SpaceOwnership::hosts;
  if (name == "locks") return SpaceOwnership::locks;
  if (name == "program") return SpaceOwnership::program;
  raise_invalid("'" + name + "' is no kind of ownership: manager, hosts, locks, program");
}

uint8_t flags_of(bool read_mostly, bool streaming, bool pinned) {
  return static_cast<uint8_t>((read_mostly ? TensorFlags::read_mostly : 0) |
                              (streaming ? TensorFlags::streaming : 0) | (pinned ? TensorFlags::pinned : 0));
}

uint64_t nanoseconds(py::handle seconds) {
  constexpr double longest_s = 9e9;
  if (seconds.is_none()) return static_cast<uint64_t>(longest_s * 1e9);
  const double number = PyFloat_AsDouble(seconds.ptr());
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (!(number >= 0)) raise_invalid(std::to_string(number) + " is no time in seconds");
  return static_cast<uint64_t>(std::min(number, longest_s) * 1e9);
}

std::string path_of(const py::object& given) {
  return py::module_::import("os").attr("fsencode")(given).cast<std::string>();
}

TensorMetadata metadata_of(const py::object& given) {
  TensorMetadata metadata;
  if (given.is_none()) return metadata;
  for (const auto& item : py::dict(given)) {
    if (!py::isinstance<py::str>(item.first) || !py::isinstance<py::str>(item.second))
      raise_invalid("metadata: " + py::repr(item.first).cast<std::string>() + ": keys and values are strings");
    metadata.emplace_back(item.first.cast<std::string>(), item.second.cast<std::string>());
  }
  return metadata;
}

py::object named(const char* type, const py::dict& fields) {
  return py::module_::import("terrace._types").attr(type)(**fields);
}

}  // namespace terrace::python
