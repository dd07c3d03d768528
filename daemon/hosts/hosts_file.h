// SPDX-License-Identifier: Apache-2.0
// The names of further hosts that outlive the manager's process: those that ever registered, and those that an operator
// removed. A text file beside the store, a name a line; "!name" is removed.
//
// A host may be both: it was removed while it could still be at work for its host lease.
//
// Threads   The event loop's thread only. The file is replaced as a whole, and durable when a call returns.
#pragma once

#include <set>
#include <string>

#include "core/base/result.h"

namespace terrace::daemon {

class HostsFile {
 public:
  explicit HostsFile(std::string path);  // empty: nothing is remembered beyond this process

  const std::set<std::string>& known() const { return known_; }
  const std::set<std::string>& removed() const { return removed_; }

  // Each changes nothing when it fails.
  Status remember(const std::string& name);
  Status forget(const std::string& name);  // that it registered
  Status remove(const std::string& name);
  Status allow(const std::string& name);

 private:
  Status change(std::set<std::string> known, std::set<std::string> removed);

  const std::string path_;
  std::set<std::string> known_, removed_;
};

}  // namespace terrace::daemon
