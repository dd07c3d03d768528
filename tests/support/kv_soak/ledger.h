// SPDX-License-Identifier: Apache-2.0
// What the processes of all hosts know together: the test's own memory, not the protocol's. It has atomics, which hold
// also between guests over one soft-reserved node. It outlives its processes, and the power of a guest.
//
// One worker at a time puts and erases a key. So:
//   begun     number of the key's last put that was begun: a block with a greater one is of nobody
//   erased    puts up to this one were erased before anybody could read this number here: such a block is stale
#pragma once

#include <atomic>
#include <cstdio>
#include <string>

#include "tests/support/kv_soak/setup.h"

namespace terrace::kv_soak {

struct Ledger {
  struct Key {
    std::atomic<uint32_t> begun, erased;
  };
  // Of one worker, by whichever process it is.
  struct alignas(64) Counts {
    std::atomic<uint64_t> copied, in_place, misses, puts, refused, erased, passed_over;
  };
  // The first that each worker found. Who finds something may be killed while it says so, before it is counted.
  struct Finding {
    std::atomic<uint32_t> said;
    char text[300];
  };
  struct alignas(64) Host {
    std::atomic<uint64_t> kills, stops, reads_beside_stopped;
    std::atomic<uint32_t> satisfied;  // it has seen enough; it goes on for the other one
    std::atomic<uint32_t> quit;       // its workers end
  };

  std::atomic<uint32_t> run;  // 0: not made yet
  std::atomic<uint64_t> wrong;
  Host of_hosts[hosts_max];
  Counts counts[hosts_max][workers_max + 1];  // the last one: who checks at the end
  Finding findings[hosts_max][workers_max + 1];
  Key keys[keys_max];

  void fail(uint32_t host, uint32_t worker, const std::string& text) {
    Finding& finding = findings[host][worker];
    if (finding.said == 0) {
      std::snprintf(finding.text, sizeof finding.text, "%s", text.c_str());
      finding.said = 1;
    }
    ++wrong;
  }
  const char* first_finding() const {
    for (const auto& of_host : findings)
      for (const Finding& finding : of_host)
        if (finding.said != 0) return finding.text;
    return "";
  }
  bool anything_wrong() const { return wrong != 0 || first_finding()[0] != '\0'; }
  // Blocks whose bytes were compared.
  uint64_t reads(uint32_t host) const {
    uint64_t sum = 0;
    for (const Counts& worker : counts[host]) sum += worker.copied + worker.in_place;
    return sum;
  }
};
static_assert(sizeof(Ledger) <= ledger_bytes);

}  // namespace terrace::kv_soak
