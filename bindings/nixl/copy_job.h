// SPDX-License-Identifier: Apache-2.0
// Copies (copy.h) between memory of this process and memory of a lease, or of two. A lease that ends meanwhile is an error.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "bindings/nixl/copy.h"
#include "bindings/nixl/job.h"
#include "bindings/nixl/leased_memory.h"

namespace terrace::nixl {

// false: a lease behind one side has ended.
bool copy_all(const Copy* first, size_t count);
// This host's stores reach the memory; its next loads ask the memory. Nothing where the lease has ended.
void publish(const std::byte* memory, size_t bytes);
void acquire(const std::byte* memory, size_t bytes);

class CopyJob final : public Job {
 public:
  // `keep`: what must stay mapped meanwhile.
  CopyJob(std::vector<Copy> copies, std::vector<std::shared_ptr<MappedLease>> keep);
  bool is_small() const override { return small_; }

 private:
  nixl_status_t run(size_t task) override;

  std::vector<Copy> copies_;
  std::vector<std::pair<size_t, size_t>> parts_;  // of copies_: first, count
  std::vector<std::shared_ptr<MappedLease>> keep_;
  bool small_ = false;
};

}  // namespace terrace::nixl
