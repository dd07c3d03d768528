// SPDX-License-Identifier: Apache-2.0
// What the processes of one host know together: ordinary shared memory with atomics, which is the test's and
// not the protocol's. The other host has one of its own and sees nothing of this one.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <string>

#include "tests/support/shared_space/setup.h"

namespace terrace::shared_space {

struct Ledger {
  // The newest number of each tensor that a process of this host published or read, or read that it was
  // published. It never goes back, over kills neither: nothing older may be read any more by whoever begins
  // afterwards.
  std::atomic<uint64_t> seen[hosts][tensors];
  std::atomic<uint64_t> steps, publications, given_up, checks, without_content;
  using PerTensor = std::atomic<uint64_t>[hosts][tensors];
  PerTensor reads, pins;
  std::atomic<uint64_t> news;  // versions of the other host's that raised `seen`
  std::atomic<uint64_t> wrong;

  // The first that each place (a child's number, or `holders` for the group itself) found wrong. Who finds
  // something may be killed while it says so, before it is counted.
  struct Finding {
    std::atomic<bool> said;
    char text[320];
  };
  Finding findings[holders + 1];

  // Whether it was news.
  bool saw(uint32_t host, uint32_t index, uint64_t number) {
    std::atomic<uint64_t>& newest = seen[host][index];
    uint64_t known = newest.load();
    while (known < number)
      if (newest.compare_exchange_weak(known, number)) return true;
    return false;
  }

  void fail(uint32_t place, const std::string& text) {
    Finding& finding = findings[place];
    if (!finding.said) {
      std::snprintf(finding.text, sizeof finding.text, "%s", text.c_str());
      finding.said = true;
    }
    ++wrong;
  }

  uint64_t looks() const {
    uint64_t sum = 0;
    for (uint32_t host = 0; host < hosts; ++host)
      for (uint32_t index = 0; index < tensors; ++index) sum += reads[host][index] + pins[host][index];
    return sum;
  }

  // A finding may be said without being counted.
  bool anything_wrong() const { return wrong != 0 || first_finding()[0] != '\0'; }

  const char* first_finding() const {
    for (const Finding& finding : findings)
      if (finding.said) return finding.text;
    return "";
  }
};

}  // namespace terrace::shared_space
