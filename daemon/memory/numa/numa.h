// SPDX-License-Identifier: Apache-2.0
// The numa backend: CXL memory that the kernel has as a memory node without processors. A device is such a
// node, a lease a file whose pages come from it (numa_node.h), in the same way and with the same guarantees as
// the emulated backend's (emulated.h): fence by truncation, zeros by the kernel.
//
// Names   A device is `numa:node1`, by the number that people and every tool know the node by. The kernel deals
// the numbers out by the firmware's tables (SRAT proximity domains, then CXL windows), in their order, whether
// or not the memory is online: it is the same at every boot of the same machine. Where the tables change, as
// when a card is added, a number may mean other memory; nothing is lost by that, since what lies in system
// memory ends with the boot in any case. An object is `numa:lease-7`.
//
// Capacity   The node's MemTotal less a margin (numa_margin). An adopted node keeps its capacity while so much
// memory is there: the device is not lost when the next boot has a few pages more or less.
//
// The node's memory is the machine's: any process may use it, too, unless it is kept away (cpuset, mempolicy).
// The device's detail says how much others use, and carving checks the free memory.
//
// A lease is on one node: its memory policy is that of the mount. A pool of several nodes leases from each, but
// no lease spans two.
//
// online() and offline() give dax memory to the kernel and take it back (system_ram.h).
//
// Threads   As Backend's. Nodes are read in refresh() only; calls of the event loop are answered from the last
//           refresh().
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "core/base/sync/mutex.h"
#include "daemon/memory/backend.h"
#include "daemon/memory/measured_record.h"
#include "daemon/memory/numa/numa_node.h"
#include "daemon/memory/numa/system_ram.h"

namespace terrace::daemon {

struct NumaOptions {
  std::string runtime_directory = {};
  bool mount = true;
  HugePages huge_pages = HugePages::always;
  std::string record = {};  // SystemRam's file
  // Nodes of which the HMAT says nothing are measured once, into this; nullptr: not. Outlives the backend.
  MeasuredRecord* measured = nullptr;
  bool open = true;       // false: only looked at; nothing is mounted, nothing leased
  std::string root = {};  // before /sys; tests make a machine up
};

// "numa:node1"; nullopt: no such serial.
std::string numa_serial(int node);
std::optional<int> numa_node_of(std::string_view serial);

class NumaBackend final : public Backend, public Composition {
 public:
  // `kernel` outlives the backend; nullptr: dax memory is not brought online here.
  NumaBackend(NumaOptions options, RamKernel* kernel);

  std::string_view kind() const override { return kinds::numa; }
  std::vector<SeenDevice> discover() override;
  Status refresh() override;
  TierAttributes attributes(const std::string& serial) const override;
  void know_devices(const std::vector<KnownDevice>& devices) override;
  void know_objects(const std::vector<KnownObject>& objects) override;
  Status take_over(const std::string& serial) override;
  Composition* composition() override { return this; }
  Result<std::string> create_region(const RegionRequest&) override { return cannot("create a region"); }
  Status destroy_region(const std::string&) override { return cannot("destroy a region"); }
  Result<std::string> online(const std::string& serial) override;
  Status offline(const std::string& serial) override;
  Status claim(const StoreClaim& claim) override;
  Status hand_out(const std::string& name) override;
  Status carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) override;
  Result<UniqueFd> open(const std::string& name, ObjectAccess access) override;
  Status fence(const std::string& name) override;
  Result<uint64_t> scrub(const std::string& name) override;
  Status resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                const std::vector<Extent>& extents) override;
  Status rebind(const std::string& from, const std::string& to, uint64_t bytes,
                const std::vector<Extent>& extents) override;
  Status copy(const std::string& from, const std::string& to, uint64_t bytes) override;
  Result<std::vector<ObservedObject>> list() override;
  Result<ObservedObject> usage(const std::string& name) override;
  std::string describe_memory() const override;
  bool huge_pages(std::string_view name) const override;

  // Where objects may lie now, for those who look for who maps them.
  std::vector<std::string> object_directories() const;
  // The clean end, when no lease is left: as EmulatedBackend::remove_directory(), for each node.
  Status remove_directories();

 private:
  struct Seen {
    os::NodeAttributes attributes;
    bool movable = true;
    std::string problem;  // why nothing can be leased from it
    bool passes = false;  // the problem is one that passes: what objects it has is not known
  };
  using Node = std::shared_ptr<NumaNode>;

  void finish_recorded_ram();
  Result<std::map<int, Seen>> look_at_nodes() const;
  void open_known(std::map<int, Seen>& seen);
  void close_unknown();
  // `adopting`: what is there may be other memory than when it was measured last.
  Result<Node> open_node(int node, bool adopting);
  Result<Node> node_of(const std::vector<Extent>& extents) const;
  // The node that has the object; nullptr: none.
  // Errors    it could not be looked at
  Result<Node> holder_of(const std::string& file) const;
  Status all_open() const;
  std::vector<Node> open_nodes() const;
  std::string detail_of(int node, const Seen& seen) const;
  uint64_t known_capacity(const std::string& serial) const;

  const NumaOptions options_;
  const bool has_ram_;                             // what of the kernel's memory can be changed
  Mutex opening_ TERRACE_ACQUIRED_BEFORE(mutex_);  // one at a time opens and closes nodes' directories
  Mutex ram_mutex_ TERRACE_ACQUIRED_BEFORE(mutex_);
  std::optional<SystemRam> ram_ TERRACE_GUARDED_BY(ram_mutex_);

  mutable Mutex mutex_;
  std::optional<StoreClaim> claim_
      TERRACE_GUARDED_BY(mutex_);  // holds for directories that are opened later, too
  std::vector<KnownDevice> known_ TERRACE_GUARDED_BY(mutex_);
  std::vector<KnownObject> known_objects_
      TERRACE_GUARDED_BY(mutex_);  // for directories that are opened later, too; names without the kind
  std::map<int, Seen> seen_ TERRACE_GUARDED_BY(mutex_);
  std::map<int, Node> nodes_ TERRACE_GUARDED_BY(mutex_);  // those of adopted devices
  std::vector<SystemRam::Problem> problems_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace::daemon
