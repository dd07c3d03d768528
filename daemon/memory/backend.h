// The seam between the manager's decisions and memory that can be mapped: carve an object for a lease,
// hand out its descriptor, fence it, scrub it. One implementation a kind of memory; BackendSet (backend_set.h)
// is all of them together, and finds the one that an object belongs to by its name: `lease-7` is emulated,
// `devdax:lease-7` belongs to the kind before the colon.
//
// Place     Called by daemon/event_loop on its worker threads, for the state machine's decisions.
// Threads   Its two workers; calls that are quick(), usage(), open(), discover() and attributes() also on the
//           event loop's, so that those four must not wait for hardware.
// Crash     A crash can cut carve, fence and scrub off anywhere; each can be done again.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/memory/tier_attributes.h"
#include "daemon/model/kinds.h"
#include "daemon/model/rows.h"
#include "daemon/model/store_id.h"

namespace terrace::daemon {

// A device as the machine shows it. Seen is not adopted: nothing is written to it yet.
struct SeenDevice {
  std::string serial;
  std::string backend;
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;
  std::string detail;  // in words: how it is reached, or what is wrong and how to fix it
  // In words, what adopting it destroys: "2 dax devices, one mapped by process 12 (vllm)"; who uses them is
  // known to inspect() only. Empty: nothing.
  std::string contents = {};
};

// What the manager has adopted and what should be on it, for backends that find their objects again by where
// they lie.
struct KnownDevice {
  DeviceId id;
  std::string serial;
  std::string backend;
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;
};
struct KnownObject {
  std::string name;
  uint64_t bytes = 0;
  std::vector<Extent> extents;
};

// CXL memory devices to be made one region, in their order of interleaving.
struct RegionRequest {
  std::vector<std::string> memdevs;  // serials
  uint32_t granularity_bytes = 0;    // of the interleaving; 0: the largest that all decoders can do
  uint64_t bytes = 0;                // 0: all there is
};

// What two machines write and read to find out whether they see the same memory: a cache line.
using Nonce = std::array<uint8_t, 64>;

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

// Memory that was fenced and cannot be used again yet.
enum class Kept : uint8_t {
  no,
  yes,    // somebody still holds pages of it
  ended,  // it is, and nobody holds any more: erase() works
};

enum class ObjectAccess : uint8_t { read_only, read_write };

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view kind() const = 0;

  // --- devices ---
  // Those of this kind, adopted or not, as refresh() saw them last. Writes to none.
  virtual std::vector<SeenDevice> discover() = 0;
  // Looks at the hardware again: at the start, about once a second, and when the kernel reports a change. On a
  // worker; changes as little and costs as little as can be: whose the memory is that is not ours, and who uses
  // it, is for inspect().
  // Errors    where not all could be looked at (for want of descriptors, say): discover() stands as it was, and
  //           what it lacks is not gone; busy, where the next look will do
  virtual Status refresh() { return {}; }
  // Whether the last refresh() saw all there is of devices of that backend.
  virtual bool saw_all(std::string_view backend) const {
    (void)backend;
    return true;
  }
  // As discover(), looked at now, and with who uses what in `contents`: looks through all processes, so only
  // when somebody asks. On a worker.
  virtual std::vector<SeenDevice> inspect() {
    (void)refresh();
    return discover();
  }
  // Whether objects on devices of that backend are whole when a device comes back that was not there at a
  // start.
  virtual bool outlasts_absence(std::string_view backend) const {
    (void)backend;
    return false;
  }
  virtual TierAttributes attributes(const std::string& serial) const {
    (void)serial;
    return {};
  }
  // The adopted devices of every kind, whenever they change.
  virtual void know_devices(const std::vector<KnownDevice>& devices) { (void)devices; }
  // Before list() at a start and a recovery: the objects that the rows name.
  virtual void know_objects(const std::vector<KnownObject>& objects) { (void)objects; }
  // Whether something stands against taking the device over; changes nothing. On a worker.
  // Errors    busy   in use: says by whom
  virtual Status may_take_over(const std::string& serial) {
    (void)serial;
    return {};
  }
  // A device was adopted, durably, and know_devices() names it: what was on it goes. Done again it goes on.
  // Errors    busy   in use; the adoption is undone
  virtual Status take_over(const std::string& serial) {
    (void)serial;
    return {};
  }
  // Composes memdevs into a region, which is a device from then on: its serial. On a worker.
  virtual Result<std::string> create_region(const RegionRequest& request) {
    (void)request;
    return cannot("create a region");
  }
  virtual Status destroy_region(const std::string& serial) {
    (void)serial;
    return cannot("destroy a region");
  }
  // Gives a dax device to the kernel as memory of a CPU-less node, which is a device from then on: its serial.
  virtual Result<std::string> online(const std::string& serial) {
    (void)serial;
    return cannot("bring online");
  }
  // The way back.
  // Errors    busy   pages of it are in use
  virtual Status offline(const std::string& serial) {
    (void)serial;
    return cannot("take offline");
  }

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

  // --- objects ---

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

  // --- memory that several machines see at once ---

  // Whether objects of that name lie on such memory. Only then are the next four asked for; `extents` are those
  // of a lease that nobody has mapped on any machine.
  virtual bool is_shared(std::string_view name) const {
    (void)name;
    return false;
  }
  // Reads the first bytes of the extents, then writes `put` there, both past this machine's caches. What was
  // written to counts as not erased from before it is written.
  virtual Result<Nonce> exchange(const std::string& name, const std::vector<Extent>& extents,
                                 const Nonce& put) {
    (void)name, (void)extents, (void)put;
    return cannot("prove what it is");
  }
  // Erases what is not known to be erased.
  virtual Status clean(const std::string& name, const std::vector<Extent>& extents) {
    (void)name, (void)extents;
    return {};
  }
  // Leaves nothing of the extents in this machine's caches: changes reach the memory, and what other machines
  // write from now on is seen here.
  virtual Status write_back(const std::string& name, const std::vector<Extent>& extents) {
    (void)name, (void)extents;
    return {};
  }
  // Directories of sysfs below which the kernel shows the dax devices of adopted memory, for whom has to shut
  // holders out when the daemon cannot (daemon/agent/guard.h).
  virtual std::vector<std::string> dax_regions() const { return {}; }

  // Whether carving, fencing or scrubbing that much of this object takes only microseconds now, so that the
  // event loop may do it itself instead of handing it to its worker.
  virtual bool quick(std::string_view name, uint64_t bytes) const {
    (void)name, (void)bytes;
    return false;
  }

  // Every object there is, for recovery and checks.
  virtual Result<std::vector<ObservedObject>> list() = 0;
  virtual Result<ObservedObject> usage(const std::string& name) = 0;

  // In words, what the memory is: "tmpfs at ... huge=always" or why there are no huge pages.
  virtual std::string describe_memory() const = 0;
  virtual bool huge_pages(std::string_view name) const = 0;

 protected:
  Error cannot(const char* what) const {
    return Error{.code = ErrorCode::unsupported,
                 .where = what,
                 .detail = "memory of the kind '" + std::string(kind()) + "' cannot do that"};
  }
};

}  // namespace terrace::daemon
