// SPDX-License-Identifier: Apache-2.0
// Objects that are put or read: one task each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bindings/nixl/job.h"
#include "bindings/nixl/objects.h"

namespace terrace::nixl {

struct ObjectTransfer {
  std::string key;
  std::vector<ObjectPiece> pieces;  // of a write: all of the object, in order
};

class ObjectJob final : public Job {
 public:
  ObjectJob(Objects& objects, bool writes, std::vector<ObjectTransfer> transfers);
  bool is_small() const override { return small_; }

 private:
  nixl_status_t run(size_t task) override;

  Objects& objects_;
  const bool writes_;
  const std::vector<ObjectTransfer> transfers_;
  bool small_ = false;
};

// Puts the pieces in order. Returns why they make up no object that can be put; empty: they do.
std::string order_for_write(ObjectTransfer& transfer, uint64_t bytes_max);

}  // namespace terrace::nixl
