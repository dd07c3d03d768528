// SPDX-License-Identifier: Apache-2.0
// The store: commits go into a journal, a thread of its own folds the journal into the database.
//
//   commit -> one record into the active segment -> fdatasync -> the mark -> acknowledged
//   the active segment is full, or nothing came for a while -> it is sealed, the other one becomes active
//   fold thread: a sealed segment's commits, merged -> one database transaction -> the segment is free again
//                (or whoever StoreOptions::fold_later hands that to)
//
// Each segment is active (commits go there), sealed (waits to be folded) or free. One of the two is active; a
// commit that has no room waits for the other one to be free. docs/design/0005-journal.md says why it is so.
//
// Threads   Store's calls from one thread at a time, but for backup(). `attached_mutex_` is held by who opens or closes
//           the store, and by a backup from its beginning to its end; it is taken before the others. `mutex_` guards the segments' roles and every member;
//           `database_mutex_` guards the database; its holder does not take `mutex_`.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/sync/mutex.h"
#include "daemon/store/commit_mark_file.h"
#include "daemon/store/database.h"
#include "daemon/store/journal/delta_codec.h"
#include "daemon/store/journal/journal_replay.h"
#include "daemon/store/journal/journal_segment.h"
#include "daemon/store/store.h"
#include "daemon/store/store_options.h"

namespace terrace::daemon {

class JournaledStore final : public Store {
 public:
  JournaledStore(std::string path, const StoreOptions& options);
  ~JournaledStore() override;

  // Opens, verifies, replays and folds; leaves the image of that for the first load().
  Status attach();

  Result<Image> load() override;
  Status commit(const Delta& delta) override;
  Result<AuditPage> audit(const AuditQuery& query) override;
  Result<StoreBackup> backup() override;
  Status mark_also(const std::string& path) override;
  bool older_than_mark(const std::string& path) const override;
  StoreId id() const override { return {store_high_, store_id_}; }
  bool discard_if_fresh() override;
  bool quick() const override { return quick_; }
  JournalRoom journal_room() const override {
    return {room_bytes_.load(std::memory_order_relaxed), used_bytes_.load(std::memory_order_relaxed)};
  }

 private:
  static constexpr size_t segment_count = 2;

  Status attach_unexplained() TERRACE_REQUIRES(attached_mutex_);
  void stop_folding() TERRACE_REQUIRES(attached_mutex_);
  Status open_segments(const StoreSeal& seal) TERRACE_REQUIRES(mutex_);
  Status renew_segments(uint64_t store_id);
  Result<Replay> replay(uint64_t folded);
  void detach() TERRACE_REQUIRES(attached_mutex_);

  // Makes the active segment the sealed one and the free one active. The other one must be free.
  void seal_active() TERRACE_REQUIRES(mutex_);
  bool other_free() const TERRACE_REQUIRES(mutex_) { return !sealed_.has_value(); }
  // Waits until the sealed segment is folded; the failure of a fold ends the wait.
  Status wait_folded() TERRACE_REQUIRES(mutex_);
  void acknowledge() TERRACE_REQUIRES(mutex_);
  void note_room() TERRACE_REQUIRES(mutex_);
  void wait_attempt() TERRACE_REQUIRES(mutex_);  // until the fold thread has tried
  Status fold_all() TERRACE_REQUIRES(mutex_);
  Status fold_through(uint64_t sequence) TERRACE_REQUIRES(mutex_);
  Status copy_database(const std::string& path);
  Status make_room(size_t record_bytes) TERRACE_REQUIRES(mutex_);
  Status commit_directly(const Delta& delta) TERRACE_REQUIRES(mutex_);
  Status append() TERRACE_REQUIRES(mutex_);
  Error in_doubt(Error cause) TERRACE_REQUIRES(mutex_);
  Error refuse(Error cause) TERRACE_REQUIRES(mutex_);

  void fold_loop();
  void try_fold() TERRACE_REQUIRES(mutex_);  // the sealed segment
  void wake_folding() TERRACE_REQUIRES(mutex_);
  void fold_without_thread(uint64_t since);
  Status fold_segment(const JournalSegment& segment) TERRACE_REQUIRES(database_mutex_);

  const std::string path_;
  const StoreOptions options_;
  CommitMarkFile mark_;
  std::optional<CommitMarkFile> memory_mark_;  // the same beside the memory

  Mutex attached_mutex_ TERRACE_ACQUIRED_BEFORE(mutex_);  // opening, closing and copying

  Mutex database_mutex_;
  Database database_ TERRACE_GUARDED_BY(database_mutex_);

  Mutex mutex_ TERRACE_ACQUIRED_BEFORE(database_mutex_);
  ConditionVariable wake_fold_, folded_;
  std::array<JournalSegment, segment_count> segments_;
  size_t active_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::optional<size_t> sealed_ TERRACE_GUARDED_BY(mutex_);
  uint64_t store_id_ = 0;
  uint64_t store_high_ = 0;
  uint64_t sequence_ = 0;                                  // of the newest commit
  uint64_t in_database_ TERRACE_GUARDED_BY(mutex_) = 0;    // of the newest commit whose fold has ended
  uint64_t fold_attempts_ TERRACE_GUARDED_BY(mutex_) = 0;  // finished ones
  Status fold_status_ TERRACE_GUARDED_BY(mutex_);          // of the last one
  bool fold_wanted_ TERRACE_GUARDED_BY(mutex_) =
      false;  // somebody waits: try now, even if the last attempt failed
  bool stopping_ TERRACE_GUARDED_BY(mutex_) = false;
  bool fold_handed_out_ TERRACE_GUARDED_BY(mutex_) = false;  // to fold_later, and was not called yet
  std::thread fold_thread_;

  std::atomic<uint64_t> room_bytes_ = 0, used_bytes_ = 0;  // as note_room() saw them

  ByteBuffer record_;
  std::optional<Image> verified_;
  bool quick_ = false;
  bool fresh_ = false;              // this object made the store
  bool failed_ = true;              // until attached, and after an outcome that nobody knows
  bool distrust_segments_ = false;  // a write or sync failed: new files after the next replay
};

}  // namespace terrace::daemon
