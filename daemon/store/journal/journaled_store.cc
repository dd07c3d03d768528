// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/journal/journaled_store.h"

#include <fcntl.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "core/base/check.h"
#include "core/base/failpoint.h"
#include "daemon/store/backup/hosts_part.h"
#include "daemon/store/backup/older_version.h"
#include "daemon/store/backup/restore.h"
#include "daemon/store/backup/store_copy_file.h"
#include "daemon/store/store_files.h"

namespace terrace::daemon {
namespace {

constexpr const char* segment_suffixes[] = {"-journal-a", "-journal-b"};
// Rows merged before they go into one database transaction: bounds what a fold takes in memory.
constexpr size_t rows_per_fold = 8192;
// Memory that a record's buffer keeps from one commit to the next.
constexpr size_t record_bytes_kept = 256 * kib;

Error error_of(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "Store", .detail = std::move(detail)};
}

std::string backup_path(const std::string& state_path) {
  return state_path + "-backup";
}

}  // namespace

JournaledStore::JournaledStore(std::string path, const StoreOptions& options)
    : path_(std::move(path)), options_(options), database_(path_, options) {}

JournaledStore::~JournaledStore() {
  const MutexLock attached(attached_mutex_);
  detach();
}

// --- opening and closing ----------------------------------------------------------------------------

Status JournaledStore::attach() {
  const MutexLock attached(attached_mutex_);
  detach();
  Status status = attach_unexplained();
  if (status.ok()) {
    distrust_segments_ = false;
    failed_ = false;
    {
      const MutexLock lock(mutex_);
      stopping_ = false;
      fold_status_ = Status();
    }
    if (!options_.fold_later) fold_thread_ = std::thread([this] { fold_loop(); });
    return status;
  }
  detach();
  Error error = status.error();
  if (error.detail.find(path_) == std::string::npos) error.detail = "store " + path_ + ": " + error.detail;
  if (error.code == ErrorCode::corrupt && error.detail.find("restore") == std::string::npos)
    error.detail +=
        "; nothing was changed: restore the store's files together, from one copy of them, or see what "
        "`terrace state salvage` can still read";
  if (error.code == ErrorCode::busy && error.os_errno == 0 &&
      error.detail.find("terraced") == std::string::npos)
    error.detail += "; another program has the file open, close it first";
  return error;
}

// Until the database's first transaction nothing on the disk is changed but a missing file made: what is
// refused stays as it was found.
Status JournaledStore::attach_unexplained() {
  const MutexLock lock(mutex_);  // nobody else asks before the store is attached
  const MutexLock database_lock(database_mutex_);
  TERRACE_RETURN_IF_ERROR(make_parent_folder(path_));
  TERRACE_ASSIGN_OR_RETURN(mark_, CommitMarkFile::lock(path_ + "-mark", path_));
  TERRACE_RETURN_IF_ERROR(finish_restore(path_, mark_));
  TERRACE_RETURN_IF_ERROR(mark_.load(path_ + "-mark"));
  remove_database(backup_path(path_));  // of one that a crash cut off
  TERRACE_ASSIGN_OR_RETURN(const bool created, create_if_fresh(path_, mark_, options_.migrations));
  fresh_ = fresh_ || created;
  if (options_.keep_older) {
    TERRACE_ASSIGN_OR_RETURN(const KeptVersion kept,
                             keep_older_version(path_, options_.migrations.back().version));
    if (!kept.folder.empty()) options_.keep_older(kept.folder, kept.version);
  }
  TERRACE_ASSIGN_OR_RETURN(StoredImage stored, database_.begin_open());
  store_id_ = stored.seal.store_id;
  store_high_ = stored.seal.store_high;
  if (mark_.mark().has_value() && mark_.mark()->store_id != store_id_) {
    return error_of(ErrorCode::corrupt,
                    path_ + "-mark belongs to another store; to accept this one, move the mark away");
  }
  TERRACE_RETURN_IF_ERROR(open_segments(stored.seal));
  if (!mark_.mark().has_value()) {  // before the database gets a log: one without a mark is refused
    mark_.record({store_id_, stored.seal.sequence});
    TERRACE_RETURN_IF_ERROR(mark_.sync());
  }
  TERRACE_ASSIGN_OR_RETURN(Replay replayed, replay(stored.seal.sequence));
  TERRACE_RETURN_IF_ERROR(database_.finish_open(replayed.delta, {.sequence = replayed.sequence}));
  sequence_ = in_database_ = replayed.sequence;
  TERRACE_RETURN_IF_ERROR(renew_segments(store_id_));
  quick_ = segments_[0].in_memory() && segments_[1].in_memory();
  mark_.record({store_id_, sequence_});
  TERRACE_RETURN_IF_ERROR(mark_.sync());
  TERRACE_RETURN_IF_ERROR(sync_folder_of(path_));
  verified_ = std::move(stored.image);
  apply_delta(std::move(replayed.delta), *verified_);
  return {};
}

Status JournaledStore::open_segments(const StoreSeal& seal) {
  active_ = 0;
  sealed_.reset();
  for (size_t i = 0; i < segment_count; ++i) {
    const std::string path = path_ + segment_suffixes[i];
    TERRACE_ASSIGN_OR_RETURN(std::optional<JournalSegment> segment, JournalSegment::open(path, seal.store_id));
    if (segment.has_value()) {
      segments_[i] = std::move(*segment);
    } else if (seal.journal) {
      return error_of(ErrorCode::corrupt, path + " is missing, but commits that are not in " + path_ +
                                              " yet may be in it. Put it back");
    } else {
      TERRACE_ASSIGN_OR_RETURN(segments_[i],
                               JournalSegment::create(path, options_.segment_bytes, seal.store_id));
    }
  }
  if (seal.journal && !mark_.mark().has_value()) {
    return error_of(ErrorCode::corrupt, path_ +
                                            "-mark is missing, so that nobody can tell whether the journal " +
                                            path_ + "-journal-a, -b is whole. Put the mark back");
  }
  return {};
}

Result<Replay> JournaledStore::replay(uint64_t folded) {
  std::array<std::vector<std::byte>, segment_count> memory;
  std::vector<FoundRecord> records;
  for (size_t i = 0; i < segment_count; ++i) {
    TERRACE_ASSIGN_OR_RETURN(const std::vector<FoundRecord> found, segments_[i].read(memory[i], true));
    records.insert(records.end(), found.begin(), found.end());
  }
  const uint64_t marked = mark_.mark().has_value() ? mark_.mark()->sequence : 0;
  return replay_journal(records, {.folded = folded, .marked = marked});
}

// Everything is in the database now. Files of another size, from another kind of file system, or that failed a
// write are made anew.
Status JournaledStore::renew_segments(uint64_t store_id) {
  for (size_t i = 0; i < segment_count; ++i) {
    if (!distrust_segments_ && segments_[i].made_for(options_.segment_bytes)) continue;
    TERRACE_ASSIGN_OR_RETURN(
        segments_[i], JournalSegment::create(path_ + segment_suffixes[i], options_.segment_bytes, store_id));
  }
  return {};
}

void JournaledStore::stop_folding() {
  if (!fold_thread_.joinable()) return;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_fold_.notify_all();
  fold_thread_.join();
}

void JournaledStore::detach() {
  stop_folding();
  const MutexLock lock(mutex_);
  const MutexLock database_lock(database_mutex_);
  // A healthy store leaves one whole file; a doubtful one leaves everything as it was found.
  bool whole = !failed_;
  if (whole && sealed_.has_value()) whole = fold_segment(segments_[*sealed_]).ok();
  if (whole && !segments_[active_].empty()) whole = fold_segment(segments_[active_]).ok();
  if (whole) whole = database_.fold(Delta{}, {.sequence = sequence_, .journal = false}).ok();
  database_.close(whole);
  if (whole) [[maybe_unused]]
    const Status synced = mark_.sync();  // a weaker lower bound is still one
  mark_ = CommitMarkFile();
  segments_ = {};
  verified_.reset();
  failed_ = true;
}

bool JournaledStore::discard_if_fresh() {
  if (!fresh_) return false;
  const MutexLock attached(attached_mutex_);
  stop_folding();
  const MutexLock database_lock(database_mutex_);
  database_.close();
  failed_ = true;
  remove_store_files(path_);
  return true;
}

// --- calls ------------------------------------------------------------------------------------------

Result<Image> JournaledStore::load() {
  if (verified_.has_value()) {
    Image image = std::move(*verified_);
    verified_.reset();
    return image;
  }
  if (failed_) {
    TERRACE_RETURN_IF_ERROR(attach());
    return load();
  }
  // Both stay as they are meanwhile: no fold, and commits come from this thread.
  const MutexLock database_lock(database_mutex_);
  TERRACE_ASSIGN_OR_RETURN(StoredImage stored, database_.read());
  TERRACE_ASSIGN_OR_RETURN(Replay replayed, replay(stored.seal.sequence));
  apply_delta(std::move(replayed.delta), stored.image);
  return std::move(stored.image);
}

Status JournaledStore::commit(const Delta& delta) {
  if (delta.empty()) return {};
  if (failed_)
    return error_of(ErrorCode::io_error, "store " + path_ + ": an earlier commit ended in doubt; load first");
  TERRACE_RETURN_IF_ERROR(RowWriter::check(delta));
  verified_.reset();
  record_.clear();
  record_.resize(sizeof(RecordHeader));
  encode_delta(delta, record_);
  const MutexLock lock(mutex_);
  Status status = segments_[active_].ever_fits(record_.size()) ? append() : commit_directly(delta);
  record_.shrink(record_bytes_kept);
  return status;
}

Status JournaledStore::append() {
  TERRACE_RETURN_IF_ERROR(make_room(record_.size()));
  seal_record(record_, store_id_, sequence_ + 1);
  JournalSegment& segment = segments_[active_];
  if (const int code = TERRACE_FAILPOINT(journal_before_append); code != 0)
    return refuse(os_error(code, "journal_before_append", "cannot write to the journal " + segment.path()));
  if (Status appended = segment.append(record_, sequence_ + 1); !appended.ok())
    return in_doubt(appended.error());
  if (const int code = TERRACE_FAILPOINT(journal_after_append); code != 0)
    return in_doubt(os_error(code, "journal_after_append", "cannot sync the journal " + segment.path()));
  if (Status synced = segment.sync(); !synced.ok()) return in_doubt(synced.error());
  if (const int code = TERRACE_FAILPOINT(journal_after_sync); code != 0)
    return in_doubt(os_error(code, "journal_after_sync", "cannot confirm the commit in " + segment.path()));
  ++sequence_;
  acknowledge();
  if (options_.fold_later) wake_folding();  // the thread looks by itself when nothing came for a while
  return {};
}

// Whether the record is on the disk, nobody knows; nor whether the page cache tells the truth about it. The
// next load() reads the files again, folds what is there into the database and makes new ones.
Error JournaledStore::in_doubt(Error cause) {
  failed_ = true;
  distrust_segments_ = true;
  cause.code = ErrorCode::io_error;
  return cause;
}

// Nothing was written yet; a full disk may have room again.
Error JournaledStore::refuse(Error cause) {
  return cause.code == ErrorCode::capacity_exhausted ? cause : in_doubt(std::move(cause));
}

Status JournaledStore::make_room(size_t record_bytes) {
  if (segments_[active_].fits(record_bytes)) return {};
  if (Status folded = wait_folded(); !folded.ok()) {
    Error error = folded.error();
    error.detail = "the journal of store " + path_ + " is full and cannot be folded into it: " + error.detail;
    if (error.code == ErrorCode::capacity_exhausted) {
      error.detail += "; free space on its file system, the store then goes on by itself";
    } else {
      error.code = ErrorCode::io_error;
      failed_ = true;
    }
    return error;
  }
  seal_active();
  wake_folding();
  return {};
}

// Too large for a segment: once the journal is empty, straight into the database.
Status JournaledStore::commit_directly(const Delta& delta) {
  TERRACE_RETURN_IF_ERROR(fold_all());
  const MutexLock database_lock(database_mutex_);
  Status folded = database_.fold(delta, {.sequence = sequence_ + 1});
  if (!folded.ok()) {
    if (folded.error().code == ErrorCode::capacity_exhausted) return folded;
    failed_ = true;
    Error error = folded.error();
    error.code = ErrorCode::io_error;
    return error;
  }
  in_database_ = ++sequence_;
  acknowledge();
  return {};
}

Result<AuditPage> JournaledStore::audit(const AuditQuery& query) {
  if (failed_) return error_of(ErrorCode::io_error, "store " + path_ + ": a commit ended in doubt; load first");
  {
    const MutexLock lock(mutex_);
    TERRACE_RETURN_IF_ERROR(fold_all());
  }
  const MutexLock database_lock(database_mutex_);
  return database_.audit(query);
}

void JournaledStore::acknowledge() {
  note_room();
  mark_.record({store_id_, sequence_});
  if (memory_mark_.has_value()) memory_mark_->record({store_id_, sequence_});
}

void JournaledStore::note_room() {
  uint64_t room = 0, used = 0;
  for (const JournalSegment& segment : segments_) {
    room += segment.room_bytes();
    used += segment.used_bytes();
  }
  room_bytes_.store(room, std::memory_order_relaxed);
  used_bytes_.store(used, std::memory_order_relaxed);
}

// What an older file says is of a history that this store has taken the place of.
Status JournaledStore::mark_also(const std::string& path) {
  const MutexLock lock(mutex_);
  memory_mark_.reset();
  if (path.empty()) return {};
  TERRACE_ASSIGN_OR_RETURN(CommitMarkFile mark, CommitMarkFile::lock(path, path_));
  TERRACE_RETURN_IF_ERROR(mark.clear());
  TERRACE_RETURN_IF_ERROR(mark.load(path));
  mark.record({store_id_, sequence_});
  memory_mark_ = std::move(mark);
  return {};
}

bool JournaledStore::older_than_mark(const std::string& path) const {
  const auto mark = CommitMarkFile::peek(path);
  return mark.has_value() && mark->store_id == store_id_ && mark->sequence > sequence_;
}

// The commits of before are in the database first. What commits add meanwhile may be folded between two pieces of the
// copy, and is in it then.
Result<StoreBackup> JournaledStore::backup() {
  const MutexLock attached(attached_mutex_);
  {
    const MutexLock lock(mutex_);
    if (failed_)
      return error_of(ErrorCode::io_error, "store " + path_ + ": a commit ended in doubt; try again");
    TERRACE_RETURN_IF_ERROR(fold_through(sequence_));
  }
  const std::string path = backup_path(path_);
  const auto make = [&]() -> Result<StoreBackup> {
    if (const int code = TERRACE_FAILPOINT(backup_before_copy); code != 0)
      return os_error(code, "backup_before_copy", "cannot copy the store " + path_);
    TERRACE_RETURN_IF_ERROR(copy_database(path));
    TERRACE_ASSIGN_OR_RETURN(StoreContents contents, seal_copy(path, options_));
    TERRACE_RETURN_IF_ERROR(append_hosts(path, path_));
    TERRACE_ASSIGN_OR_RETURN(const HostsPart hosts, read_hosts(path));
    contents.bytes += hosts.bytes;
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!file.valid()) return os_error(errno, "Store::backup", "cannot open " + path);
    if (const int code = TERRACE_FAILPOINT(backup_after_copy); code != 0)
      return os_error(code, "backup_after_copy", "cannot hand out the copy of " + path_);
    return StoreBackup{contents, std::move(file)};
  };
  remove_database(path);
  Result<StoreBackup> made = make();
  remove_database(path);
  return made;
}

Status JournaledStore::copy_database(const std::string& path) {
  {
    const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.valid()) return os_error(errno, "Store::backup", "cannot create " + path);
    const MutexLock database_lock(database_mutex_);
    TERRACE_RETURN_IF_ERROR(database_.begin_copy(path));
  }
  for (bool done = false; !done;) {
    const MutexLock database_lock(database_mutex_);
    const Result<bool> piece = database_.copy_piece();
    if (!piece.ok() || *piece) database_.end_copy();
    if (!piece.ok()) return piece.error();
    done = *piece;
  }
  return {};
}

// --- folding ----------------------------------------------------------------------------------------

void JournaledStore::seal_active() {
  TERRACE_CHECK(other_free(), "a segment is sealed while the other one is free");
  sealed_ = active_;
  active_ = (active_ + 1) % segment_count;
}

Status JournaledStore::wait_folded() {
  // An attempt that is under way began before it was asked for; one that failed may be that one.
  for (int failures = 0; sealed_.has_value();) {
    wait_attempt();
    if (!fold_status_.ok() && ++failures == 2) return fold_status_;
  }
  return {};
}

void JournaledStore::wait_attempt() {
  if (options_.fold_later) return try_fold();
  const uint64_t before = fold_attempts_;
  fold_wanted_ = true;
  wake_fold_.notify_all();
  folded_.wait(mutex_, [&]() TERRACE_REQUIRES(mutex_) { return fold_attempts_ != before; });
}

// As fold_all, where another thread may commit meanwhile: the segments may be in use again at any time.
Status JournaledStore::fold_through(uint64_t sequence) {
  for (int failures = 0; in_database_ < sequence;) {
    if (!sealed_.has_value()) seal_active();
    wait_attempt();
    if (!fold_status_.ok() && ++failures == 2) return fold_status_;
  }
  return {};
}

Status JournaledStore::fold_all() {
  TERRACE_RETURN_IF_ERROR(wait_folded());
  if (segments_[active_].empty()) return {};
  seal_active();
  return wait_folded();
}

void JournaledStore::fold_loop() {
  const auto idle = std::chrono::nanoseconds(options_.idle_fold_ns);
  const MutexLock lock(mutex_);
  while (!stopping_) {
    if (!sealed_.has_value() || (!fold_status_.ok() && !fold_wanted_)) {
      // Until there is something to fold, or to try again.
      const uint64_t before = sequence_;
      const bool woken = wake_fold_.wait_for(mutex_, idle, [this]() TERRACE_REQUIRES(mutex_) {
        return stopping_ || (sealed_.has_value() && (fold_status_.ok() || fold_wanted_));
      });
      if (stopping_) break;
      if (!woken && !sealed_.has_value() && sequence_ == before && !segments_[active_].empty()) seal_active();
      if (!sealed_.has_value()) continue;
    }
    try_fold();
  }
}

void JournaledStore::try_fold() {
  fold_wanted_ = false;
  const size_t index = *sealed_;
  Status folded;
  {
    const MutexUnlock unlocked(mutex_);  // a sealed segment is for whoever folds
    const MutexLock database_lock(database_mutex_);
    folded = fold_segment(segments_[index]);
  }
  if (folded.ok()) {
    in_database_ = segments_[index].newest();
    segments_[index].rewind();
    sealed_.reset();
    note_room();
  }
  fold_status_ = std::move(folded);
  ++fold_attempts_;
  folded_.notify_all();
}

void JournaledStore::wake_folding() {
  wake_fold_.notify_all();
  if (!options_.fold_later || std::exchange(fold_handed_out_, true)) return;
  options_.fold_later([this, since = sequence_] { fold_without_thread(since); });
}

// One round of fold_loop(); `since` is the newest commit at its beginning.
void JournaledStore::fold_without_thread(uint64_t since) {
  const MutexLock lock(mutex_);
  fold_handed_out_ = false;
  if (failed_) return;
  if (!sealed_.has_value() && sequence_ != since) return wake_folding();
  if (!sealed_.has_value() && !segments_[active_].empty()) seal_active();
  if (sealed_.has_value() && fold_status_.ok()) try_fold();
}

Status JournaledStore::fold_segment(const JournalSegment& segment) {
  std::vector<std::byte> memory;
  TERRACE_ASSIGN_OR_RETURN(const std::vector<FoundRecord> records, segment.read(memory, false));
  Delta delta;
  uint64_t at = database_.seal().sequence;
  for (const FoundRecord& record : records) {
    if (record.sequence <= at) continue;  // of an earlier round, or folded by an attempt that failed later
    if (record.sequence != at + 1) break;
    TERRACE_RETURN_IF_ERROR(decode_delta(record.payload, delta));
    at = record.sequence;
    if (delta.leases.size() + delta.audit.size() < rows_per_fold) continue;
    TERRACE_RETURN_IF_ERROR(database_.fold(delta, {.sequence = at}));
    delta = Delta{};
  }
  if (at < segment.newest()) {
    return error_of(ErrorCode::corrupt,
                    "commit " + std::to_string(at + 1) + " cannot be read back from " + segment.path());
  }
  TERRACE_RETURN_IF_ERROR(database_.fold(delta, {.sequence = at}));
  return mark_.sync();
}

Result<std::unique_ptr<Store>> open_store(const std::string& path, const StoreOptions& options) {
  if (path.empty())
    return Error{.code = ErrorCode::invalid_argument, .where = "open_store", .detail = "no state path"};
  auto store = std::make_unique<JournaledStore>(path, options);
  TERRACE_RETURN_IF_ERROR(store->attach());
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<Store>> open_store(const std::string& path) {
  return open_store(path, StoreOptions{});
}

}  // namespace terrace::daemon
