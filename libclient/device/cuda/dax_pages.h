// SPDX-License-Identifier: Apache-2.0
// Finds out whether memory is mapped from a dax device. A driver must not pin such pages: the fence of such a
// lease removes the device, and the kernel's removal waits for pins or, on some kernels, fails on them
// (docs/operations/devdax.md).
//
// Threads   Any.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string_view>

namespace terrace::device {

// Says of a part of the memory that it may be pinned all the same.
using MayPin = std::function<bool(std::span<const std::byte> part)>;

// By a text as /proc/self/maps has it. A path's last part tells: daxX.Y, in whatever folder it is seen. Parts that may be
// pinned do not count.
bool maps_show_dax(std::string_view maps, std::span<const std::byte> memory, const MayPin& may_pin = {});

// Of this process now. When the kernel does not say (no /proc), true: then nothing is pinned.
bool lies_on_dax(std::span<const std::byte> memory, const MayPin& may_pin = {});

// A lease whose holders are ended before its memory is taken (OnFence::kill), this process among them: pins end with it.
bool ends_with_its_holder(std::span<const std::byte> part);

}  // namespace terrace::device
