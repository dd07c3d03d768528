// SPDX-License-Identifier: Apache-2.0
// The objects that leases are carved into: made, opened, fenced, erased, handed over, listed. Part of Backend
// (backend.h), which says who calls on which thread.
//
// Crash     A crash can cut carve, fence and scrub off anywhere; each can be done again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/model/rows.h"
#include "daemon/model/store_id.h"

namespace terrace::daemon {

struct KnownObject {
  std::string name;
  uint64_t bytes = 0;
  std::vector<Extent> extents;
};

struct ObservedObject {
  std::string name;
  uint64_t bytes = 0;      // its size as a holder could map it; 0 once fenced
  uint64_t allocated = 0;  // bytes it really occupies
  // Somebody may have been given it (hand_out()). false: certainly nobody, since it was carved.
  bool handed_out = false;
  std::string device = {};  // the serial of the one that it lies on, where its kind knows
};

// Whose the memory is that a backend finds and makes.
struct StoreClaim {
  StoreId store;
  std::string owner;        // in words: "state file /var/lib/terrace/state.db", "manager at host:7440"
  std::string remedy;       // the option that names another owner: "--state"
  bool is_new = false;      // the store never had a lease: objects that nobody marked are not its own
  bool take_over = false;   // an operator's word: what is another store's is this one's from now on
  bool check_only = false;  // whether it would be refused: nothing is written
};

// What came of the ending of an object's holders. A status that is not ok: one of them has not ended, which `holder_not_ended`
// says in its detail.
struct HoldersEnded {
  Status status = {};
  std::vector<std::string> ended = {};  // that this call ended: "python3[1234]"
};
inline constexpr const char* holder_not_ended = "has not ended within";

// Memory that was fenced and cannot be used again yet.
enum class Kept : uint8_t {
  no,
  yes,    // somebody still holds pages of it
  ended,  // it is, and nobody holds any more: erase() works
};

enum class ObjectAccess : uint8_t { read_only, read_write };

class Objects {
 public:
  virtual ~Objects() = default;

  // --- whose they are ---

  // Marks, durably for as long as the memory lasts, what there is and what will be as that store's. After
  // refresh(), before anything is made or destroyed; done again it is no error.
  // Errors    invalid_argument   another store's memory is there: says which one, and what to do. Nothing changed
  virtual Status claim(const StoreClaim& claim) {
    (void)claim;
    return {};
  }
  // The object is about to be given to a holder, whose lease is durable: list() says so from now on.
  virtual Status hand_out(const std::string& name) {
    (void)name;
    return {};
  }

  // Before list() at a start and a recovery: the objects that the rows name.
  virtual void know_objects(const std::vector<KnownObject>& objects) { (void)objects; }

  // --- one object ---

  // Makes the object `name` of `bytes` with all its memory reserved, reading as zeros; not handed out yet.
  // Errors    capacity_exhausted  the memory behind the pool is short; nothing is left behind
  //           already_exists      an object of that name is there
  virtual Status carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) = 0;

  // A descriptor of the object for a holder; read_only ones cannot be mapped writable.
  // Errors    not_found   no such object
  virtual Result<UniqueFd> open(const std::string& name, ObjectAccess access) = 0;

  // Shuts every holder out: old mappings give SIGBUS from here on. Done again is no error; an object that
  // does not exist is fenced.
  virtual Status fence(const std::string& name) = 0;

  // Erases and checks a fenced object, then removes it. An object that does not exist is scrubbed.
  // Returns   the bytes whose erasure was verified.
  // Errors    io_error    still holds memory, or cannot be removed: the extents must be quarantined
  virtual Result<uint64_t> scrub(const std::string& name) = 0;

  // Whether erasing is work of its own: then the manager calls erase() for all of a fenced lease, piece by
  // piece from its end and within its bandwidth, before scrub(). false: the fence gave the memory back to a
  // kernel that hands it out zeroed.
  virtual bool erases_in_place(std::string_view name) const {
    (void)name;
    return false;
  }
  // Erases `length` bytes from `offset` of a fenced lease's memory, counted along its extents, and reads a
  // sample of them back.
  // Errors    io_error   not erased: the extents must be quarantined
  virtual Status erase(const std::string& name, const std::vector<Extent>& extents, uint64_t offset,
                       uint64_t length) {
    (void)name, (void)extents, (void)offset, (void)length;
    return {};
  }

  // Whether a fenced lease's memory is kept for pages that somebody still holds without a mapping: erase() says busy as
  // long as they do. Changes nothing; `yes` where it cannot be looked at. On a worker.
  virtual Kept kept(const std::string& name, const std::vector<Extent>& extents) {
    (void)name, (void)extents;
    return Kept::no;
  }

  // Ends the processes of the object's host that agreed to that (on_fence kill), before fence() or rebind(), and waits for
  // their ends. For objects of this machine the engine has its HolderEnder, which waits without a thread. Done again it is
  // no error. On a worker.
  virtual HoldersEnded end_holders(const std::string& name) {
    (void)name;
    return {};
  }

  // Makes an object that is `from_bytes` long `to_bytes` long; where it grew it reads as zeros and its memory
  // is reserved. One of `to_bytes` already is done.
  // Errors    capacity_exhausted  as carve; the object is as it was
  //           busy                it is neither that long nor that long: fenced, or changed by its holder
  virtual Status resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                        const std::vector<Extent>& extents) {
    (void)name, (void)from_bytes, (void)to_bytes, (void)extents;
    return cannot("resize");
  }

  // Shuts every holder of `from` out and gives its bytes to the new object `to` on the same extents, with no
  // more memory than one object needs. `from` is gone afterwards. Done again it goes on where a crash cut it
  // off.
  // Errors    corrupt   neither object holds the bytes any more
  virtual Status rebind(const std::string& from, const std::string& to, uint64_t bytes,
                        const std::vector<Extent>& extents) {
    (void)from, (void)to, (void)bytes, (void)extents;
    return cannot("rebind");
  }

  // Copies all `bytes` of one object to another of that size: a move of a lease that nobody holds.
  virtual Status copy(const std::string& from, const std::string& to, uint64_t bytes) {
    (void)from, (void)to, (void)bytes;
    return cannot("copy");
  }

  // Whether carving, fencing or scrubbing that much of this object takes only microseconds now, so that the
  // event loop may do it itself instead of handing it to its worker.
  virtual bool quick(std::string_view name, uint64_t bytes) const {
    (void)name, (void)bytes;
    return false;
  }

  // --- all of them ---

  // Every object there is, for recovery and checks.
  virtual Result<std::vector<ObservedObject>> list() = 0;
  virtual Result<ObservedObject> usage(const std::string& name) = 0;

  // In words, what the memory is: "tmpfs at ... huge=always" or why there are no huge pages.
  virtual std::string describe_memory() const = 0;
  virtual bool huge_pages(std::string_view name) const = 0;

 protected:
  // What a kind says of what it has no way to do.
  virtual Error cannot(const char* what) const = 0;
};

}  // namespace terrace::daemon
