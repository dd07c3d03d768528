// SPDX-License-Identifier: Apache-2.0
// Memory as its holders see it: each granule has the stamp that was written to it last, each object is a list
// of granules, and a mapping stays usable until its object is fenced, cut or handed over, its device is lost or
// the machine restarts, whatever the manager believes. Checked here, at the memory itself:
//   double grant    an object is never made of, or grown onto, granules that another object still has
//   scrub           what an object is made of reads as zeros
//   two writers     a write through a mapping never reaches a granule that was given to somebody else since
//   fenced writer   no write succeeds through a mapping after its fence or hand-over was reported as done
//
// Place     tests/sim/manager; keeps daemon::Backend's contract without a kernel. Some runs erase in place, as memory
//           without a file system does; the others have a kernel that zeroes what it takes back.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "daemon/state/state_machine.h"
#include "tests/sim/environment.h"

namespace terrace::sim {

// One making of an object. Two objects of one name at different times are different incarnations.
using Incarnation = uint64_t;

enum class Access : uint8_t { done, sigbus };

class SimBackend {
 public:
  explicit SimBackend(Environment& environment);

  Status carve(const daemon::CarveObject& effect);
  Status fence(const std::string& object);
  void pretend_fence(const std::string& object);  // a planted defect's: reported, and not done
  // Before scrub() where erasing is work of its own: granules [first, first + count) along the job's extents.
  bool erases_in_place() const { return in_place_; }
  Status erase(const daemon::ScrubObject& job, uint64_t first, uint64_t count);
  Status scrub(const std::string& object);
  Status resize(const daemon::ResizeObject& effect);
  Status rebind(const daemon::RebindObject& effect);
  Status copy(const std::string& from, const std::string& to);
  // Fences and scrubs an object that no lease has; it never fails.
  void destroy(const std::string& object);
  // The daemon died in the middle of it: some of its work is done.
  void cut_off(const daemon::Effect& effect);

  std::vector<std::pair<std::string, uint64_t>> list() const;  // name, bytes a holder could map
  const std::map<std::string, Incarnation>& objects() const { return objects_; }
  // False when one of its devices was removed: the object is given up with it, until the next start.
  bool on_known_devices(Incarnation incarnation, const daemon::StateMachine& machine) const;

  // A holder's side. `stamp` names writer and write; 0 is what an erased granule reads.
  std::optional<Incarnation> open(const std::string& object) const;
  Access write(Incarnation mapping, uint64_t granule, uint64_t stamp);
  Access read(Incarnation mapping, uint64_t granule, uint64_t* stamp) const;
  uint64_t granules_of(Incarnation mapping) const;

  // Devices that come and go. `blank`: what was on it is gone for good.
  void know(const daemon::StateMachine& machine);
  void lose_device(const std::string& serial, bool blank);
  void return_device(const std::string& serial) { lost_.erase(serial); }
  bool seen(const std::string& serial) const { return !lost_.contains(serial); }
  const std::map<std::string, uint64_t>& lost() const { return lost_; }  // serial -> steady time of the loss

  // The machine restarts: every object and mapping is gone, the memory is blank.
  void reboot();

 private:
  using Granule = std::pair<uint64_t, uint64_t>;  // device, granule

  struct Object {
    std::vector<Granule> granules;
    uint64_t mapped = 0;   // granules from the start that a holder can reach
    uint64_t missing = 0;  // of an object that takes bytes over: granules that the old one still has
    bool shut = false;     // its fence or hand-over was reported
  };

  static std::vector<Granule> granules_of(const std::vector<daemon::Extent>& extents);
  // Whether the granules are nobody's and blank; a breach is reported.
  bool fresh(const std::string& object, const std::vector<Granule>& granules, size_t from);
  Object* find(const std::string& object);
  bool on_lost_device(const std::vector<Granule>& granules) const;
  Status rebind_some(const daemon::RebindObject& effect, uint64_t granules);
  void clear(const std::vector<Granule>& granules, size_t from);
  bool strikes(uint32_t percent) { return environment_.chance_percent(percent); }

  Environment& environment_;
  const bool in_place_;
  uint64_t next_incarnation_ = 1;
  std::map<std::string, Incarnation> objects_;  // those that exist
  std::map<Incarnation, Object> incarnations_;  // those that exist or may still be mapped
  std::map<Granule, uint64_t> memory_;          // stamps; absent: zeros
  std::map<Granule, Incarnation> owner_;        // the latest object made of a granule
  std::map<uint64_t, std::string> serials_;     // of device ids
  std::map<std::string, uint64_t> lost_;
};

}  // namespace terrace::sim
