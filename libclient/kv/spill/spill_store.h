// SPDX-License-Identifier: Apache-2.0
// KvSpill: a process's side of a spill folder.
//
//   put      spill_put.cc     a copy into an aligned buffer, queued
//   thread   spill_thread.cc  frames to the disk and back, many at once; then the index
//   get      spill_get.cc     what is queued, read ahead, or on the disk
//   store    spill_store.cc   open, close, figures, erase, flush
//
// A block that is evicted from a space comes with hashes in the place of keys: begin_put() and fetch() are for spaces.
//
// Threads   Any. The I/O thread alone uses queue_io_ and log_, and inserts into the index.
#pragma once

#include <unistd.h>

#include <deque>
#include <set>
#include <thread>
#include <unordered_map>

#include "core/base/clock.h"
#include "core/os/io/io_queue.h"
#include "libclient/kv/spill/segment_log.h"

namespace terrace::kv {

// A block on its way to the disk.
struct SpillWrite {
  SpillBlock block;                  // as it was put: anybody looks at it
  SpillBlock placed;                 // with hash, place and record: the I/O thread's
  std::shared_ptr<std::byte> frame;  // data and names
  SpillToken token;
  uint32_t uses = 0;
  bool hashed = false;
  bool cancelled = false;  // under the store's mutex
  uint64_t number = 0;     // in the order of puts
};

// A block that was found, with its bytes.
struct SpillFrame {
  SpillBlock block;
  std::shared_ptr<const std::byte> frame;
  uint32_t uses = 0;  // before this one
  std::span<const std::byte> bytes() const { return {frame.get(), static_cast<size_t>(block.bytes)}; }
};

class SpillStore final : public KvSpill {
 public:
  SpillStore(std::unique_ptr<SpillFolder> folder, const KvSpillOptions& options);
  ~SpillStore() override;
  Status start();
  bool forked() const { return ::getpid() != process_; }

  Status put(const KvNamespace& name_space, const KvSpillPut& put) override;
  Result<uint64_t> get(const KvNamespace& name_space, const KvGet& get) override;
  Result<uint64_t> length(const KvNamespace& name_space, std::string_view key) override;
  Status exists(const KvNamespace& name_space, std::span<const std::string_view> keys,
                std::span<bool> found) override;
  Result<uint64_t> prefetch(const KvNamespace& name_space, std::span<const std::string_view> keys) override;
  Status erase(const KvNamespace& name_space, std::string_view key) override;
  Result<uint64_t> flush(const std::optional<KvNamespace>& name_space) override;
  Status drain() override;
  Result<KvSpillStat> stat() override;
  KvSpillCounters counters() const override;
  void close() override;

  // --- for spaces

  // Room for data and names of a block, unless it is there already, or is dropped. `block` has key, bytes, parent,
  // name_space and expires_unix_s. What was erased is compared with what it was at this call.
  struct Begun {
    std::shared_ptr<SpillWrite> write;
    bool is_there = false;
  };
  Begun begin_put(const SpillBlock& block, uint64_t extent_bytes);
  // One of the two ends what begin_put() began.
  void finish_put(std::shared_ptr<SpillWrite> write);
  void cancel_put(const SpillWrite& write);
  std::optional<SpillFrame> fetch(const BlockKey& key, std::string_view name_space, std::string_view name);
  std::optional<SpillBlock> look_up(const BlockKey& key);
  SpillToken token(const BlockKey& key) { return folder_->map().token(key); }

 private:
  // A block that is read ahead.
  struct Ahead {
    SpillBlock block;
    std::shared_ptr<std::byte> frame;
    enum class State : uint8_t { waits, reading, ready, failed } state = State::waits;
    uint64_t number = 0;
  };
  // In flight; one of the two.
  struct Request {
    std::shared_ptr<SpillWrite> write;
    std::shared_ptr<Ahead> ahead;
    uint64_t done_bytes = 0;
    uint64_t offset = 0, bytes = 0;
    std::byte* memory = nullptr;
  };

  bool usable() const;
  Error unusable() const;
  static Status check_key(std::string_view key);
  void note_error(int os_errno, const std::string& what);
  void pause_writes(uint64_t ns);

  // spill_get.cc
  std::optional<SpillFrame> fetch_queued(const BlockKey& key, std::string_view name_space,
                                         std::string_view name);
  std::optional<SpillFrame> fetch_ahead(const BlockKey& key, std::string_view name_space,
                                        std::string_view name);
  std::optional<SpillFrame> read(const SpillBlock& block, std::string_view name_space, std::string_view name);
  bool read_frame(const SpillBlock& block, std::byte* into);
  std::optional<SpillBlock> find(const BlockKey& key);
  bool is_current(const SpillBlock& block);
  void make_room_ahead(uint64_t bytes) TERRACE_REQUIRES(mutex_);

  // spill_thread.cc
  void run();
  bool wait_for_work();
  void start_requests();
  bool start_read();
  bool start_write();
  void hand_over(Request* request);
  void finish_requests();
  void finish(Request* request, int64_t result);
  void finish_write(const std::shared_ptr<SpillWrite>& write, int os_errno);
  void finish_ahead(const std::shared_ptr<Ahead>& ahead, int os_errno);
  void done_with(const SpillWrite& write);
  void fill_another_segment();
  void drop_queued();
  void tend();
  void take_slot_later();

  const std::unique_ptr<SpillFolder> folder_;
  const KvSpillOptions options_;
  const pid_t process_ = ::getpid();
  SystemClock clock_;
  BufferPool buffers_;
  mutable SpillCounts counts_;
  std::unique_ptr<SegmentLog> log_;
  std::atomic<int32_t> slot_ = -1;
  std::atomic<bool> lost_ = false;  // the map was cut off
  std::atomic<bool> closed_ = false;
  std::atomic<uint64_t> paused_until_ns_ = 0;  // puts are dropped
  std::atomic<uint64_t> waiting_count_ = 0, ahead_count_ = 0;

  mutable Mutex mutex_;
  ConditionVariable work_, done_;
  std::deque<std::shared_ptr<SpillWrite>> queue_ TERRACE_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<SpillWrite>> waiting_ TERRACE_GUARDED_BY(mutex_);  // by key[0]
  std::set<uint64_t> unfinished_ TERRACE_GUARDED_BY(mutex_);                                      // numbers
  uint64_t queued_bytes_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t next_number_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Ahead>> ahead_queue_ TERRACE_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<Ahead>> ahead_ TERRACE_GUARDED_BY(mutex_);
  uint64_t ahead_bytes_ TERRACE_GUARDED_BY(mutex_) = 0;
  std::string last_error_ TERRACE_GUARDED_BY(mutex_);
  bool ends_ TERRACE_GUARDED_BY(mutex_) = false;

  // The I/O thread's.
  std::unique_ptr<IoQueue> queue_io_;
  uint32_t in_flight_ = 0;
  bool disk_full_ = false;
  uint64_t tends_at_ms_ = 0;
  uint64_t takes_slot_at_ms_ = 0;
  std::string io_uring_reason_;  // set before the thread begins
  bool io_uring_ = false;
  Mutex close_mutex_;
  std::thread thread_;
};

inline SpillStore& store_of(KvSpill& spill) {
  return static_cast<SpillStore&>(spill);  // there is no other kind
}

}  // namespace terrace::kv
