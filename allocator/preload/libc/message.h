// SPDX-License-Identifier: Apache-2.0
// Lines to stderr without stdio or allocation.
//
// Threads   Any.
#pragma once

#include <cstdint>
#include <span>

namespace terrace::preload {

// Remembers what stderr is at start-up. Later lines are written only while descriptor 2 is still that file:
// a daemon that closed it may have a data file there.
void remember_stderr();

// "terrace: <name>[pid]: <text>", cut at 400 bytes. `%u` in `text` stands for `number`, `%s` for `word`.
void say(const char* text, uint64_t number = 0);
void say(const char* text, const char* word);
// One number for each `%u`, in their order.
void say_numbers(const char* text, std::span<const uint64_t> numbers);

[[noreturn]] void fatal(const char* text, uint64_t number = 0);

}  // namespace terrace::preload
