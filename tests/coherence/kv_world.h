// SPDX-License-Identifier: Apache-2.0
// An emulated world of a KV space: programs on hosts without coherent caches put, read, pin and remove blocks of few
// keys in little room, and are killed. One seed decides everything. It stops at the first wrong answer:
//
//   torn      bytes of no block, or of another key's
//   stale     a block whose removal had returned, or which had expired, before the read began
//   lost      a block that was published, lasts, and that nobody began to remove is not found
//   moved     bytes under a pin change
//   corrupt   a record or checksum that does not fit
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "libclient/kv/block_part.h"
#include "tests/coherence/emulated_hosts.h"
#include "tests/coherence/fiber.h"

namespace terrace::coherence {

struct KvWorldCounts {
  uint64_t operations = 0, reads = 0, puts = 0, pins = 0, removals = 0, deaths = 0, power_cuts = 0,
           take_overs = 0, without_room = 0, copies = 0;  // copies: reads that one answered
  uint64_t compared = 0, compared_in_place = 0;  // blocks whose bytes were; the second are part of the first

  void add(const KvWorldCounts& more);
};

class KvWorld {
 public:
  KvWorld(uint64_t seed, Step left_out);
  ~KvWorld();
  void run(uint64_t operations);
  const std::string& failure() const { return failure_; }  // empty: all was right
  const KvWorldCounts& counts() const { return counts_; }

 private:
  friend class KvActor;
  enum class Ownership : uint8_t { free, owned, dying };
  struct Part {
    Ownership ownership = Ownership::free;
    uint64_t epoch = 0;
    uint32_t host = 0;
    uint64_t fenced_at = 0;
  };
  // What one put stored: all its words are the number that it has here.
  struct Content {
    uint32_t key = 0;
    uint64_t published = 0, removing = 0, removed = 0, disturbed = 0;  // times; 0: not
    uint64_t expires_s = 0;                                            // 0: never
  };
  void start(size_t index);
  void kill(size_t index);
  void cut_power(uint32_t host);
  void fence_the_dead();
  void turn(size_t index);
  void fail(const std::string& what);
  // As expiry goes, which some worlds have.
  static uint64_t seconds(uint64_t time) { return 1 + time / 512; }
  uint64_t now_s() const { return seconds(now_); }
  bool expires() const { return seed_ % 4 == 3; }
  bool is_dead(uint32_t part, uint64_t epoch, uint32_t asking_host) const {
    if (at_once_ && parts_[part].host != asking_host) return false;
    return parts_[part].epoch != epoch || parts_[part].ownership == Ownership::free;
  }

  const uint64_t seed_;
  Prng prng_;
  const uint32_t hosts_, keys_;
  const uint64_t views_most_;  // of one program
  // A part stays with its host, whose programs take it over at once: what a dead one stored is in the caches that they read
  // through, and nobody writes it back (docs/design/0016-write-ownership.md).
  const bool at_once_;
  const bool copies_;  // programs read blocks from copies that they made before
  Geometry geometry_;
  Fabric fabric_;
  std::vector<Part> parts_;
  std::map<uint64_t, Content> contents_;
  uint64_t next_content_ = 1;
  std::vector<std::unique_ptr<class KvActor>> actors_;
  uint64_t now_ = 1;
  uint32_t turns_of_64_ = 32;
  KvWorldCounts counts_;
  std::string failure_;
};

// One program: owns a part, and does operations at random until it is killed.
class KvActor {
 public:
  KvActor(KvWorld& world, size_t index, uint32_t host);
  Fiber& fiber() { return *fiber_; }
  Program& program() { return program_; }
  std::optional<uint32_t> part() const { return part_; }

 private:
  struct View {
    kv::Block block;
    uint32_t pin = 0;
    uint64_t content = 0;
  };
  void live();
  void operate();
  void put();
  void read();
  bool read_copy(uint32_t key, uint64_t begin);
  void view();
  void use_view();
  void remove();
  Outcome find(const kv::BlockKey& key, kv::Block* found);
  void check_found(uint32_t key, uint64_t begin, Outcome outcome);
  uint64_t check_bytes(uint32_t key, uint64_t begin, const kv::Block& block, std::span<const std::byte> bytes);
  std::vector<kv::Block> own_blocks();

  KvWorld& world_;
  Prng prng_;
  Program program_;
  EmulatedHost memory_;
  kv::BlockReader<EmulatedHost> reader_;
  std::unique_ptr<kv::BlockPart<EmulatedHost>> own_;
  std::optional<uint32_t> part_;
  std::vector<View> views_;
  struct Copy {
    kv::Block block;
    std::vector<std::byte> bytes;
  };
  std::map<uint32_t, Copy> copies_;  // in its own memory, by key
  // Of copies, which may still happen until the next barrier.
  alignas(64) std::byte bytes_[256];
  alignas(64) std::byte name_[64];
  std::unique_ptr<Fiber> fiber_;
};

}  // namespace terrace::coherence
