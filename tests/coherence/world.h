// An emulated world: hosts, programs on them that create, write, read, pin and remove tensors of one space, and
// who kills them. One seed decides everything. It stops at the first wrong answer.
//
//   stale     a read or look gives less than what publish() had returned before it began
//   torn      bytes of no version, or of another one than the answer says
//   lost      a tensor that was created and not removed is not found; a publication is undone
//   moved     bytes under a pin change
//   twice     two live tensors of one name
//   blocked   a double-buffered tensor that nobody works on cannot be read
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
};

struct WorldCounts {
  uint64_t operations = 0, accesses = 0;
  uint64_t reads = 0, stale_free_looks = 0, publications = 0, pins = 0, creations = 0, removals = 0, finds = 0;
  uint64_t take_overs = 0, deaths = 0, power_losses = 0, refused = 0;
  void add(const WorldCounts& other);
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

  void fail(const std::string& what);
  void start(size_t index);
  void kill(size_t index);
  void disturb();
  void fence_the_dead();
  void note_activity(uint32_t part);
  bool is_dead(uint32_t part, uint64_t epoch) const {
    return parts_[part].epoch != epoch || parts_[part].ownership == Ownership::free;
  }
  std::shared_ptr<Truth> truth_of(const Located& tensor) const;
  void turn(size_t index);

  const WorldOptions options_;
  Prng prng_;
  Geometry geometry_;
  Fabric fabric_;
  std::vector<Part> parts_;
  std::map<Identity, std::shared_ptr<Truth>> truths_;
  std::deque<Identity> gone_;  // the last ones, still in truths_
  std::vector<std::unique_ptr<class Actor>> actors_;
  uint64_t now_ = 1;
  uint32_t turns_of_64_ = 32;
  uint64_t next_content_ = 1;
  WorldCounts counts_;
  std::string failure_;
};

}  // namespace terrace::coherence
