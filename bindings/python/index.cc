// SPDX-License-Identifier: Apache-2.0
#include "bindings/python/index.h"

#include <array>
#include <utility>

#include "bindings/python/common.h"
#include "bindings/python/values.h"

namespace terrace::python {
namespace {

// One dimension after the other of what `key` picks.
class Index {
 public:
  explicit Index(const Picked& of) : of_(of), offset_(of.offset), empty_(of.shape.elements() == uint64_t{0}) {}

  void pick(py::handle key) {
    const py::tuple items =
        py::isinstance<py::tuple>(key) ? py::reinterpret_borrow<py::tuple>(key) : py::make_tuple(key);
    size_t named = 0;
    bool open = false;
    for (const py::handle item : items) {
      if (!item.is_none() && item.ptr() != Py_Ellipsis) ++named;
      if (item.ptr() == Py_Ellipsis && std::exchange(open, true)) raise_index("more than one ...");
    }
    const uint32_t rank = of_.shape.rank();
    if (named > rank) raise_index(std::to_string(named) + " indices");
    for (const py::handle item : items) {
      if (item.is_none())
        add(1, 0);
      else if (item.ptr() == Py_Ellipsis)
        for (size_t more = rank - named; more > 0; --more) all();
      else if (PySlice_Check(item.ptr()) != 0)
        slice(item);
      else
        one(item);
    }
    while (at_ < rank) all();
  }

  Picked picked() const {
    return {.shape = take(Shape::from({dimensions_.data(), rank_})),
            .strides = strides_,
            .offset = offset_,
            .name = of_.name};
  }

 private:
  [[noreturn]] void raise_index(const std::string& what) const {
    throw py::index_error("tensor " + quoted_name(of_.name) + ": " + what + " for " + of_.shape.to_string());
  }

  void add(uint64_t dimension, int64_t stride) {
    if (rank_ == Shape::rank_max) raise_index("more than eight dimensions");
    dimensions_[rank_] = dimension;
    strides_[rank_++] = stride;
  }

  void all() {
    add(of_.shape[at_], of_.strides[at_]);
    ++at_;
  }

  void one(py::handle item) {
    const py::ssize_t size = static_cast<py::ssize_t>(of_.shape[at_]);
    if (PyIndex_Check(item.ptr()) == 0)
      throw py::type_error("a tensor is indexed by integers, slices, ... and None, not by " +
                           py::repr(py::type::of(item)).cast<std::string>() +
                           "; numpy() and torch() take the rest");
    const py::ssize_t given = PyNumber_AsSsize_t(item.ptr(), PyExc_IndexError);
    if (given == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    const py::ssize_t index = given < 0 ? given + size : given;
    if (index < 0 || index >= size)
      raise_index("index " + std::to_string(given) + " is outside dimension " + std::to_string(at_));
    if (!empty_) offset_ += index * of_.strides[at_];
    ++at_;
  }

  void slice(py::handle item) {
    const py::ssize_t size = static_cast<py::ssize_t>(of_.shape[at_]);
    py::ssize_t start = 0, stop = 0, step = 0;
    if (PySlice_Unpack(item.ptr(), &start, &stop, &step) != 0) throw py::error_already_set();
    const py::ssize_t length = PySlice_AdjustIndices(size, &start, &stop, step);
    const int64_t stride = of_.strides[at_];
    if (length > 0 && !empty_) offset_ += start * stride;
    add(static_cast<uint64_t>(length), length > 1 ? stride * step : stride);
    ++at_;
  }

  const Picked& of_;
  int64_t offset_;
  bool empty_;
  uint32_t at_ = 0;  // the dimension that comes next
  std::array<uint64_t, Shape::rank_max> dimensions_{};
  Strides strides_{};
  uint32_t rank_ = 0;
};

}  // namespace

namespace {

Shape wanted_shape(const py::args& dimensions, const Picked& of) {
  const py::object given =
      dimensions.size() == 1 ? py::reinterpret_borrow<py::object>(dimensions[0]) : py::object(dimensions);
  py::list numbers;
  py::ssize_t unknown = -1;
  uint64_t known = 1;
  for (const py::handle one : PyIndex_Check(given.ptr()) != 0 ? py::make_tuple(given) : py::tuple(given)) {
    if (PyIndex_Check(one.ptr()) != 0 && PyNumber_AsSsize_t(one.ptr(), nullptr) == -1) {
      if (unknown >= 0) raise_invalid("reshape: more than one -1");
      unknown = static_cast<py::ssize_t>(numbers.size());
      numbers.append(1);
      continue;
    }
    numbers.append(one);
    const Shape dimension = shape_of(one);
    if (__builtin_mul_overflow(known, dimension[0], &known)) raise_invalid("reshape: more than 2^64 elements");
  }
  const uint64_t elements = of.shape.elements().value_or(0);
  if (unknown >= 0 && known != 0 && elements % known == 0)
    numbers[static_cast<size_t>(unknown)] = py::int_(elements / known);
  const Shape shape = shape_of(numbers);
  if (shape.elements() != elements || (unknown >= 0 && known == 0))
    raise_invalid("tensor " + quoted_name(of.name) + ": " + of.shape.to_string() + " has " +
                  std::to_string(elements) + " elements, which do not make " +
                  py::str(given).cast<std::string>());
  return shape;
}

}  // namespace

Picked reshaped(const py::args& dimensions, const Picked& of) {
  const Shape shape = wanted_shape(dimensions, of);
  Picked result{.shape = shape, .strides = row_major_strides(shape), .offset = of.offset, .name = of.name};
  if (shape.elements() == uint64_t{0}) return result;
  // Groups of dimensions, of the old and of the new shape, with as many elements each: the old ones of a group must
  // lie one behind the other.
  uint32_t old_at = 0, new_at = 0;
  while (old_at < of.shape.rank() && new_at < shape.rank()) {
    const uint32_t old_first = old_at, new_first = new_at;
    uint64_t old_elements = of.shape[old_at++], new_elements = shape[new_at++];
    while (old_elements != new_elements) {
      if (old_elements < new_elements)
        old_elements *= of.shape[old_at++];
      else
        new_elements *= shape[new_at++];
    }
    int64_t stride = 0;  // of the group's last element that is not alone in its dimension
    bool first = true;
    for (uint32_t i = old_at; i-- > old_first;) {
      if (of.shape[i] == 1) continue;
      if (!std::exchange(first, false) && of.strides[i] != stride)
        raise_invalid("tensor " + quoted_name(of.name) + ": a view of " + of.shape.to_string() +
                      " that does not lie in a row cannot become " + shape.to_string() +
                      " without a copy: reshape what numpy() or torch() gives");
      stride = of.strides[i] * static_cast<int64_t>(of.shape[i]);
    }
    int64_t step = 1;
    for (uint32_t i = old_at; i-- > old_first;)
      if (of.shape[i] != 1) {
        step = of.strides[i];
        break;
      }
    for (uint32_t i = new_at; i-- > new_first;) {
      result.strides[i] = step;
      step *= static_cast<int64_t>(shape[i]);
    }
  }
  return result;
}

Picked pick(py::handle key, const Picked& of) {
  Index index(of);
  index.pick(key);
  return index.picked();
}

}  // namespace terrace::python
