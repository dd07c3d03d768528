// SPDX-License-Identifier: Apache-2.0
/* Memory that must not move, for programs that register heap memory with a device: RDMA, VFIO, GPUs, SCSI
 * generic, or an io_uring that the preload library cannot see.
 *
 * Under `terrace run` the library libterrace_malloc.so moves granules (2 MiB) of a program's large allocations
 * between DDR and CXL memory. The program's own loads and stores, and system calls that copy, never notice. A
 * device that knows the old pages would go on using them after a move. A held granule does not move.
 *
 * Both symbols are weak: without the library they are null, and nothing needs to be held.
 *
 *     if (terrace_hold) terrace_hold(buffer, bytes);
 *     region = ibv_reg_mr(domain, buffer, bytes, access);
 *     ...
 *     ibv_dereg_mr(region);
 *     if (terrace_unhold) terrace_unhold(buffer, bytes);
 *
 * Threads   Any. terrace_hold waits for a move that is under way (well below a millisecond).
 */
#ifndef TERRACE_HOLD_H
#define TERRACE_HOLD_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Holds all granules that [address, address + bytes) touches; holds nest. Returns 1 on success. Returns 0 if no
 * granule of it can move: then do not call terrace_unhold. After a fork no granule moves any more, in parent
 * and child. */
int terrace_hold(const void* address, size_t bytes) __attribute__((weak));

/* Ends one terrace_hold with the same arguments. */
void terrace_unhold(const void* address, size_t bytes) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif
