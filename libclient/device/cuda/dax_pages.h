// SPDX-License-Identifier: Apache-2.0
// Finds out whether memory is mapped from a dax device. A driver must not pin such pages: the fence of such a
// lease removes the device, and the kernel's removal waits for pins or, on some kernels, fails on them
// (docs/operations/devdax.md).
//
// Threads   Any.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace terrace::device {

// By a text as /proc/self/maps has it. A path's last part tells: daxX.Y, in whatever folder it is seen.
bool maps_show_dax(std::string_view maps, std::span<const std::byte> memory);

// Of this process now. When the kernel does not say (no /proc), true: then nothing is pinned.
bool lies_on_dax(std::span<const std::byte> memory);

}  // namespace terrace::device
