// SPDX-License-Identifier: Apache-2.0
// Gives dax memory to the kernel as memory of a CPU-less node, and takes it back, for `terrace pool create
// --system-ram`. A dax region is given as a whole, by one device that spans it.
//
//   online    [make a device over the region] -> unbind device_dax -> bind kmem -> bring every block online, in
//             zone Movable, so that it can be taken offline again
//   offline   take every block offline -> unbind kmem -> bind device_dax
//
// The state of each step is read from the kernel, so that both go on where they were interrupted. A failed step
// is undone: a region that could not be brought online is a devdax device again, one that could not be taken
// offline is online again.
//
// Requests are on record, a line a region in a small file beside the manager's store: `<serial> online` from
// before the first step until the last of offline, which has made it `<serial> leaving`. finish_recorded()
// goes on with both. A reboot makes devdax devices of all of them; finish_recorded() then brings those that are
// `online` on record online again, and the pool on them is back. Regions undone by hand while the manager ran
// stay so.
//
// The kernel may bring hot-added memory online by itself, in a zone of its own choice (auto_online_blocks).
// Memory in the wrong zone is taken offline and brought online again; if that fails, the error says
// which setting to change.
//
// Threads   One at a time: the owner's lock.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/result.h"

namespace terrace::daemon {

enum class RamDriver : uint8_t { none, device_dax, kmem, other };

struct RamDevice {
  std::string name;  // "dax0.0", for now only
  RamDriver driver = RamDriver::none;
  uint64_t bytes = 0;
  // Of the kmem driver only: its memory blocks.
  uint32_t blocks = 0;
  uint32_t online = 0;
  bool movable = false;  // all that are online
};

struct RamRegion {
  std::string serial;
  std::string name;  // in words: "hmem.0"
  uint64_t bytes = 0;
  int node = -1;
  std::vector<RamDevice> devices;  // those with memory
};

// The kernel, as this needs it.
// Errors    as os_error; busy where something is in use
class RamKernel {
 public:
  virtual ~RamKernel() = default;
  virtual Result<std::vector<RamRegion>> regions() = 0;
  // One device over all of a region that has none. Not enabled.
  virtual Status fill(const RamRegion& region) = 0;
  virtual Status disable(const std::string& device) = 0;
  virtual Status enable_devdax(const std::string& device) = 0;
  virtual Status enable_ram(const std::string& device) = 0;
  virtual Status online_movable(const std::string& device) = 0;
  virtual Status offline(const std::string& device) = 0;
  // Whether a node has processors; then memory of the region would be lost in that of the machine.
  virtual bool has_cpus(int node) = 0;
  // What is wrong when memory comes up in the wrong zone: "online", ... of auto_online_blocks.
  virtual std::string auto_online() = 0;
  // In words: which processes have a dax device open or mapped. Empty: none that this process may see.
  virtual Result<std::string> holders(const std::string& device) = 0;
  // In words: which processes have most of the node's memory. Empty: none that this process may see.
  virtual std::string users(int node) = 0;
};

class SystemRam {
 public:
  // `record`: a file; empty: nothing is remembered. `kernel` outlives this.
  SystemRam(RamKernel& kernel, std::string record);

  // Gives the region to the kernel. Returns the node that its memory is of.
  // Errors    not_found     no dax region of that serial
  //           unsupported   its memory has no node of its own
  //           busy          the region is divided, a process has its device open or mapped, or the kernel
  //                         brought it online in a zone that it cannot leave
  //           io_error      a step failed; in words which, and whether what came before was undone
  Result<int> online(const std::string& serial);
  // Takes all regions of the node back.
  // Errors    unsupported   its memory is not that of dax regions
  //           busy          pages of it are in use and cannot go elsewhere; all of it is online as before
  Status offline(int node);
  // Goes on with what is on record, once: at the start, and for regions that appear later when they do.
  void finish_recorded();

  // Of the regions on record: those whose memory is not there although it should be, and why.
  struct Problem {
    std::string serial;
    int node = -1;  // -1: not known, the region is not there
    std::string what;
  };
  std::vector<Problem> problems() const;

 private:
  enum class Wanted : uint8_t { online, leaving };
  struct Entry {
    Wanted wanted = Wanted::online;
    bool settled = false;  // reached, or tried in vain, since the start
    int node = -1;
    std::string problem = {};
  };

  Result<RamRegion> find(const std::string& serial);
  Result<RamDevice> device_of(const RamRegion& region);
  Status unheld(const RamRegion& region, const RamDevice& device);
  Status bring_up(const RamRegion& region);
  Status come_up(const RamRegion& region, RamDevice device);
  Status take_down(const RamRegion& region);
  Status correct_zone(const RamRegion& region, const RamDevice& device);
  Error undone(Error error, const RamRegion& region, bool was_enabled);
  Error in_use(Error error, const RamRegion& region, const RamDevice& device);
  Status record(const std::string& serial, Wanted wanted);
  Status forget(const std::string& serial);
  void load();
  Status save() const;

  RamKernel& kernel_;
  const std::string record_;
  std::map<std::string, Entry> entries_;
};

}  // namespace terrace::daemon
