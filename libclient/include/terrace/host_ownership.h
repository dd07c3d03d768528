// Ownership of a tensor space's parts among several hosts that no manager reaches together: each host has parts
// of its own, fixed beforehand, and its kernel says which of its processes owns which of them.
//
// Between hosts nothing is asked and nothing is locked, so it works on memory without coherent caches, and it
// goes on when another host is gone. The price: what a process of another host left when it died stays until a
// process of that host owns the part again, or the program says that the host is gone. That is
//   a pin                       its slot is not written again, and its tensor is not removed: busy
//   an open write of one slot   readers are told busy, not unavailable
//   a name being created        create() of that name is busy on other hosts, open() says not_found
//   a removal, half done        pin() ends with busy ("is written faster than it can be read"); read() works
// TensorSpace::attach without AttachOptions::part takes such parts of its own host first.
//
// Protocol: docs/design/0016-write-ownership.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "terrace/tensor_space.h"

namespace terrace {

inline constexpr uint32_t space_hosts_max = 64;

// Parts [first_part, first_part + parts) belong to `host`, 0 to 63. A host may have several ranges.
struct HostRange {
  uint32_t host = 0;
  uint32_t first_part = 0;
  uint32_t parts = 0;
};

// Epochs from here on are given by hosts; those of other kinds of sources are smaller.
inline constexpr uint64_t host_epochs_from = uint64_t{1} << 63;

struct HostOwnershipOptions {
  std::vector<HostRange> ranges;  // of all hosts, the same on each
  // This one's number, which no other machine may have: two with one number would own the same parts, each as
  // its own kernel's locks allow, and overwrite each other's tensors. Who claims a part finds out from what the
  // other one stored there (already_exists); two that claim it in the same moment do not.
  uint32_t host = 0;
  // Whether another host is shut out for good: powered off or fenced, so that it stores nothing any more and
  // none of its stores is still in a cache. Asked from any thread, by several at once, while locks are held and
  // in a loop while somebody waits (about once a millisecond): it answers at once from what it knows, and calls
  // nothing of the space. None: no host ever is.
  std::function<bool(uint32_t host)> is_gone = nullptr;
  uint64_t space_offset = 0;  // where the space begins in the file, as for ownership_by_locks
  // This host may take over what processes with its number owned before it was started, or by a device node or
  // file that was there before. Without it such a part is refused (already_exists), unless it was given back:
  // it could be another machine's. Say it only where the number is known to be this machine's alone.
  bool restarted = false;
};

// `parts` in as many equal ranges as there are hosts, in order; the first ones have one more where it does not
// come out even.
//
// Errors    invalid_argument  no host, more than 64 parts, or fewer parts than hosts
Result<std::vector<HostRange>> equal_host_ranges(uint32_t parts, uint32_t hosts);

// The source for AttachOptions::ownership. `fd` is the memory as this host sees it (a dax device, a file): its
// processes exclude each other by locks on it, as with ownership_by_locks. Such locks are the inode's: all of
// them must open the same device node or file. Another node of the same device (made by mknod, or a container's
// own) has other locks; containers get the host's node by a bind mount.
//
// An epoch is a number that grows with each owner of a part; with it go the owner's host, and 20 bits that tell
// this boot of this machine and this inode from others. Numbers go on from what the part itself has, so they
// survive processes, restarts and hosts that come and go. An epoch also tells who was the last owner: a part
// that another host had is refused, unless `is_gone` says that this host is gone; one that somebody with this
// host's number owns or left when it died, elsewhere or before a restart, unless `restarted`. So two hosts with
// different ranges, or with one number, find out, except those that claim one part in the same moment. Clones
// of a running virtual machine are not told apart.
//
// Units     Parts and hosts are counted from 0.
// Errors    invalid_argument   a range is empty or beyond part 63; hosts beyond 63; ranges overlap (says which
//                              hosts and which part); this host has no range
//           permission_denied  as ownership_by_locks
//           unavailable        /proc/sys/kernel/random/boot_id cannot be read
//           of claim (and so of TensorSpace::attach):
//           busy               the part is another host's, or a process of this host owns it; says which
//           already_exists     who has this host's number elsewhere, or had it before a restart, owns the part
//           permission_denied  another host was its last owner, or one by another kind of source
//           limit_exceeded     the part's epochs are used up (2^37): format the space anew
//           unavailable        the source is of the process that forked this one
// Ownership Holds a descriptor of its own; `fd` may be closed.
// Threads   Any.
Result<std::shared_ptr<OwnershipSource>> ownership_by_host_ranges(int fd, HostOwnershipOptions options);

}  // namespace terrace
