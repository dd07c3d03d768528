// Processes that hold a device's memory, stopped for a moment before its fence: what they have under way in it (direct
// I/O, a read by another process) ends, and nothing new begins. Without it the kernel would take pages away
// below a transfer, and may crash when that ends.
//
// Only where pins were seen, and for at most the time that the fence waits. A process that was stopped already stays
// so. A note of them outlives this process: thaw() of the next start lets them go on.
//
// Threads   One.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "daemon/memory/pins/page_pins.h"

namespace terrace::daemon {

class PausedHolders {
 public:
  // Stops them; never this process. `note`: a file; empty: none is written.
  PausedHolders(const std::vector<pid_t>& processes, std::string note);
  ~PausedHolders();
  PausedHolders(const PausedHolders&) = delete;
  PausedHolders& operator=(const PausedHolders&) = delete;

  // Lets go on whom a process that was killed had stopped.
  static void thaw(const std::string& note);

 private:
  std::vector<pid_t> stopped_;
  std::string note_;
};

// Waits, 50 ms at most, until nobody holds a page of the ranges, with those stopped that `holders` names: it is asked
// only where somebody does. They go on when what is returned is destroyed; nullptr: nobody was stopped.
std::unique_ptr<PausedHolders> settle(PagePins& pins, const std::vector<PageRange>& ranges, PageBlock block,
                                      const std::function<std::vector<pid_t>()>& holders,
                                      const std::string& note);

}  // namespace terrace::daemon
