// SPDX-License-Identifier: Apache-2.0
// An emulated world: hosts, programs on them that create, write, read, pin and remove tensors of one space, and
// who kills them. One seed decides everything. It stops at the first wrong answer.
//
// Each seed draws a temper, too: how many programs and names there are, how often a program stands still in the
// middle of an operation (for as long as others need for publications, deaths and take-overs), and how often it
// dies at one of the next accesses of what it does.
//
//   stale     a read or look gives less than what publish() had returned before it began
//   torn      bytes of no version, or of another one than the answer says: also where two parts have one chunk
//   lost      a tensor that was created and not removed is not found; a publication is undone
//   moved     bytes under a pin change
//   twice     two live tensors of one name
//   blocked   a double-buffered tensor that nobody works on cannot be read; a name that no living holder
//             creates cannot be had; room that nobody else wants is contended; an only slot looks written while
//             its writer waits for a reader in place
//   corrupt   a description or checksum that does not fit
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/coherence/emulated_hosts.h"
#include "tests/coherence/fiber.h"
#include "tests/coherence/truth.h"

namespace terrace::coherence {

struct WorldOptions {
  uint64_t seed = 1;
  Step left_out = Step::none;
  bool crashes = true;
  uint32_t seats = 0;  // for programs that own no part and pin: at most so many, at most one a part
};

struct WorldCounts {
  uint64_t operations = 0, accesses = 0;
  uint64_t reads = 0, stale_free_looks = 0, publications = 0, pins = 0, creations = 0, removals = 0, finds = 0;
  uint64_t take_overs = 0, deaths = 0, power_losses = 0, refused = 0, stalls = 0, open_writes = 0;
  uint64_t without_room = 0;  // creations
  void add(const WorldCounts& other);
};

// What programs do, and how often out of the sum.
struct Habits {
  uint32_t create = 7, remove = 3, write = 25, find = 15, read = 25, look = 7, pin = 10, drop_view = 7,
           leave = 1;
};

struct Temper {
  uint32_t actors = 5;  // on the hosts in turn
  uint32_t hosts = 3;
  uint32_t parts = 6;
  uint32_t seats = 0;
  uint32_t names = 10;
  uint32_t stalls_of_256 = 0;   // operations in which the program stands still once
  uint32_t doomed_of_1024 = 0;  // operations that their program does not survive
  uint32_t data_pages = 6;
  uint32_t open_writes_of_8 = 0;  // writes that go on beside other operations, as another thread's
  Habits habits = {};
};

class World {
 public:
  explicit World(const WorldOptions& options);
  ~World();

  // Until `operations` more were done or something is wrong.
  void run(uint64_t operations);
  const std::string& failure() const { return failure_; }  // empty: all was right
  const WorldCounts& counts() const { return counts_; }

 private:
  friend class Actor;
  enum class Ownership : uint8_t { free, owned, dying };
  struct Part {
    Ownership ownership = Ownership::free;
    bool repairing = false;  // its owner is taking it over
    uint64_t epoch = 0;
    uint32_t host = 0;
    uint64_t fenced_at = 0;  // while dying
  };

  struct Creators {
    uint64_t begun = 0;
    uint32_t now = 0;  // of those that live
  };
  static Temper draw_temper(Prng& prng, uint32_t seats);
  void fail(const std::string& what);
  void start(size_t index);
  void cut_power(uint32_t host);
  void carry_out_doom();
  // No part is between two owners.
  bool owners_are_settled() const;
  void kill(size_t index);
  void disturb();
  void fence_the_dead();
  void fence_chunks(uint32_t host, uint32_t part);
  void note_activity(uint32_t part);
  bool is_dead(uint32_t part, uint64_t epoch) const {
    return parts_[part].epoch != epoch || parts_[part].ownership == Ownership::free;
  }
  std::shared_ptr<Truth> truth_of(const Located& tensor) const;
  void turn(size_t index);

  const WorldOptions options_;
  Prng prng_;
  const Temper temper_;
  Geometry geometry_;
  Fabric fabric_;
  std::vector<Part> parts_;  // and seats
  std::map<Identity, std::shared_ptr<Truth>> truths_;
  std::deque<Identity> gone_;  // the last ones, still in truths_
  std::vector<std::unique_ptr<class Actor>> actors_;
  uint64_t now_ = 1;
  uint32_t turns_of_64_ = 32;
  uint64_t next_content_ = 1;
  uint64_t ownership_changes_ = 0;
  std::map<std::string, Creators> creators_;  // by name
  Creators creators_of_all_;
  std::optional<size_t> doomed_;  // the program that dies now
  WorldCounts counts_;
  std::string failure_;
};

}  // namespace terrace::coherence
