// SPDX-License-Identifier: Apache-2.0
// A made-up machine with CXL memory devices: decoders, regions, namespaces and media, behind the two seams of
// the pmem backend. It keeps rules that the kernel was measured to have, counts every step that changes
// something, and can fail at any of them, lie about it, or have the manager die there.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "daemon/memory/pmem/pmem_kernel.h"
#include "daemon/memory/region/region_kernel.h"

namespace terrace::test {

// Thrown by a step at which the manager is to die.
struct Died {};

enum class StepFault {
  none,
  fails,        // an error, and nothing was done
  fails_late,   // an error, although it was done
  lies,         // no error, and nothing was done
  dies_before,  // the manager dies, nothing was done
  dies_after,
};

class FakeCxlMachine {
 public:
  struct Bridge {
    std::vector<std::string> memdevs;
  };

  explicit FakeCxlMachine(uint64_t memdev_bytes = uint64_t{512} << 20) : memdev_bytes_(memdev_bytes) {}

  // --- what it is made of ---
  void add_memdev(const std::string& serial, bool ram = false) {
    memdevs_.push_back({serial, "mem" + std::to_string(memdevs_.size()), ram, {}});
  }
  // A window over these bridges, which hold these memdevs.
  void add_window(std::vector<std::vector<std::string>> bridges) {
    windows_.push_back({"decoder0." + std::to_string(windows_.size()), std::move(bridges)});
  }
  bool one_region_per_bridge = true;
  unsigned decoders = 1;             // of a memdev: regions that can lie over it
  bool silent_zeros = false;         // what is written reads back as zeros
  bool unit_fixed = false;           // the kernel refuses another unit than 16 MiB
  unsigned granularity_max = 16384;  // that the decoders can do
  std::string user;                  // who is said to use every namespace
  bool blind = false;                // nothing can be looked at
  bool half_blind = false;           // the library leaves out what is committed
  int user_looks = 0;                // at all processes
  unsigned driver_looks = 0;         // that come too early to see the newest region
  bool pmem_driver = true;           // false: regions become none of persistent memory yet

  // Regions go, media and labels stay; memdevs come back in another order.
  void reboot();
  void unplug(const std::string& serial);
  void plug(const std::string& serial) { unplugged_.erase(serial); }

  // --- faults ---
  // At the n-th step from now on, counted from 1.
  void fault_at(unsigned step, StepFault fault) {
    steps_ = 0;
    fault_step_ = step;
    fault_ = fault;
  }
  void no_faults() { fault_ = StepFault::none; }
  unsigned steps() const { return steps_; }

  // --- looked at from outside ---
  std::vector<daemon::PmemNamespace> namespaces() const;
  size_t regions() const { return regions_.size(); }
  // As ndctl would make it, in the only region; its uuid.
  std::string add_foreign(uint64_t bytes, const std::string& label);
  // Bytes of the media of the only region.
  void fill(uint64_t offset, uint64_t bytes, unsigned char value);
  unsigned char byte_at(uint64_t offset) const;

  daemon::PmemKernel& pmem() { return *pmem_; }
  daemon::CxlKernel& cxl() { return *cxl_; }

 private:
  friend class FakePmemKernel;
  friend class FakeCxlKernel;

  struct Memdev {
    std::string serial, name;
    bool ram = false;
    struct Taken {
      std::string region;
      uint64_t begin = 0, bytes = 0;
    };
    std::vector<Taken> taken;  // by its decoders, in their order

    uint64_t taken_bytes() const {
      uint64_t sum = 0;
      for (const Taken& one : taken) sum += one.bytes;
      return sum;
    }
  };
  struct Window {
    std::string name;
    std::vector<std::vector<std::string>> bridges;
  };
  struct Region {
    std::string name, window, uuid;
    bool ram = false, committed = false, enabled = false;
    unsigned ways = 0, granularity = 0;
    uint64_t start = 0, bytes = 0, unit = uint64_t{16} << 20;
    std::vector<std::string> memdevs;
  };
  struct Space {
    std::string uuid, label;
    uint64_t offset = 0, bytes = 0;
    bool devdax = false;  // it was made one
    bool enabled = false;
    unsigned generation = 0;
    UniqueFd device;  // its bytes while it is enabled
  };
  // What a set of memdevs keeps, in the order and by the granularity it was written in.
  struct Media {
    UniqueFd image;
    std::vector<Space> spaces;
  };

  // Counts, and says whether to do it; `status` becomes what is to be returned.
  template <typename Change>
  Status step(Change change);
  void give_back(const std::string& region);
  uint64_t position(const Region& region) const;
  std::string key(const Region& region) const;
  Media& media(const Region& region);
  Region* find_region(const std::string& name);
  Region* region_at(uint64_t start);
  Memdev* find_memdev(const std::string& serial);
  Space* find_space(const std::string& uuid, Region** region = nullptr);
  daemon::PmemNamespace describe(const Space& space, const Region& region) const;
  void stop(Space& space, Media& media);
  Status start(Space& space, Media& media);
  Status check_position(const Region& region, unsigned position, const std::string& serial) const;
  std::vector<std::pair<uint64_t, uint64_t>> gaps(const Region& region);

  uint64_t memdev_bytes_;
  std::vector<Memdev> memdevs_;
  std::vector<Window> windows_;
  std::vector<Region> regions_;
  std::map<std::string, Media> media_;
  std::map<std::string, bool> unplugged_;
  unsigned next_region_ = 0, next_uuid_ = 0, steps_ = 0, fault_step_ = 0;
  StepFault fault_ = StepFault::none;
  std::unique_ptr<daemon::PmemKernel> pmem_ = make_pmem();
  std::unique_ptr<daemon::CxlKernel> cxl_ = make_cxl();
  std::unique_ptr<daemon::PmemKernel> make_pmem();
  std::unique_ptr<daemon::CxlKernel> make_cxl();
};

}  // namespace terrace::test
