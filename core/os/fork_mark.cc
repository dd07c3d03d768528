// SPDX-License-Identifier: Apache-2.0
#include "core/os/fork_mark.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace terrace::os {
namespace {

size_t page_bytes() {
  return static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

ForkMark::ForkMark() : process_(::getpid()) {
  void* const page = ::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, page_bytes(), MADV_WIPEONFORK) != 0) {
    ::munmap(page, page_bytes());
    return;
  }
  mark_ = new (page) std::atomic<int>(1);
}

ForkMark::~ForkMark() {
  if (mark_ != nullptr) ::munmap(mark_, page_bytes());
}

bool ForkMark::is_same_process() const {
  return ::getpid() == process_;
}

}  // namespace terrace::os
