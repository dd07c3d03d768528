// The seam between the manager's decisions and memory that can be mapped: carve an object for a lease,
// hand out its descriptor, fence it, scrub it. One implementation a kind of memory (emulated now; devdax,
// pmem namespace and numa deepen this).
//
// Place     Called by daemon/event_loop on its worker thread with what the state machine decided.
// Threads   One worker thread; usage() and open() also from the event loop's thread.
// Crash     carve, fence and scrub can each be cut off anywhere and be done again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/state/rows.h"

namespace terrace::daemon {

// A device as the machine shows it. Seen is not adopted: nothing is written to it yet.
struct SeenDevice {
  std::string serial;
  std::string backend;
  uint64_t capacity_bytes = 0;
  uint64_t granule_bytes = 0;
  std::string detail;  // in words: how it is reached, or what is wrong and how to mend it
};

struct ObservedObject {
  std::string name;
  uint64_t bytes = 0;      // its size as a holder could map it; 0 once fenced
  uint64_t allocated = 0;  // bytes it really occupies
};

enum class ObjectAccess : uint8_t { read_only, read_write };

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view kind() const = 0;
  virtual std::vector<SeenDevice> discover() = 0;

  // Makes the object `name` of `bytes` with all its memory reserved, reading as zeros.
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

  // Every object there is, for recovery and checks.
  virtual Result<std::vector<ObservedObject>> list() = 0;
  virtual Result<ObservedObject> usage(const std::string& name) = 0;

  // In words, what the memory is: "tmpfs at ... huge=always" or why there are no huge pages.
  virtual std::string describe_memory() const = 0;
  virtual bool huge_pages() const = 0;
};

}  // namespace terrace::daemon
