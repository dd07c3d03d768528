// SPDX-License-Identifier: Apache-2.0
// The chains of a part's hash table: `linked` words between a record and its home, kept by the part's owner.
// `Table` has: uint32_t records(); uint64_t word(index); void set_word(index, word, Step); uint32_t home(index), of
// the live record there.
#pragma once

#include <cstdint>

#include "libclient/coherence/memory/memory.h"
#include "libclient/coherence/word.h"

namespace terrace::coherence {

// A gone record behind which no chain goes on ends its own chain; so do the gone ones before it.
template <typename Table>
void unlink_tail(Table&& table, uint32_t index) {
  const uint32_t mask = table.records() - 1;
  if (has(table.word((index + 1) & mask), layout::word_linked)) return;
  for (uint32_t steps = 0; steps < table.records(); ++steps, index = (index - 1) & mask) {
    const uint64_t word = table.word(index);
    if (!has(word, layout::word_linked) || has(word, layout::word_live)) return;
    table.set_word(index, word & ~layout::word_linked, Step::none);
  }
}

template <typename Table>
void link(Table&& table, uint32_t index) {
  const uint64_t word = table.word(index);
  if (!has(word, layout::word_linked))
    table.set_word(index, word | layout::word_linked, Step::take_over_written_back);
}

// Everything between a live record and its home is linked, so that its name is found. `steps`: what is left of them; at
// 0 the caller links all.
template <typename Table>
void link_chain(Table&& table, uint32_t index, uint64_t* steps) {
  const uint32_t mask = table.records() - 1;
  for (uint32_t at = table.home(index); at != index && *steps > 0; at = (at + 1) & mask, --*steps)
    link(table, at);
}

// Enough for all chains that honest owners make.
template <typename Table>
uint64_t link_steps(Table&& table) {
  return 64 * uint64_t{table.records()};
}

// Records far from their homes, as only a hostile owner leaves them, get every record linked: right as well, only
// slower to search.
template <typename Table>
void link_all(Table&& table) {
  for (uint32_t index = 0; index < table.records(); ++index) link(table, index);
}

template <typename Table>
void link_chains(Table&& table) {
  uint64_t steps = link_steps(table);
  for (uint32_t index = 0; index < table.records(); ++index)
    if (has(table.word(index), layout::word_live)) link_chain(table, index, &steps);
  if (steps == 0) link_all(table);
}

}  // namespace terrace::coherence
