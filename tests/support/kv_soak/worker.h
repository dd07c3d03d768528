// SPDX-License-Identifier: Apache-2.0
// One process: reads blocks of all keys and compares every word, puts and erases those of its own keys, and goes on until
// it is told to end, or killed in the middle of anything.
//
// Threads   One, beside the library's.
#pragma once

#include <string>
#include <vector>

#include "core/base/prng.h"
#include "tests/support/kv_soak/place.h"

namespace terrace::kv_soak {

enum Exit : int { exit_left = 0, exit_no_start = 8, exit_lease_ended = 9 };

class Worker {
 public:
  Worker(const Setup& setup, Ledger& ledger, Attached attached, uint32_t host, uint32_t index, uint64_t seed);
  // Until the host's `quit`, or by itself now and then. Returns how it ended.
  Exit work();
  // Reads each key once.
  Exit read_all();

 private:
  struct Held {
    uint32_t key = 0;
    KvView view;
  };
  struct LeaseEnded {};

  void step();
  void read_batch();
  void read_batch(const std::vector<uint32_t>& keys);
  void read_one(uint32_t key);
  void view();
  void let_one_go();
  void put(uint32_t key);
  Status put_in_place(uint32_t key, std::span<const std::byte> bytes);
  void erase(uint32_t key);
  void look();
  void evict_some();
  void verify();
  void scribble();

  uint32_t any_key() { return static_cast<uint32_t>(prng_.below(setup_.keys)); }
  uint32_t own_key();
  bool is_own(uint32_t key) const { return key % (setup_.hosts * setup_.workers) == slot_; }
  bool plants(Plant plant) { return setup_.plant == plant && prng_.chance(1, 50); }
  // Holds what was read against what was known before the read began.
  bool judge(uint32_t key, std::span<const std::byte> bytes, uint32_t erased_before, const char* how);
  // What a cache may answer is no fault.
  void judge_error(uint32_t key, const Error& error, const char* how);
  void fail(uint32_t key, const std::string& what);

  const Setup& setup_;
  Ledger& ledger_;
  Attached attached_;
  KvSpace& space_;
  const uint32_t host_, index_, slot_;
  Ledger::Counts& counts_;
  Prng prng_;
  std::vector<std::byte> bytes_, batch_;
  std::vector<Held> held_;
};

std::string key_of(uint32_t key);
uint64_t length_of(uint32_t key);  // of its blocks; whole words

}  // namespace terrace::kv_soak
