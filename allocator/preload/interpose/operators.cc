// SPDX-License-Identifier: Apache-2.0
// C++'s operators, in all forms. A program's allocator library (jemalloc, tcmalloc) exports its own, which
// would pass its blocks by this library's malloc; these come first and use malloc and free.
//
// This library is not linked to the C++ runtime, so it cannot throw: a request that fails is handed to the next
// definition, the runtime's, which calls the new-handler and throws as it must.
#include <dlfcn.h>
#include <malloc.h>
#include <stdlib.h>

#include <new>

#include "allocator/preload/libc/message.h"

namespace {

template <typename... Arguments>
void* next_operator(const char* name, Arguments... arguments) {
  auto* function = reinterpret_cast<void* (*)(Arguments...)>(dlsym(RTLD_NEXT, name));
  if (function == nullptr) terrace::preload::fatal("operator new: out of memory, and no C++ runtime to throw");
  return function(arguments...);
}

template <typename... Arguments>
void* next_nothrow_operator(const char* name, Arguments... arguments) noexcept {
  auto* function = reinterpret_cast<void* (*)(Arguments...)>(dlsym(RTLD_NEXT, name));
  return function == nullptr ? nullptr : function(arguments...);
}

void* allocate(size_t bytes) {
  return malloc(bytes == 0 ? 1 : bytes);
}

void* allocate(size_t bytes, std::align_val_t alignment) {
  return memalign(static_cast<size_t>(alignment), bytes == 0 ? 1 : bytes);
}

}  // namespace

void* operator new(size_t bytes) {
  void* block = allocate(bytes);
  return block != nullptr ? block : next_operator<size_t>("_Znwm", bytes);
}

void* operator new[](size_t bytes) {
  void* block = allocate(bytes);
  return block != nullptr ? block : next_operator<size_t>("_Znam", bytes);
}

void* operator new(size_t bytes, const std::nothrow_t& tag) noexcept {
  void* block = allocate(bytes);
  if (block != nullptr) return block;
  return next_nothrow_operator<size_t, const std::nothrow_t&>("_ZnwmRKSt9nothrow_t", bytes, tag);
}

void* operator new[](size_t bytes, const std::nothrow_t& tag) noexcept {
  void* block = allocate(bytes);
  if (block != nullptr) return block;
  return next_nothrow_operator<size_t, const std::nothrow_t&>("_ZnamRKSt9nothrow_t", bytes, tag);
}

void* operator new(size_t bytes, std::align_val_t alignment) {
  void* block = allocate(bytes, alignment);
  return block != nullptr ? block
                          : next_operator<size_t, std::align_val_t>("_ZnwmSt11align_val_t", bytes, alignment);
}

void* operator new[](size_t bytes, std::align_val_t alignment) {
  void* block = allocate(bytes, alignment);
  return block != nullptr ? block
                          : next_operator<size_t, std::align_val_t>("_ZnamSt11align_val_t", bytes, alignment);
}

void* operator new(size_t bytes, std::align_val_t alignment, const std::nothrow_t& tag) noexcept {
  void* block = allocate(bytes, alignment);
  if (block != nullptr) return block;
  return next_nothrow_operator<size_t, std::align_val_t, const std::nothrow_t&>(
      "_ZnwmSt11align_val_tRKSt9nothrow_t", bytes, alignment, tag);
}

void* operator new[](size_t bytes, std::align_val_t alignment, const std::nothrow_t& tag) noexcept {
  void* block = allocate(bytes, alignment);
  if (block != nullptr) return block;
  return next_nothrow_operator<size_t, std::align_val_t, const std::nothrow_t&>(
      "_ZnamSt11align_val_tRKSt9nothrow_t", bytes, alignment, tag);
}

void operator delete(void* block) noexcept {
  free(block);
}
void operator delete[](void* block) noexcept {
  free(block);
}
void operator delete(void* block, size_t) noexcept {
  free(block);
}
void operator delete[](void* block, size_t) noexcept {
  free(block);
}
void operator delete(void* block, const std::nothrow_t&) noexcept {
  free(block);
}
void operator delete[](void* block, const std::nothrow_t&) noexcept {
  free(block);
}
void operator delete(void* block, std::align_val_t) noexcept {
  free(block);
}
void operator delete[](void* block, std::align_val_t) noexcept {
  free(block);
}
void operator delete(void* block, size_t, std::align_val_t) noexcept {
  free(block);
}
void operator delete[](void* block, size_t, std::align_val_t) noexcept {
  free(block);
}
void operator delete(void* block, std::align_val_t, const std::nothrow_t&) noexcept {
  free(block);
}
void operator delete[](void* block, std::align_val_t, const std::nothrow_t&) noexcept {
  free(block);
}
