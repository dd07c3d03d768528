// SPDX-License-Identifier: Apache-2.0
// Blocks that are freed twice, or were never handed out: what is found of them beside the fast path, which
// looks at nothing.
//
//   where a thread's cache cannot take a block   its page is looked up in jemalloc's map of extents: large
//                                                blocks freed twice, blocks of jemalloc's own extents freed
//                                                twice, addresses of the stack, of globals, inside of large
//                                                blocks
//   where a slab has become empty                each of its blocks is free exactly if the count is right: a
//                                                block freed twice has been counted twice, and the slab, which
//                                                would go back with blocks in use, ends the process instead
//
// Not found: a small block that is twice in one thread's cache, and addresses inside of small blocks.
//
// jemalloc's structures are those of 5.3.0 (embed.cmake insists). The map is compared with what jemalloc itself
// says of one block, and not used where that differs.
//
// Threads   Any.
#include <stdint.h>
#include <stdlib.h>

#include "allocator/preload/libc/message.h"
#include "allocator/whole/small.h"

using namespace terrace::preload;

extern "C" {

extern char je_arena_emap_global[];
void je_rtree_ctx_data_init(void* context);
uint64_t* je_rtree_leaf_elm_lookup_hard(void* thread, void* tree, void* context, uintptr_t key, bool dependent,
                                        bool init_missing);
void __real_je_arena_dalloc_bin_locked_handle_newly_empty(void* thread, void* arena, void* slab, void* bin);
}

namespace terrace::preload {
namespace {

// The map: a root of pointers to leaves, an entry a page each.
constexpr size_t root_offset = 120;
constexpr unsigned page_shift = 12, level_bits = 18;
constexpr size_t context_bytes_max = 1024;

bool can_look = false;

// 0: no extent has been there.
uint64_t map_entry(const void* block) {
  const auto address = reinterpret_cast<uintptr_t>(block);
  constexpr uintptr_t index_max = (uintptr_t{1} << level_bits) - 1;
  auto* const* root = reinterpret_cast<uint64_t* const*>(je_arena_emap_global + root_offset);
  if (address >> (page_shift + 2 * level_bits) != 0) return 0;
  // acquire: pairs with the release store of a new leaf in jemalloc (rtree.c)
  const uint64_t* leaf = __atomic_load_n(root + (address >> (page_shift + level_bits)), __ATOMIC_ACQUIRE);
  return leaf == nullptr ? 0 : __atomic_load_n(leaf + (address >> page_shift & index_max), __ATOMIC_RELAXED);
}

// Of an entry: the extent's record in the middle, and whether it is in use (state 0).
bool is_in_use(uint64_t entry) {
  constexpr uint64_t record_bits = 0x0000'ffff'ffff'ff80;
  return (entry & record_bits) != 0 && (entry >> 2 & 7) == 0;
}

// The record of a slab: the number of its free blocks, and a bit for each of them.
struct Slab {
  uint64_t bits;
  uint64_t others[7];
  uint64_t free_bits[8];
};
constexpr unsigned free_count_shift = 28;
constexpr uint64_t free_count_max = 1023;

}  // namespace

namespace {

__attribute__((constructor)) void start_checks() {
  void* const block = malloc(1);
  alignas(16) static char context[context_bytes_max];
  je_rtree_ctx_data_init(context);
  const uint64_t* entry = je_rtree_leaf_elm_lookup_hard(nullptr, je_arena_emap_global, context,
                                                        reinterpret_cast<uintptr_t>(block), false, false);
  can_look = entry != nullptr && *entry == map_entry(block) && is_in_use(*entry);
  free(block);
}

}  // namespace

bool is_small_block(const void* block) {
  if (block == nullptr || !can_look) return true;
  return reinterpret_cast<uintptr_t>(block) % 16 == 0 && is_in_use(map_entry(block));
}

void refuse_block(const void*) {
  fatal("free(): invalid pointer, or double free detected: no block of the heap is in use at that address");
}

void refuse_realloc(const void*) {
  fatal("realloc(): invalid pointer: no block of the heap is in use at that address");
}

}  // namespace terrace::preload

extern "C" void __wrap_je_arena_dalloc_bin_locked_handle_newly_empty(void* thread, void* arena, void* slab,
                                                                     void* bin) {
  const auto* record = static_cast<const Slab*>(slab);
  const uint64_t counted = record->bits >> free_count_shift & free_count_max;  // as many as the slab has
  uint64_t free_blocks = 0;
  for (uint64_t word = 0; word < (counted + 63) / 64; ++word)
    free_blocks += static_cast<uint64_t>(__builtin_popcountll(record->free_bits[word]));
  if (free_blocks != counted)
    fatal("free(): double free detected: more blocks of a slab were freed than are in it");
  __real_je_arena_dalloc_bin_locked_handle_newly_empty(thread, arena, slab, bin);
}
