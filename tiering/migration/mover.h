// SPDX-License-Identifier: Apache-2.0
// Moves a run of granules between two backings under running code, by page-table switches.
//
// Place     engine decides → Mover moves. One run at a time: contiguous in addresses and in both backings.
// Threads   One thread calls; any others use the memory meanwhile, system calls included. No thread forks
//           during a call (the owner holds forks off): between a switch and its madvise a child would share the
//           granule.
// Memory    libc only.
//
// demote   write-protect, copy through the aliases, map the other backing in place, wake. Readers never wait,
//          writers wait from the first step to the last. The source must be shared memory (tmpfs, memfd).
// promote  a scratch mapping of the target, registered for missing and minor faults, takes the place (mremap);
//          from then on every access waits; copy; unregister; wake. The source may be anything that maps (dax).
// proved   both directions as promote, and before the copy the kernel is asked for users of the source's pages
//          beside page tables (pins.h). Such a user would read or write pages that the program has left. Then
//          the source goes back in place; no store is lost, since none was possible meanwhile.
//
// Invariants
//   M1  At every moment a byte is reached at its address in exactly one backing, and every store that was done
//       before a copy began is in that copy; stores during the copy wait until the switch.
//   M2  A move that fails leaves the run mapped to its source, and wakes all waiting threads. If the source is
//       gone by then, they get the signal of any access to it.
//   M3  While moves are proved, no move leaves a page that was pinned when its copy began.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiering/migration/copy_team.h"
#include "tiering/migration/pins.h"
#include "tiering/migration/userfault.h"

namespace terrace::tiering {

// One end of a move. `alias`: where this process's engine maps the same bytes of the file for itself.
struct Backing {
  int fd = -1;
  uint64_t offset = 0;
  char* alias = nullptr;
  bool huge = false;  // pages that are first touched there may be huge: granules of 2 MiB and more only, since
                      // a huge page that two granules share cannot be given back for one of them
};

struct MoveTimes {
  uint64_t stall_ns = 0;  // from the first access that could wait to the wake-up
  uint64_t copy_ns = 0;
  bool lost = false;       // memory of either side went away during the copy: undone with EFAULT
  Pins pins = Pins::none;  // other than none: why a proved move was undone
};

// Maps `backing` at a place of this process, as every run of a tiered range is: shared, not inherited by a
// fork.
bool map_backing(char* at, size_t bytes, const Backing& backing);

class Mover {
 public:
  // `scratch_bytes`: the longest run of a promotion. Returns 0 or an errno, as Userfault::start.
  int start(int userfault_device, size_t scratch_bytes);
  void stop();
  bool started() const { return userfault_.started(); }
  size_t run_bytes_max() const { return scratch_bytes_; }

  // From now on moves are proved, which needs shared memory in runs of whole huge pages. 0 or an errno, as
  // PinQuestion::start: the kernel cannot be asked, and nothing is proved.
  int prove_moves() { return pins_.start(); }
  bool proves() const { return pins_.started(); }
  PinQuestion& pins() { return pins_; }

  // 0, or the errno that undid it: EBUSY (the source is pinned, or cannot be asked: MoveTimes::pins), ENOMEM
  // (mappings or memory), EFAULT (MoveTimes::lost), others as the kernel says. `bytes` is a multiple of the page,
  // at most run_bytes_max(). The target's pages should exist already: filling holes takes far longer than copying.
  int demote(char* at, size_t bytes, const Backing& from, const Backing& to, MoveTimes* times);
  int promote(char* at, size_t bytes, const Backing& from, const Backing& to, MoveTimes* times);

  // Puts what this process has for itself of a private mapping of `file` (since a fork) into the file, and maps
  // that shared in its place: as demote, with both ends in one file. Right only where nobody else maps the
  // file's pages. On failure it is private still, and what the file holds there is of no use to anybody.
  int fold(char* at, size_t bytes, const Backing& file, MoveTimes* times);

  // Copies with this many threads, at most 8, from 4 MiB on (1: the calling one only). They are made now:
  // nothing is allocated or started while accesses wait. 0 or an errno; fewer threads then.
  int set_copy_threads(uint32_t threads);
  // How demote and promote copy. Without it memory that goes away during a copy is SIGBUS in the copying thread.
  void set_copy(CopyBlock by);
  // In a child of fork, which has neither the threads nor the mappings: forgets them, touching nothing of the
  // parent's.
  void abandon();

 private:
  int put_back(char* at, size_t bytes, const Backing& from);
  bool copy(char* to, const char* from, size_t bytes, MoveTimes* times);
  // A mapping of `backing` at the scratch place, with its attributes: a child that a raw system call makes
  // never inherits a granule that is shared. False with errno.
  bool map_aside(size_t bytes, const Backing& backing);
  // Moves it over what is mapped at `at`, in one step. False with errno: that may be gone.
  bool put_in_place(char* at, size_t bytes, const Backing& backing);
  void clear_scratch(size_t bytes);
  bool copy_own_pages(char* to, const char* from, size_t bytes);

  Userfault userfault_;
  char* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
  CopyBlock copy_ = nullptr;
  CopyTeam team_;
  PinQuestion pins_;
};

uint64_t monotonic_ns();

}  // namespace terrace::tiering
