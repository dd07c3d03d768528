// SPDX-License-Identifier: Apache-2.0
#pragma once

// A function that this library puts in the place of the C library's.
#define TERRACE_EXPORT extern "C" __attribute__((visibility("default")))
