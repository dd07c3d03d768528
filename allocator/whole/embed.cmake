# SPDX-License-Identifier: Apache-2.0
# libterrace_small.a: Debian's libjemalloc_pic.a, its public functions but malloc and free renamed (calloc to small_calloc),
# and the functions that extents.cc replaces made weak. hidden.map keeps all of it from the programs.
find_library(TERRACE_JEMALLOC_PIC libjemalloc_pic.a)
if(NOT TERRACE_JEMALLOC_PIC)
  message(FATAL_ERROR "libjemalloc_pic.a is missing: apt-get install libjemalloc-dev")
endif()
# extents.cc and returns.cc know this version's extents.
find_path(TERRACE_JEMALLOC_INCLUDE jemalloc/jemalloc.h)
file(STRINGS ${TERRACE_JEMALLOC_INCLUDE}/jemalloc/jemalloc.h terrace_small_version REGEX "JEMALLOC_VERSION \"5[.]3[.]0-")
if(NOT terrace_small_version)
  message(FATAL_ERROR "allocator/whole is made for jemalloc 5.3.0, ${TERRACE_JEMALLOC_INCLUDE}/jemalloc/jemalloc.h is another one")
endif()
set(terrace_small_archive ${CMAKE_CURRENT_BINARY_DIR}/libterrace_small.a)
set(terrace_small_edits)
foreach(name calloc realloc memalign aligned_alloc valloc posix_memalign malloc_usable_size mallocx rallocx
        xallocx sallocx dallocx sdallocx nallocx mallctl mallctlnametomib mallctlbymib malloc_stats_print malloc_conf
        malloc_conf_2_conf_harder malloc_message pthread_atfork
        _Unwind_Backtrace _Unwind_GetIP mmap munmap)
  list(APPEND terrace_small_edits --redefine-sym ${name}=small_${name})
endforeach()
foreach(name ehooks_default_alloc_impl ehooks_default_dalloc_impl ehooks_default_destroy_impl
        ehooks_default_commit_impl ehooks_default_decommit_impl ehooks_default_purge_lazy_impl
        ehooks_default_purge_forced_impl ehooks_default_zero_impl exp_grow_init)
  list(APPEND terrace_small_edits --weaken-symbol je_${name})
endforeach()
# Functions of which returns.cc and checks.cc have something to do before or after.
set(terrace_small_wraps LINKER:--wrap=je_pac_init LINKER:--wrap=je_pac_destroy LINKER:--wrap=je_ecache_init
  LINKER:--wrap=je_extent_dalloc_wrapper LINKER:--wrap=je_eset_insert LINKER:--wrap=je_tsd_tcache_enabled_data_init
  LINKER:--wrap=je_iarena_cleanup LINKER:--wrap=je_sz_boot
  LINKER:--wrap=je_arena_dalloc_bin_locked_handle_newly_empty
  LINKER:--wrap=je_emap_try_acquire_edata_neighbor LINKER:--wrap=je_emap_try_acquire_edata_neighbor_expand)
add_custom_command(OUTPUT ${terrace_small_archive}
  COMMAND ${CMAKE_OBJCOPY} ${terrace_small_edits} ${TERRACE_JEMALLOC_PIC} ${terrace_small_archive}
  DEPENDS ${TERRACE_JEMALLOC_PIC} VERBATIM)
add_custom_target(terrace_small DEPENDS ${terrace_small_archive})
