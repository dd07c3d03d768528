// SPDX-License-Identifier: Apache-2.0
// The leased memory of a running machine: how much the guest should have, in parts of which each is a lease and a
// device of QEMU's over it.
//
// Model     virtio-mem  the guest takes and gives blocks of 2 MiB and more of a part, so a part can grow and shrink
//           dimm        a part comes and goes as a whole; for leases that are dax devices, whose memory cannot be
//                       given back in pieces
// Sources   QEMU's documentation of virtio-mem-pci and pc-dimm; Linux: Documentation/admin-guide/mm/memory-hotplug.rst.
// Threads   One at a time, which also asks the machine; lost() and take_away() may come from it only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/vm/monitor.h"
#include "core/base/result.h"
#include "terrace/session.h"

namespace terrace::cli {

// Of the ports that `terrace vm run` gives its machines.
inline constexpr std::string_view vm_port_prefix = "terrace-port";

enum class GuestModel : uint8_t { by_kind, virtio_mem, dimm };

struct GuestOptions {
  std::string label;  // of the first part's lease; the others' are label#2, label#3, ...
  std::string pool;
  LeaseMode mode = LeaseMode::exclusive;
  uint64_t room_bytes = 0;  // up to which the first part can grow; 0: its first size
  GuestModel model = GuestModel::by_kind;
  uint32_t node = 0;             // of the guest
  std::optional<uint32_t> user;  // whom the machine runs as; empty: this process's own
};

class GuestMemory {
 public:
  // What a guest's kernel adds and removes memory in (x86, below 64 GiB).
  static constexpr uint64_t block_bytes = uint64_t{128} << 20;

  // Both must outlive it. `say` gets lines for people.
  GuestMemory(Session& session, Monitor& monitor, GuestOptions options, std::function<void(std::string)> say);

  // Takes over what an earlier keeper of this label left in the machine: the guest should go on having it.
  // Errors    as Session::attach(): a lease that it has could not be taken over now; unavailable, corrupt
  Status adopt();
  // How much the guest should have, in blocks; step() works towards it.
  void want(uint64_t bytes);
  // One look at the machine and what follows from it: grants, plugs, unplugs, gives back.
  // Errors    unavailable   the machine has ended
  Status step();

  // The lease must be empty at `until_ns` (of SystemClock): another one is put in its place first, if it can be had.
  void take_away(LeaseId lease, uint64_t until_ns);
  // All of it must go to other memory. Errors: those of Session::grant(), busy; nothing has changed then.
  Status replace_all();
  void lost(LeaseId lease);
  // The guest did not give all up in time: it should have what it has.
  void keep_what_is_there();
  // The same, but what it should not have is taken: the machine gets SIGBUS where it still uses that.
  void take_by_force();
  // Why the guest has not followed, and what helps; a sentence's end. Asks the machine.
  std::string reluctance();

  bool settled() const;  // the guest has what it should, and nothing is on its way out
  uint64_t plugged_bytes() const;
  uint64_t wanted_bytes() const { return wanted_bytes_; }
  bool empty() const;  // but for leases that were lost
  // The machine was started anew meanwhile: it knows nothing of what it was given.
  bool machine_is_another() const { return another_; }
  // Why the guest cannot have more; empty: it can.
  const std::optional<Error>& refusal() const { return refusal_; }
  nlohmann::json describe() const;

 private:
  struct Part {
    std::shared_ptr<Lease> lease;
    std::string label;
    std::string device;         // QEMU's id for it
    uint64_t device_bytes = 0;  // as large as it can become
    uint64_t requested_bytes = 0;
    uint64_t plugged_bytes = 0;  // that the guest has
    bool dimm = false;
    bool listed = false;  // the machine has shown it; false: whether it took the device is not known
    bool asked = false;   // since the machine was last looked at
    bool gone = false;    // the machine has it not, or not any more
    bool leaving = false;
    bool lost = false;
    bool resizable = true;
    bool cut =
        false;  // by force, under what the guest has: grown again, the lease would be empty where its data was
    bool grows = true;                      // until the next want()
    std::optional<uint64_t> refused_bytes;  // what the machine would not be asked for
    uint64_t until_ns = 0;  // leaving: when it is asked to go in any case; 0: when the rest has what it gets
    uint64_t asked_ns = 0;  // dimm: when the guest was last asked to let go
    uint64_t cut_after_ns = 0;  // when the lease's end may be cut off again

    bool idle() const { return cut || plugged_bytes == requested_bytes; }
    bool stays() const { return !leaving && !lost && !gone; }
  };

  static constexpr const char* where = "terrace vm";  // of errors
  static uint64_t in_blocks(uint64_t bytes) { return (bytes + block_bytes - 1) / block_bytes * block_bytes; }

  // guest_memory.cc: how much lies in which part
  Status look();
  void look_at(Part& part, const nlohmann::json* device);
  Status give();
  Status take();
  void drop_empty();
  uint64_t share_of(Part& part, uint64_t left);

  // guest_parts.cc: each by itself
  static Error strange_answer(const std::exception& error);
  Result<nlohmann::json> devices();
  Status adopt_device(const nlohmann::json& device);
  Result<Part*> add_part(uint64_t bytes);
  Status plug_in(Part& part, const std::string& path);
  Result<std::string> path_of(Lease& lease) const;
  Result<std::string> free_bus();
  Status request(Part& part, uint64_t bytes);
  Status request_dimm_back(Part& part);
  void shrink_lease(Part& part);
  void take_rest_of(Part& part);
  std::string next_label() const;

  Session& session_;
  Monitor& monitor_;
  const GuestOptions options_;
  const std::function<void(std::string)> say_;
  std::vector<Part> parts_;
  uint64_t wanted_bytes_ = 0;
  std::optional<Error> refusal_;
  bool another_ = false;
};

}  // namespace terrace::cli
