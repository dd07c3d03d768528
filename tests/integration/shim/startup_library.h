// SPDX-License-Identifier: Apache-2.0
// What the library of startup_cases.cc offers: linked to the program (its constructors run before the preload
// library's), opened as a plugin, opened with RTLD_DEEPBIND, and in a namespace of its own.
#pragma once

#include <cstddef>

extern "C" {

// All that its constructor allocated is as it was; then gives back half of it and makes the rest longer.
bool library_is_well();
// A block of the size that holds `value`, of whatever malloc this library calls; and back to its free.
unsigned char* library_make(size_t bytes, unsigned char value);
void library_drop(unsigned char* block);
// Allocates for the calling thread; freed by a destructor at the thread's end.
void library_use_thread();
// fork() as this library calls it. The child's exit code is 0 when `block` holds `bytes` of `value` there.
bool library_fork_reads(const unsigned char* block, size_t bytes, unsigned char value);
}
