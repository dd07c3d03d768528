// SPDX-License-Identifier: Apache-2.0
// Futexes of the window without FUTEX_PRIVATE_FLAG: the kernel finds them by their page, not by their address.
// See futexes.cc.
#pragma once

#include <cstddef>

namespace terrace::preload {

// From now on the page of this memory stays the same to the kernel, over moves and forks, as an anonymous page
// does. For good. Any address; any thread; errno is left alone.
void pin_futex(const void* address, size_t bytes);
// The same for `count` entries of futex_waitv's kind, but those that are private.
void pin_waiters(const void* waiters, size_t count);

}  // namespace terrace::preload
