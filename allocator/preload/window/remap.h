// SPDX-License-Identifier: Apache-2.0
// mremap of memory of the window: in place, or to plain memory at a new place. Pages are moved or copied there
// with the program's settings (protection, locks, advice); the old ones are unmapped.
//
// Place     mappings.cc, which exports the call.
// Threads   Any; heap_lock is not held.
#pragma once

#include <cstddef>
#include <cstdint>

#include "allocator/preload/window/window.h"

namespace terrace::preload {

inline constexpr int fixed_noreplace = 0x100000;  // MAP_FIXED_NOREPLACE

inline bool is_aligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % page_bytes == 0;
}
inline size_t whole_pages(size_t bytes) {
  return (bytes + page_bytes - 1) & ~(page_bytes - 1);
}

// As mremap; `old_address` is in the window.
void* remap(char* old_address, size_t old_bytes, size_t new_bytes, int flags, void* new_address);

// By the kernel's own copying, which says EFAULT where a page must not be read.
bool copy_pages(char* to, char* from, size_t bytes);

}  // namespace terrace::preload
