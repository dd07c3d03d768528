// SPDX-License-Identifier: Apache-2.0
// The state of the Python objects. Leases keep their session (which renews them), tensors their pool,
// shared tensors, pins and writes their space and its memory: an object that Python still has never loses
// its dependencies.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bindings/python/arrays.h"
#include "bindings/python/common.h"
#include "terrace/checkpoint.h"
#include "terrace/mapping.h"
#include "terrace/model.h"
#include "terrace/session.h"
#include "terrace/tensor_pool.h"
#include "terrace/tensor_space.h"

namespace terrace::python {

// How another process connects to the same manager.
struct Origin {
  std::string socket, tenant, host;
};

struct SessionObject {
  std::shared_ptr<Session> session;
  std::shared_ptr<const Origin> origin = nullptr;

  // Raises where it was closed. What is called through it outlives a close() by another thread meanwhile.
  std::shared_ptr<Session> open() const;
};

struct LeaseObject {
  std::shared_ptr<Session> session;
  std::shared_ptr<Lease> lease;  // with the session
  std::shared_ptr<const Origin> origin = nullptr;
};

struct MappingObject {
  std::shared_ptr<Mapping> mapping;
  ArrayView array() const;
};

struct ModelObject {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Origin> origin;       // of its lease
  std::shared_ptr<const Model> open() const;  // as SessionObject's
};

// All of a tensor, or a view of it.
struct ModelTensorObject {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Origin> origin;
  TensorView base;  // in the model
  Shape shape = {};
  Strides strides = {};
  int64_t offset = 0;  // of the first element, counted from the base's
  ArrayView array() const;
};

struct PoolObject {
  std::shared_ptr<TensorPool> pool;
  std::shared_ptr<TensorPool> open() const;  // as SessionObject's
};

struct TensorObject {
  std::shared_ptr<Tensor> tensor;  // with its pool
  int64_t offset = 0;              // of the first element, counted from the base's
  std::shared_ptr<TensorPool> pool = nullptr;
  ArrayView array() const;
};

struct MoveObject {
  std::shared_ptr<Tensor> tensor;
  std::shared_ptr<MoveHandle> handle;
};

// An open guard, which arrays that it hands out keep; closed it still keeps the tensor.
struct GuardObject {
  py::object tensor;
  ArrayView view;
  std::optional<ReadGuard> read;
  std::optional<WriteGuard> write;
  ArrayView array() const { return view; }
};

struct CheckpointsObject {
  std::shared_ptr<CheckpointDirectory> directory;
  std::string path;
};

// One that is being written; with its tensors, and so with their pool.
struct CheckpointObject {
  std::shared_ptr<CheckpointWrite> write;
  std::string name;
};

// Where another process finds a space: in which lease.
struct SpacePlace {
  std::shared_ptr<const Origin> origin;
  uint64_t lease = 0, epoch = 0;
};

// A space with the memory that it lies in.
struct SpaceObject {
  std::shared_ptr<TensorSpace> space;
  std::shared_ptr<const SpacePlace> place = nullptr;  // of a lease's
  std::shared_ptr<TensorSpace> open() const;          // as SessionObject's
};

struct SharedObject {
  std::shared_ptr<TensorSpace> space;
  SharedTensor tensor;
  std::shared_ptr<const SpacePlace> place = nullptr;  // as SpaceObject's
};

struct PinObject {
  struct Held {
    std::shared_ptr<TensorSpace> space;  // goes after the pin
    TensorPin pin;
  };
  std::shared_ptr<const Held> held;  // none: let go
  SharedTensor tensor;
  ArrayView array() const;
};

struct WriteObject {
  std::shared_ptr<TensorSpace> space;  // goes after the write
  std::optional<TensorWrite> write;    // none: published or given up
  SharedTensor tensor;
  uint64_t version = 0;
  std::vector<py::object> handed_out;  // weak references to the arrays over it
  ArrayView array() const;
};

// Arguments of terrace._models.reopen_space. Raises TypeError for a space that is in no lease.
py::tuple place_of(const std::shared_ptr<const SpacePlace>& place);

// Makes the exception for a thing that was closed.
[[noreturn]] void raise_closed(const char* what);

}  // namespace terrace::python
