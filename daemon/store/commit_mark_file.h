// SPDX-License-Identifier: Apache-2.0
// The mark: a small file beside the database that holds the number of the newest acknowledged commit and
// the lock that keeps a second daemon out.
//
// Its reason: a write-ahead log ends at its first invalid frame. After a crash that is right, since the tail
// was never acknowledged. After damage it would silently drop acknowledged commits, and a database that
// vanished looks like a fresh one. The mark tells from outside how many commits must be there.
//
// The mark is written after each commit without a sync of its own, so it is never ahead of the log. It
// survives the death of the process; after a loss of power it may lag by what the kernel had not written
// back, and is then a weaker lower bound. It is synced at open, with each fold and at a clean end.
//
// Threads   One at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {

class CommitMarkFile {
 public:
  struct Mark {
    uint64_t store_id = 0;
    uint64_t sequence = 0;
  };

  CommitMarkFile() = default;

  // Opens or creates `path` (0600) and takes its lock until destruction or the process's end.
  // Errors    busy      another process has the lock, and keeps it for a second; names `store_path`
  //           corrupt   it holds something else than marks
  static Result<CommitMarkFile> open(const std::string& path, const std::string& store_path);
  // The first half of that, the lock alone; load() is the other one, and fails when the file is damaged.
  static Result<CommitMarkFile> lock(const std::string& path, const std::string& store_path);
  Status load(const std::string& path);

  // What the file at `path` has, without a lock or a change; nullopt where there is none that can be read.
  static std::optional<Mark> peek(const std::string& path);

  // As if nothing was ever recorded; durable. Only before load().
  Status clear();

  // What was recorded last; nullopt when nothing was yet.
  const std::optional<Mark>& mark() const { return mark_; }

  // Records that every commit up to mark.sequence is durable. No sync: a few stores into the file's mapping. If
  // someone cuts the file short meanwhile, that ends the process, as any lost state would.
  void record(Mark mark);
  Status sync();

 private:
  struct Unmap {
    void operator()(char* memory) const;
  };
  Status read(const std::string& path);
  Status map(const std::string& path);

  UniqueFd file_;
  std::unique_ptr<char, Unmap> memory_;
  std::optional<Mark> mark_;
};

}  // namespace terrace::daemon
