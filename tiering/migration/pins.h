// SPDX-License-Identifier: Apache-2.0
// Asks the kernel whether pages of shared memory have references beside page tables and the page cache: of a
// device, an I/O under way, a pipe, a registered buffer, another process that reads or writes them.
//
// Place     Mover asks, with the run's place in the program already taken by the target: from then on no thread
//           reaches the old pages through the program's page tables, so the answer stays right.
// Threads   One thread calls, which alone uses the alias.
// Memory    libc only.
//
// How       The kernel splits a huge page of shared memory only while it has no references beyond those of
//           the page cache and of mappings; MADV_COLD for a part of it makes the kernel try. Small
//           pages are joined to a huge one first (MADV_COLLAPSE), which the kernel refuses for the same reason.
// Source    docs/design/0020-pinned-pages.md
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::tiering {

enum class Pins : uint8_t {
  none,     // proved
  some,     // pinned, or busy in the kernel for a moment: ask again later
  unknown,  // this memory cannot be asked
};

class PinQuestion {
 public:
  PinQuestion() = default;
  ~PinQuestion() { stop(); }
  PinQuestion(const PinQuestion&) = delete;
  PinQuestion& operator=(const PinQuestion&) = delete;

  // Tries the question on a page that is pinned and on one that is not. 0, or an errno: ENOTTY (no
  // PAGEMAP_SCAN, before Linux 6.7), EOPNOTSUPP (it was answered wrongly, as with huge pages switched off).
  int start();
  // Also in a child of fork.
  void stop();
  bool started() const { return pagemap_fd_ >= 0; }

  // Outside any stall; `alias` is an engine's own mapping, `bytes` whole huge pages. none: ask() can be asked.
  // `*joined`: small pages became huge ones for it.
  Pins prepare(char* alias, size_t bytes, bool* joined);
  // The alias is the only mapping of these bytes. After `none`, and perhaps after the others, they lie in small
  // pages; they are never changed.
  Pins ask(char* alias, size_t bytes);

 private:
  bool is_huge(const char* at) const;
  Pins ask_one(char* at);
  int try_it();

  int pagemap_fd_ = -1;
};

}  // namespace terrace::tiering
