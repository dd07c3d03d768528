// SPDX-License-Identifier: Apache-2.0
// KV spaces for Python: the objects, and what their calls have in common.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/python/handles.h"
#include "terrace/kv_members.h"
#include "terrace/kv_space.h"

namespace terrace::python {

// A space with the memory that it lies in, and the namespace of calls that name none.
struct KvSpaceObject {
  std::shared_ptr<KvSpace> space;
  KvNamespace name_space;
  // Of the block that was read last: most have one size, so the next get() makes room for it at once.
  std::shared_ptr<std::atomic<uint64_t>> usual_bytes = std::make_shared<std::atomic<uint64_t>>(0);
  std::shared_ptr<JoinedKvSpace> joined = nullptr;  // the same, unless it is of bare memory
  std::shared_ptr<KvSpace> open() const;            // as SessionObject's
  void close() {
    joined.reset();
    space.reset();
  }
};

struct KvViewObject {
  struct Held {
    std::shared_ptr<KvSpace> space;  // goes after the view
    KvView view;
  };
  std::shared_ptr<const Held> held;  // none: let go
  ArrayView array() const;
};

struct KvWriteObject {
  struct Held {
    std::shared_ptr<KvSpace> space;  // goes after the write
    KvWrite write;
  };
  std::shared_ptr<Held> held;          // none: over. Buffers and arrays over it keep it, too
  std::vector<py::object> handed_out;  // as WriteObject's
  ArrayView array() const;
};

using KvSpaceClass = py::class_<KvSpaceObject>;

// Of a str or bytes, whose memory it is.
std::string_view kv_key(py::handle key);

// Keys, and the objects that have their bytes.
struct KvKeys {
  explicit KvKeys(const py::object& given);
  py::tuple objects;
  std::vector<std::string_view> views;
};

inline bool kv_is_missing(const Error& error) {
  return error.code == ErrorCode::not_found;
}

KvNamespace kv_namespace(const std::string& name);
// None: the space's.
KvNamespace kv_namespace(const KvSpaceObject& self, const py::object& given);

// A block's bytes as elements of a type, in rows of a shape. Raises InvalidArgument where they are not.
ArrayView kv_shaped(ArrayView bytes, const py::object& dtype, const py::object& shape);
ArrayView kv_bytes(std::span<const std::byte> bytes, bool read_only, std::shared_ptr<const void> keep);

// Of the module, and of its class KvSpace.
void add_kv_view(py::module_& module);
void add_kv_write(py::module_& module);
void add_kv_reads(KvSpaceClass& spaces);
void add_kv_writes(KvSpaceClass& spaces);

}  // namespace terrace::python
