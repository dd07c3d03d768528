// SPDX-License-Identifier: Apache-2.0
// The handles of the C interface. Each owns its dependencies through shared pointers, so that they may be
// freed in any order.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "terrace/checkpoint.h"
#include "terrace/mapping.h"
#include "terrace/session.h"
#include "terrace/tensor_pool.h"
#include "terrace/tensor_space.h"
#include "terrace/terrace_c.h"

struct terrace_session {
  std::shared_ptr<terrace::Session> session;
  std::string tenant;
};

struct terrace_lease {
  std::shared_ptr<terrace::Lease> lease;  // with its session, which renews it
};

struct terrace_mapping {
  std::shared_ptr<terrace::Mapping> mapping;
};

struct terrace_pool {
  std::unique_ptr<terrace::TensorPool> pool;
};

struct terrace_device {
  std::shared_ptr<terrace::DeviceMemory> device;
};

struct terrace_tensor {
  std::shared_ptr<terrace::Tensor> tensor;
};

struct terrace_guard {
  std::shared_ptr<terrace::Tensor> tensor;  // goes after the guard
  std::optional<terrace::ReadGuard> read = {};
  std::optional<terrace::WriteGuard> write = {};
};

struct terrace_move {
  std::shared_ptr<terrace::Tensor> tensor;  // a move of a tensor that is gone is cancelled
  std::shared_ptr<terrace::MoveHandle> handle;
};

struct terrace_checkpoints {
  std::unique_ptr<terrace::CheckpointDirectory> directory;
};

struct terrace_checkpoint {
  std::unique_ptr<terrace::CheckpointWrite> write;  // with its tensors' memory
};

struct terrace_tensors {
  std::vector<std::shared_ptr<terrace::Tensor>> tensors;
  terrace::TensorMetadata metadata;
};

struct terrace_ownership {
  std::shared_ptr<terrace::OwnershipSource> source;
};

struct terrace_space {
  std::shared_ptr<terrace::TensorSpace> space;  // with its mapping, where it was given one
};

struct terrace_shared {
  std::shared_ptr<terrace::TensorSpace> space;
  terrace::SharedTensor tensor;
  std::string name;  // its own, ends with a zero
};

struct terrace_pin {
  struct Held {
    std::shared_ptr<terrace::TensorSpace> space;  // goes after the pin
    terrace::SharedTensor tensor;
    terrace::TensorPin pin;
  };
  std::shared_ptr<const Held> held;
};

struct terrace_write {
  std::shared_ptr<terrace::TensorSpace> space;  // goes after the write
  std::optional<terrace::TensorWrite> write;    // none: published
  uint64_t bytes = 0;
};
