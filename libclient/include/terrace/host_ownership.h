// SPDX-License-Identifier: Apache-2.0
// Ownership of a tensor space's parts among several hosts without a common manager. Each host has a fixed set
// of parts, and its kernel decides which of its processes owns which part.
//
// Hosts ask each other nothing and share no lock. So it works on memory without coherent caches, and goes on
// when another host is gone. The price: a process of another host that dies leaves some state behind. It stays
// until a process of that host owns the part again, or the program says that the host is gone. That state is
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
  // This machine's number; no other machine may have it. Two machines with one number would own the same parts,
  // each by its own kernel's locks, and overwrite each other's tensors. A claim notices the other machine's
  // entry in the part (already_exists); two claims at the same moment do not notice each other.
  uint32_t host = 0;
  // Says that another host is shut out for good: powered off or fenced, with no store of it left in a cache.
  // It is called from any thread, by several at once, with locks held, and about once a millisecond while a
  // thread waits. So it must answer at once from its own data, and must not call the space. None: no host is
  // ever gone.
  std::function<bool(uint32_t host)> is_gone = nullptr;
  uint64_t space_offset = 0;  // where the space begins in the file, as for ownership_by_locks
  // true: this host may take over parts that its number owned before the machine's start, or by an earlier
  // device node or file. false: such a part is refused (already_exists), unless its owner gave it back, since
  // it could be another machine's. Set it only if no other machine can have the number.
  bool restarted = false;
};

// Divides `parts` into one range for each host, in order. The sizes are equal, or the first ranges have one
// part more.
//
// Errors    invalid_argument  no host, more than 64 parts, or fewer parts than hosts
Result<std::vector<HostRange>> equal_host_ranges(uint32_t parts, uint32_t hosts);

// The source for AttachOptions::ownership. `fd` is the memory as this host sees it (a dax device, a file): its
// processes exclude each other by locks on it, as with ownership_by_locks. Such locks are the inode's: all of
// them must open the same device node or file. Another node of the same device (made by mknod, or a container's
// own) has other locks; containers get the host's node by a bind mount.
//
// An epoch holds a number that grows with each owner of a part, the owner's host, and 20 bits that stand for
// this boot of this machine and this inode. The number continues from the part's last epoch, so it survives
// processes, restarts and changes of hosts. A part whose last owner is another host is refused, unless
// `is_gone` says that the other one is gone. A part that this host's number owns elsewhere, or left by a death
// elsewhere or before a restart, is refused unless `restarted`. So hosts with conflicting ranges, or with one
// number, are detected, except when they claim one part at the same moment. Clones of a running virtual
// machine cannot be distinguished.
//
// Units     Parts and hosts are counted from 0.
// Errors    invalid_argument   a range is empty or beyond part 63; hosts beyond 63; ranges overlap (says which
//                              hosts and which part); this host has no range
//           permission_denied  as ownership_by_locks
//           unavailable        /proc/sys/kernel/random/boot_id cannot be read
//           of claim (and so of TensorSpace::attach):
//           busy               the part is another host's, or a process of this host owns it; says which
//           already_exists     an owner with this host's number, elsewhere or before a restart, has the part
//           permission_denied  another host was its last owner, or one by another kind of source
//           limit_exceeded     the part's epochs are used up (2^37): format the space anew
//           unavailable        the source was made by the parent process, before a fork
// Ownership Holds a descriptor of its own; `fd` may be closed.
// Threads   Any.
Result<std::shared_ptr<OwnershipSource>> ownership_by_host_ranges(int fd, HostOwnershipOptions options);

}  // namespace terrace
