// SPDX-License-Identifier: Apache-2.0
// What one run of the soak is told, and what all its processes agree on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "terrace/host_ownership.h"

namespace terrace::kv_soak {

inline constexpr uint32_t hosts_max = 2;
inline constexpr uint32_t workers_max = 12;  // of one host
inline constexpr uint32_t keys_max = 8192;
inline constexpr uint64_t ledger_bytes = 2 * mib;  // as dax devices are mapped

// Defects on purpose: the readers must find them.
enum class Plant : uint8_t {
  none,
  torn,      // one byte of a block is another one
  other,     // the block of another key
  foreign,   // the block of another space
  stale,     // the ledger says that a block was erased that is there
  in_place,  // stores into a block that is published
};

struct Setup {
  // Where the space is: a lease, a file or device, or (neither) memory of this run alone.
  std::string socket, lease;
  std::string file;
  uint64_t offset = 0;
  uint64_t bytes = 8 * mib;  // of the space; of a lease all
  std::string ledger_file;   // none: memory of this run alone
  uint64_t ledger_offset = 0;

  uint32_t hosts = 1;
  std::optional<uint32_t> host;  // that this program plays; nothing: all of them
  uint32_t workers = 4;          // of each host
  uint32_t keys = 4096;
  uint32_t run = 1;  // tells this run's blocks from those of all others
  // In a lease: owners by locks on its memory. A manager gives no owners to processes of other hosts than its own.
  bool by_locks = false;
  bool join = false;       // the space of this run is there already
  uint64_t find = 0;       // blocks that must be there before its workers begin
  bool restarted = false;  // this host's parts may be of before the start of its machine
  bool coherent = true;
  std::optional<bool> checksums;

  uint64_t reads = 20'000, kills = 20, stops = 2;  // of the hosts that it plays
  uint64_t seconds = 0;                            // it goes on for so long at least
  uint64_t limit_s = 300;
  uint64_t kill_every_ms = 200;  // on average; 0: never
  uint64_t stop_every_ms = 2000;
  uint64_t stop_ms = 1000;
  uint64_t seed = 1;
  bool progress = false;     // a line each second
  bool expect_loss = false;  // the lease is taken away meanwhile
  Plant plant = Plant::none;

  bool in_lease() const { return !lease.empty(); }
  bool by_manager() const { return in_lease() && !by_locks; }
  uint32_t first_host() const { return host.value_or(0); }
  uint32_t end_host() const { return host ? *host + 1 : hosts; }
  // One more of each a host, for who follows a killed worker, and for who formats and checks.
  uint32_t parts() const { return hosts * (workers + 2); }
  std::vector<HostRange> ranges() const;
};

inline std::vector<HostRange> Setup::ranges() const {
  std::vector<HostRange> ranges;
  for (uint32_t of = 0; of < hosts; ++of) {
    ranges.push_back({of, of * (workers + 2), workers + 2});
    ranges.push_back({of, parts() + of * (workers + 2), workers + 2});  // seats
  }
  return ranges;
}

}  // namespace terrace::kv_soak
