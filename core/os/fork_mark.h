// SPDX-License-Identifier: Apache-2.0
// Whether this process is the one that made an object, or a child of fork that inherited it, without asking the kernel
// each time: a page that the kernel empties in children, however they were made (MADV_WIPEONFORK, Linux 4.14).
//
// Place     core/os; for objects whose memory is shared with the parent, and which a child must not use.
// Threads   Any.
#pragma once

#include <sys/types.h>

#include <atomic>

namespace terrace::os {

class ForkMark {
 public:
  ForkMark();
  ~ForkMark();
  ForkMark(const ForkMark&) = delete;
  ForkMark& operator=(const ForkMark&) = delete;

  // In the process that made it. A child that shares the parent's memory (vfork, CLONE_VM) counts as the parent.
  bool is_here() const {
    return mark_ == nullptr ? is_same_process() : mark_->load(std::memory_order_relaxed) != 0;
  }

 private:
  bool is_same_process() const;

  const pid_t process_;
  std::atomic<int>* mark_ = nullptr;  // where the kernel has none, the process's number serves
};

}  // namespace terrace::os
