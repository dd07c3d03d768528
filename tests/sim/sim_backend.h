// Memory as its holders see it: each granule remembers which lease wrote it last, each object is a set of
// granules, and a mapping stays usable until its object is fenced or the machine restarts, whatever the
// manager believes. Two rules are checked here, at the memory itself:
//   - an object is never carved from granules that another object still has;
//   - a write through a mapping never reaches a granule that was given to somebody else since.
//
// Place     tests/sim; keeps daemon::Backend's contract without a kernel.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "daemon/state/command.h"
#include "tests/sim/environment.h"

namespace terrace::sim {

// One making of an object. Two objects of one name at different times are different incarnations.
using Incarnation = uint64_t;

enum class Access : uint8_t { done, sigbus };

class SimBackend {
 public:
  explicit SimBackend(Environment& environment) : environment_(environment) {}

  Status carve(const daemon::CarveObject& effect);
  Status fence(const std::string& object);
  Status scrub(const std::string& object);
  // The daemon died in the middle of it: some of its work is done.
  void cut_off(const daemon::Effect& effect);

  std::vector<std::pair<std::string, uint64_t>> list() const;  // name, bytes a holder could map
  size_t objects() const { return objects_.size(); }

  // A holder's side. `tag` names the writer; 0 is what an erased granule reads.
  std::optional<Incarnation> open(const std::string& object) const;
  Access write(Incarnation mapping, uint64_t granule, uint64_t tag);
  Access read(Incarnation mapping, uint64_t granule, uint64_t* tag) const;
  uint64_t granules_of(Incarnation mapping) const;

  // The machine restarts: every object and mapping is gone, the memory is blank.
  void reboot();

 private:
  using Granule = std::pair<uint64_t, uint64_t>;  // device, granule

  struct Object {
    std::vector<Granule> granules;
    bool fenced = false;
  };

  Object make(const daemon::CarveObject& effect) const;
  bool overlaps(const std::vector<Granule>& granules, std::string* other) const;
  void erase(const Object& object, uint64_t granules);

  Environment& environment_;
  uint64_t next_incarnation_ = 1;
  std::map<std::string, Incarnation> objects_;  // those that exist
  std::map<Incarnation, Object> incarnations_;  // those that exist or may still be mapped
  std::map<Granule, uint64_t> memory_;          // tags; absent: zeros
  std::map<Granule, Incarnation> owner_;        // the latest object carved from a granule
};

}  // namespace terrace::sim
