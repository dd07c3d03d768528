// SPDX-License-Identifier: Apache-2.0
// The record of which processes agreed to be ended before which object is taken from them: written before its memory is
// handed over, read by the next run of the daemon and by the guard of a host. Text, a line for each change; the last
// one of a process counts. The first line names the boot and the store: numbers of processes mean nothing in another boot, names of
// objects nothing for another store, and such a record is not read.
//
//   boot 0d2f6b1e-... 0123456789abcdef0123456789abcdef
//   agreed devdax:lease-7 1234 5678 4026531836 90 1000 0 python3[1234]
//     object, then Consent's process (pid, started, space), number, uid, spared, holder
//   forgotten devdax:lease-7
//
// It outlives the daemon, not the machine: neither do the processes.
//
// Threads   One at a time.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "daemon/consent/consent.h"

namespace terrace::daemon {

using ConsentsByObject = std::map<std::string, std::vector<Consent>>;

class ConsentFile {
 public:
  // `path`: empty for none. `boot_id`: of the boot, and for a manager of its store.
  ConsentFile(std::string path, std::string boot_id) : path_(std::move(path)), boot_id_(std::move(boot_id)) {}

  // What is recorded; nothing of another boot, and nothing where there is no file. A last line that was cut short is left out.
  static ConsentsByObject read(const std::string& path, const std::string& boot_id);

  // Makes the file anew with just `all`.
  Status write_anew(const ConsentsByObject& all);
  // Errors    io_error   what is to be recorded is not: nothing may be handed over on the strength of it
  Status agreed(const std::string& object, const Consent& consent, const ConsentsByObject& all);
  Status forgotten(const std::string& object, const ConsentsByObject& all);

 private:
  Status append(const std::string& line, const ConsentsByObject& all);

  const std::string path_;
  const std::string boot_id_;
  UniqueFd file_;
  off_t bytes_ = 0;
  size_t lines_ = 0;
};

}  // namespace terrace::daemon
