// SPDX-License-Identifier: Apache-2.0
// The interface of pinning_calls.cc for syscalls.cc: the same protection for calls by number.
#pragma once

#include <cstddef>

struct iocb;

namespace terrace::preload {

// The program's memory is in the hands of a ring from here on: which of it, nobody tells.
void ring_made();
void hold_requests_for_good(long count, struct iocb** requests);
// read, write, pread or pwrite of window memory on a descriptor with O_DIRECT: made here, its memory held.
// False: not such a call.
bool transfer_by_number(long number, long fd, void* buffer, size_t bytes, long offset, long* result);

}  // namespace terrace::preload
