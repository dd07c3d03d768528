// SPDX-License-Identifier: Apache-2.0
#include "libclient/checkpoint/write.h"

#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <new>
#include <system_error>
#include <thread>

#include "core/base/clock.h"
#include "core/base/crc32c.h"
#include "core/base/signals_blocked.h"
#include "core/base/sync/mutex.h"
#include "core/os/fault_guard.h"
#include "core/os/io/block_io.h"
#include "libclient/checkpoint/space_cut.h"
#include "libclient/io/pool_transfer.h"
#include "libclient/io/transfer.h"

namespace terrace::checkpoint {
namespace {

constexpr const char* where = "checkpoint";
constexpr uint64_t room_piece_bytes_max = 64 * mib;
// Written at once: long enough that the disk is seldom idle between two, short enough that copies aside are
// free again soon.
constexpr uint64_t window_bytes = 4 * chunk_bytes;

Error lost(const std::string& name) {
  return {.code = ErrorCode::lease_expired,
          .where = where,
          .detail = "checkpoint '" + name +
                    "': a lease behind its tensors is lost, and bytes of the snapshot with it"};
}

Error no_tensors() {
  return {.code = ErrorCode::invalid_argument, .where = where, .detail = "a checkpoint of no tensors"};
}

// Whole granules of the pool that are free now, in CXL where there are some there: at most `bytes`. Errors:
// those of a lost lease.
Status take_room(TensorPool& pool, uint64_t bytes, std::vector<std::shared_ptr<Tensor>>& room) {
  const uint64_t granule = pool.range().granule_bytes();
  uint64_t piece = room_piece_bytes_max;
  while (bytes >= granule && piece >= 2 * granule) {
    // Smaller ones would share their granules with others' tensors.
    const uint64_t wanted = std::max(std::min(piece, round_up(bytes, granule)), 2 * granule);
    auto made = pool.create({.dtype = DType::u8, .shape = {wanted}, .flags = TensorFlags::streaming});
    if (!made.ok()) {
      if (made.error().code != ErrorCode::capacity_exhausted) return std::move(made).error();
      piece /= 2;
      continue;
    }
    // A copy into pages that do not exist yet would take three times as long, while a store waits for it.
    // An older kernel cannot (EINVAL), which costs no more than that.
    if (::madvise((*made)->data(), wanted, MADV_POPULATE_WRITE) != 0 && errno == EFAULT)
      return Error{.code = ErrorCode::lease_expired,
                   .where = where,
                   .detail = "a lease behind the pool's free memory is lost"};
    bytes -= std::min(bytes, wanted);
    room.push_back(std::move(*made));
  }
  return {};
}

class Write final : public CheckpointWrite {
 public:
  ~Write() override;
  // `snapshot` is asked for the plan's bytes once the name and the disk space are there.
  using TakeSnapshot = std::function<Result<std::unique_ptr<Snapshot>>()>;
  Status begin(const std::string& directory, const std::string& name, PoolFilePlan plan,
               const CheckpointOptions& options, const TakeSnapshot& snapshot);
  // Of plan_, with room in the pool.
  Result<std::unique_ptr<Snapshot>> freeze(TensorPool& pool);

  bool done() const override {
    if (forked()) return true;
    const MutexLock lock(mutex_);
    return done_;
  }
  Status wait(uint64_t timeout_ns) override;
  CheckpointProgress progress() const override;
  void cancel() override { cancelled_.store(true, std::memory_order_relaxed); }

 private:
  std::vector<std::span<std::byte>> room() const {
    std::vector<std::span<std::byte>> all;
    for (const auto& tensor : room_) all.push_back(tensor->bytes());
    return all;
  }
  void run();
  Status drain();
  struct Chunk {
    uint64_t begin = 0;
    std::vector<FileSegment> segments;
    std::vector<std::span<const std::byte>> now;  // where they are read
    uint32_t sum = 0;
  };
  std::vector<Chunk> chunks_within(uint64_t begin, uint64_t end) const;
  Status write_once(std::span<Chunk> chunks, const BlockIoOptions& io);
  Status write_window(uint64_t begin, uint64_t end, const BlockIoOptions& io);
  std::vector<std::span<const std::byte>> places(std::span<const FileSegment> segments) const;
  bool given_up() const {
    return cancelled_.load(std::memory_order_relaxed) || (options_.cancelled && options_.cancelled());
  }
  void let_go();
  // For the thread that writes, which alone lets it go; null: no tensor has bytes.
  Snapshot* snapshot() const {
    const MutexLock lock(mutex_);
    return snapshot_.get();
  }
  // In a child of fork a thread that the child does not have may hold the mutex, and nobody writes.
  bool forked() const { return ::getpid() != process_; }

  const int process_ = ::getpid();
  CheckpointOptions options_;
  Manifest manifest_;
  PoolFilePlan plan_;  // keeps the tensors, and with them the memory
  std::vector<std::shared_ptr<Tensor>> room_;
  std::unique_ptr<Snapshot> snapshot_ TERRACE_GUARDED_BY(mutex_);  // before room_ and plan_ go
  std::unique_ptr<NewFolder> folder_;
  std::atomic<bool> cancelled_{false};

  mutable Mutex mutex_;
  std::unique_ptr<ConditionVariable> changed_ = std::make_unique<ConditionVariable>();
  bool done_ TERRACE_GUARDED_BY(mutex_) = false;
  Status result_ TERRACE_GUARDED_BY(mutex_);
  CheckpointProgress progress_ TERRACE_GUARDED_BY(mutex_);
  std::thread thread_;
};

Write::~Write() {
  if (forked()) {  // a child of fork: neither thread, nor files, nor memory are its own
    if (thread_.joinable()) thread_.detach();
    (void)folder_.release();
    (void)changed_.release();  // destroying it would wait for threads of the parent that wait at it
    (void)snapshot_.release();
    return;
  }
  cancel();
  if (thread_.joinable()) thread_.join();
  let_go();
}

void Write::let_go() {
  std::unique_ptr<Snapshot> snapshot;  // goes without the mutex: progress() asks for that meanwhile
  {
    const MutexLock lock(mutex_);
    snapshot = std::move(snapshot_);
  }
  snapshot.reset();
  room_.clear();
  plan_ = {};
  folder_.reset();
}

Status Write::begin(const std::string& directory, const std::string& name, PoolFilePlan plan,
                    const CheckpointOptions& options, const TakeSnapshot& snapshot) {
  options_ = options;
  plan_ = std::move(plan);
  TERRACE_ASSIGN_OR_RETURN(folder_, NewFolder::make(directory, name, plan_.total_bytes));
  manifest_.name = name;
  manifest_.created_unix_ns = wall_clock_ns();
  manifest_.tensors = plan_.tensor_count;
  manifest_.tensor_bytes = plan_.tensor_bytes;
  manifest_.file_bytes = plan_.total_bytes;
  {
    const MutexLock lock(mutex_);
    progress_.file_bytes = plan_.total_bytes;
  }
  if (plan_.tensor_bytes > 0) {
    TERRACE_ASSIGN_OR_RETURN(auto taken, snapshot());
    const MutexLock lock(mutex_);
    snapshot_ = std::move(taken);
  }
  Status started;
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& refused) {
    started = os_error(refused.code().value(), where, "cannot start the thread that writes (ulimit -u?)");
  }
  return started;
}

Result<std::unique_ptr<Snapshot>> Write::freeze(TensorPool& pool) {
  std::vector<std::span<const std::byte>> parts;
  const uint64_t granule = pool.range().granule_bytes();
  const std::byte* const base = pool.range().bytes().data();
  std::vector<bool> frozen_granules(pool.range().bytes().size() / granule, false);
  for (const FileSegment& segment : std::span(plan_.segments).subspan(1)) {
    parts.push_back(segment.bytes);
    const auto offset = static_cast<uint64_t>(segment.bytes.data() - base);
    for (uint64_t number = offset / granule; number <= (offset + segment.bytes.size() - 1) / granule; ++number)
      frozen_granules[number] = true;
  }
  const auto granules_bytes =
      static_cast<uint64_t>(std::count(frozen_granules.begin(), frozen_granules.end(), true)) * granule;
  const bool half = options_.room_bytes_max == UINT64_MAX;
  const uint64_t most = half ? pool.statistics().free_bytes / 2 : options_.room_bytes_max;
  TERRACE_RETURN_IF_ERROR(take_room(pool, std::min(granules_bytes, most), room_));
  auto frozen = pool.range().freeze(parts, room());
  if (half && granules_bytes > most && !frozen.ok() && frozen.error().code == ErrorCode::capacity_exhausted) {
    // What cannot be protected needs room for all of it.
    TERRACE_RETURN_IF_ERROR(take_room(pool, granules_bytes - std::min(granules_bytes, most), room_));
    frozen = pool.range().freeze(parts, room());
  }
  if (!frozen.ok()) {
    Error error = std::move(frozen).error();
    if (error.code == ErrorCode::capacity_exhausted)
      error.detail += "; the pool has that much too little free memory for a checkpoint";
    return error;
  }
  return frozen;
}

Status Write::wait(uint64_t timeout_ns) {
  if (forked())
    return Error{
        .code = ErrorCode::unavailable,
        .where = where,
        .detail = "checkpoint '" + manifest_.name + "' is written by the process that forked this one"};
  const MutexLock lock(mutex_);
  const auto longest = std::chrono::nanoseconds(std::min<uint64_t>(timeout_ns, INT64_MAX / 4));
  if (!changed_->wait_for(mutex_, longest, [this]() TERRACE_REQUIRES(mutex_) { return done_; }))
    return Error{.code = ErrorCode::busy,
                 .where = where,
                 .detail = "checkpoint '" + manifest_.name + "' is still being written"};
  return result_;
}

CheckpointProgress Write::progress() const {
  if (forked()) return {};
  const MutexLock lock(mutex_);
  CheckpointProgress now = progress_;
  if (snapshot_ == nullptr) return now;
  const SnapshotStatus status = snapshot_->status();
  now.pause_ns = status.freeze_ns;
  now.snapshot_bytes = status.bytes;
  now.copied_bytes = status.copied_bytes;
  now.copied_at_once_bytes = status.copied_at_once_bytes;
  now.room_bytes = status.room_bytes;
  now.waits_for_room = status.waits_for_room;
  now.reason = status.reason;
  return now;
}

void Write::run() {
  Status result;
  try {
    result = drain();
  } catch (const std::bad_alloc&) {
    result = Error{.code = ErrorCode::out_of_memory, .where = where, .detail = "no local memory"};
  } catch (const std::system_error&) {
    result = Error{.code = ErrorCode::out_of_memory, .where = where, .detail = "no thread could be started"};
  }
  const CheckpointProgress last = progress();
  {
    const MutexLock lock(mutex_);
    progress_ = last;
  }
  let_go();
  const MutexLock lock(mutex_);
  result_ = std::move(result);
  done_ = true;
  changed_->notify_all();
}

// Where the bytes of these segments are now; the header is where it always is.
std::vector<std::span<const std::byte>> Write::places(std::span<const FileSegment> segments) const {
  std::vector<std::span<const std::byte>> all;
  const Snapshot* const frozen = snapshot();
  for (const FileSegment& segment : segments) {
    if (segment.file_offset < plan_.header.size()) {
      all.push_back(segment.bytes);
      continue;
    }
    const auto view = frozen->view(segment.bytes);
    all.insert(all.end(), view.begin(), view.end());
  }
  return all;
}

bool same(const std::vector<std::span<const std::byte>>& a, const std::vector<std::span<const std::byte>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& one, const auto& other) {
    return one.data() == other.data() && one.size() == other.size();
  });
}

uint32_t sum_of(const std::vector<std::span<const std::byte>>& places) {
  uint32_t sum = 0;
  for (const auto place : places) sum = crc32c(place, sum);
  return sum;
}

std::vector<Write::Chunk> Write::chunks_within(uint64_t begin, uint64_t end) const {
  std::vector<Chunk> chunks;
  for (; begin < end; begin += chunk_bytes) {
    chunks.emplace_back();
    chunks.back().begin = begin;
    chunks.back().segments = segments_within(plan_.segments, begin, std::min(end, begin + chunk_bytes));
    chunks.back().now = places(chunks.back().segments);
  }
  return chunks;
}

// The device and the checksums read the program's own pages.
Status Write::write_once(std::span<Chunk> chunks, const BlockIoOptions& io) {
  std::vector<std::span<const std::byte>> all;
  for (const Chunk& chunk : chunks) all.insert(all.end(), chunk.now.begin(), chunk.now.end());
  if (std::any_of(all.begin(), all.end(), [](const auto& place) { return place.data() == nullptr; }))
    return lost(manifest_.name);
  auto sums = std::async(std::launch::async, [chunks] {
    return os::guarded([&] {
      for (Chunk& chunk : chunks) chunk.sum = sum_of(chunk.now);
    });
  });
  const auto written = write_blocks(folder_->fd(), folder_->data_path(), chunks[0].begin, all, io);
  if (!sums.get()) return lost(manifest_.name);
  if (written.ok()) return {};
  return written.error().os_errno == EFAULT ? lost(manifest_.name) : written.error();
}

Status Write::write_window(uint64_t begin, uint64_t end, const BlockIoOptions& io) {
  std::vector<Chunk> chunks = chunks_within(begin, end);
  Snapshot* const frozen = snapshot();
  TERRACE_RETURN_IF_ERROR(write_once(chunks, io));
  for (Chunk& chunk : chunks) {
    // If the program stored to it meanwhile the snapshot's bytes are elsewhere by now, and the chunk is done
    // again: at most once a granule.
    for (auto now = places(chunk.segments); !same(chunk.now, now); now = places(chunk.segments)) {
      chunk.now = std::move(now);
      TERRACE_RETURN_IF_ERROR(write_once({&chunk, 1}, io));
    }
    for (const FileSegment& segment : chunk.segments)
      if (segment.file_offset >= plan_.header.size()) frozen->release(segment.bytes);
    manifest_.crc32c.push_back(chunk.sum);
  }
  return {};
}

Status Write::drain() {
  BlockIoOptions io = block_io_options(options_);
  io.progress = {};
  io.cancelled = [this] { return given_up(); };
  for (uint64_t begin = 0; begin < plan_.total_bytes; begin += window_bytes) {
    const uint64_t end = std::min(plan_.total_bytes, begin + window_bytes);
    TERRACE_RETURN_IF_ERROR(write_window(begin, end, io));
    {
      const MutexLock lock(mutex_);
      progress_.written_bytes = end;
    }
    if (options_.progress) options_.progress(end, plan_.total_bytes);
  }
  if (given_up()) return cancelled_error(where, folder_->data_path());
  return folder_->commit(manifest_);
}

}  // namespace

Result<std::unique_ptr<CheckpointWrite>> start_write(const std::string& directory, const std::string& name,
                                                     TensorPool& pool,
                                                     std::span<const std::shared_ptr<Tensor>> tensors,
                                                     const CheckpointOptions& options) {
  if (tensors.empty()) return no_tensors();
  TERRACE_ASSIGN_OR_RETURN(PoolFilePlan plan, plan_pool_file(pool, tensors, options.metadata, where));
  auto write = std::make_unique<Write>();
  Write* const made = write.get();
  TERRACE_RETURN_IF_ERROR(
      write->begin(directory, name, std::move(plan), options, [&] { return made->freeze(pool); }));
  return std::unique_ptr<CheckpointWrite>(std::move(write));
}

Result<std::unique_ptr<CheckpointWrite>> start_write(const std::string& directory, const std::string& name,
                                                     TensorSpace& space, std::span<const SharedTensor> tensors,
                                                     const SpaceCheckpointOptions& options) {
  if (tensors.empty()) return no_tensors();
  TERRACE_RETURN_IF_ERROR(check_name(name));
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<SpaceCut> cut, SpaceCut::take(space, tensors, options));
  TERRACE_ASSIGN_OR_RETURN(PoolFilePlan plan, plan_file(cut->views(), options.metadata, where));
  CheckpointOptions of_files;
  static_cast<TransferOptions&>(of_files) = options;
  auto write = std::make_unique<Write>();
  TERRACE_RETURN_IF_ERROR(write->begin(directory, name, std::move(plan), of_files,
                                       [&] { return Result<std::unique_ptr<Snapshot>>(std::move(cut)); }));
  return std::unique_ptr<CheckpointWrite>(std::move(write));
}

}  // namespace terrace::checkpoint
