// SPDX-License-Identifier: Apache-2.0
// Chooses the chunks that a part should claim so that a tensor fits. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "libclient/coherence/free_space.h"
#include "libclient/coherence/geometry.h"

namespace terrace::coherence {

// By chunk: whether nobody has it.
using FreeChunks = std::vector<bool>;

// The holes of a part as they would be if it had all the free chunks, too.
FreeSpace with_chunks(const FreeSpace& own, const FreeChunks& free_chunks, const Geometry& geometry);

// The free chunks that lie under one hole of `bytes`: as few as possible; of equally many those that use up a hole of
// the part's own; else in the longest run, at chunk `home` if that is there, or in its middle. So parts begin at
// different places, seldom want the same chunk, and have room to grow on. Nothing: there is no such hole.
// Not empty, as long as no hole of `own` has as many bytes.
std::optional<std::vector<uint32_t>> chunks_for(uint64_t bytes, const FreeSpace& own,
                                                const FreeChunks& free_chunks, uint32_t home,
                                                const Geometry& geometry);

}  // namespace terrace::coherence
