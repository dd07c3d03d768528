// SPDX-License-Identifier: Apache-2.0
// A KV space of several leases or files: its members. Each of them is a KV space of its own (terrace/kv_space.h), and
// a list that all of them have makes one space of them. It grows by a member, and shrinks by one, while programs use it.
//
//   a look-up finds what any member has; a key has one block, but where two put it in one moment
//   a put goes to the member that the key's hash prefers, or to another one that has free room or a free part
//   a list is replaced by putting the next one before the older one goes: there is a whole one all the time
//   each holder looks for a newer list once a second: it maps new members, and lets go of those that left
//   a member whose memory is gone costs its blocks; the others go on
//
// Any member leads to all of them. Who attaches one of them by KvSpace::attach sees that one alone.
//
// Bytes: docs/formats/kv_space.md. Design: docs/design/0049-kv-members.md. Use: docs/kv.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "terrace/kv_space.h"

namespace terrace {

inline constexpr size_t kv_members_max = 64;
inline constexpr size_t kv_member_where_bytes_max = 1024;

// A member's memory in this process.
struct KvMemberMemory {
  std::span<std::byte> bytes;
  std::shared_ptr<OwnershipSource> ownership = nullptr;  // none: as KvAttachOptions::ownership
  std::shared_ptr<const void> keep = nullptr;            // keeps the bytes mapped
  LeaseEpoch lease_epoch = {};                           // for a member that is formatted
};

// Maps the member that is called `where` in the list: a lease's id or label, or, with a '/', a path. Called by any
// thread, one call at a time.
using KvOpenMember = std::function<Result<KvMemberMemory>(const std::string& where)>;

// Leases by a session, which must be open as long as the space is used; files by their paths, with ownership by locks
// on them. `session` nullptr: files only.
KvOpenMember kv_members_by_session(std::shared_ptr<class Session> session);
// A file or a dax device by its path; a lease that is attached. Errors: as Mapping::map; invalid_argument: memory that
// cannot have several holders
Result<KvMemberMemory> open_kv_member_file(const std::string& path);
// To read and write. A path in a list of members is other holders' word: what is neither a file nor a dax device is not
// opened at all, as there are devices that act when they are. Errors: of the system; invalid_argument
Result<UniqueFd> open_kv_memory(const std::string& path);
Result<KvMemberMemory> kv_member_of_lease(std::shared_ptr<class Lease> lease);
// What the list of members calls it: its label, or its id.
std::string kv_where_of_lease(class Lease& lease);

struct KvMembersOptions {
  KvAttachOptions attach = {};       // `ownership` is not used: each KvMemberMemory has one
  KvOpenMember open = nullptr;       // nullptr: other members count as lost
  uint64_t look_ns = 1'000'000'000;  // how often it looks for a newer list
};

struct KvShrunk {
  uint64_t moved = 0, moved_bytes = 0;  // blocks that other members have now
  uint64_t left_behind = 0;             // for which there was no room: they went with the member
  uint32_t holders = 0;                 // that still had it at the end: they read in place, or are stopped
};

// Threads   All calls from any thread. A view or a write that is in a member that leaves, or that is lost, keeps its
//           memory mapped until it ends.
// Errors    As KvSpace. lease_expired only once no member is left.
class JoinedKvSpace : public KvSpace {
 public:
  // `where`: of `first`, as others would open it.
  // Errors    as KvSpace::attach, of the first one. The others are tried again and again.
  static Result<std::unique_ptr<JoinedKvSpace>> attach(KvMemberMemory first, const std::string& where,
                                                       KvMembersOptions options);

  virtual std::vector<KvMemberInfo> members() = 0;

  // Makes the memory that is called `where` a member. Memory of zeros is formatted as the first member is. Done again
  // after a crash it completes what was begun; of a member that was leaving it makes one that stays.
  // Errors    already_exists   there is something else in that memory, or another space
  //           busy             no member has a free part, which the list is put into, or others change it all the time
  //           limit_exceeded   kv_members_max; invalid_argument: `where`; as of the callback and KvSpace::format
  virtual Status grow(const std::string& where) = 0;

  // Makes a member leave. No new blocks go there from some seconds on; what it has moves to free room of the others,
  // first what is kept and what was used last; then it leaves the list, and holders let go of it once they do not read
  // in place there. Waits for that, at most `wait_ns`. Done again after a crash it completes what was begun. A member
  // that is lost only leaves the list.
  // Errors    not_found         no such member
  //           invalid_argument  it is the only one that stays
  //           busy              as grow()
  virtual Result<KvShrunk> shrink(const std::string& where, uint64_t wait_ns) = 0;

  // Looks for a newer list now.
  virtual void look() = 0;
};

}  // namespace terrace
