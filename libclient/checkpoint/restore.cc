// SPDX-License-Identifier: Apache-2.0
#include "libclient/checkpoint/restore.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/crc32c.h"
#include "core/os/fault_guard.h"
#include "libclient/checkpoint/subset.h"
#include "libclient/io/pool_transfer.h"
#include "libclient/io/prefault.h"
#include "libclient/io/transfer.h"

namespace terrace::checkpoint {
namespace {

constexpr const char* where = "checkpoint";

// Checksums each chunk of the file, in memory, as soon as the read has passed it.
class FollowingChunks {
 public:
  FollowingChunks(const Manifest& manifest, const std::vector<FileSegment>& segments)
      : manifest_(manifest), segments_(segments), thread_([this] { follow(); }) {}
  ~FollowingChunks() {
    if (!thread_.joinable()) return;
    arrived(given_up);
    thread_.join();
  }

  // The file's first `bytes` bytes are in memory. release pairs with follow()'s acquire.
  void arrived(uint64_t bytes) {
    arrived_.store(bytes, std::memory_order_release);
    arrived_.notify_one();
  }
  // All of it is: the first chunk that is not what it was, or none.
  std::optional<uint64_t> finish() {
    arrived(manifest_.file_bytes);
    thread_.join();
    return wrong_;
  }
  bool lost() const { return lost_; }  // of the memory that was checked; after finish()

 private:
  static constexpr uint64_t given_up = UINT64_MAX;

  void follow() {
    for (uint64_t number = 0; number < manifest_.crc32c.size(); ++number) {
      const uint64_t begin = number * manifest_.chunk_bytes;
      const uint64_t end = std::min(begin + manifest_.chunk_bytes, manifest_.file_bytes);
      uint64_t arrived = arrived_.load(std::memory_order_acquire);  // acquire: pairs with arrived()
      while (arrived < end) {
        arrived_.wait(arrived, std::memory_order_acquire);   // acquire: pairs with arrived()
        arrived = arrived_.load(std::memory_order_acquire);  // acquire: pairs with arrived()
      }
      if (arrived == given_up) return;
      uint32_t sum = 0;
      const std::vector<FileSegment> parts = segments_within(segments_, begin, end);
      lost_ = !os::guarded([&] {
        for (const FileSegment& segment : parts) sum = crc32c(segment.bytes, sum);
      });
      if (!lost_ && sum == manifest_.crc32c[number]) continue;
      wrong_ = number;
      return;
    }
  }

  const Manifest& manifest_;
  const std::vector<FileSegment>& segments_;
  std::atomic<uint64_t> arrived_{0};
  std::optional<uint64_t> wrong_;  // these two are the thread's until it is joined
  bool lost_ = false;
  std::thread thread_;
};

Error lost(const std::string& path) {
  return {.code = ErrorCode::lease_expired,
          .where = where,
          .detail = path + ": a lease behind the pool is lost, and what was read into it"};
}

// Some of the tensors, through a buffer: their bytes and those of others are in the same chunks.
Result<PoolImport> restore_some(const SafetensorsFile& file, const std::string& path, const Manifest& manifest,
                                TensorPool& pool, const PoolImportOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> entries,
                           choose_checked(file, path, manifest, options.tensors));
  PoolImport result;
  TERRACE_ASSIGN_OR_RETURN(result.tensors, tensors_for(pool, path, entries, options));
  result.metadata = file.index.metadata;
  result.report.tensors = entries.size();
  const bool has_device = pool.statistics().hbm.capacity_bytes > 0;
  std::vector<WriteGuard> guards;  // a replica on a device is older from now on
  std::vector<std::span<std::byte>> targets;
  for (const auto& tensor : result.tensors) {
    if (has_device && !tensor->bytes().empty()) {
      TERRACE_ASSIGN_OR_RETURN(WriteGuard guard, tensor->write({.wait = GuardWait::never}));
      guards.push_back(std::move(guard));
    }
    targets.push_back(tensor->bytes());
    result.report.tensor_bytes += tensor->bytes().size();
  }
  result.report.total_bytes = result.report.tensor_bytes;
  const Prefault prefault(std::span<const std::span<std::byte>>{targets});
  TERRACE_ASSIGN_OR_RETURN(
      BlockIoReport io,
      read_some(file, path, manifest, entries, options,
                [&](size_t index, uint64_t offset, std::span<const std::byte> bytes) -> Status {
                  const bool there = os::guarded(
                      [&] { std::memcpy(targets[index].data() + offset, bytes.data(), bytes.size()); });
                  return there ? Status() : Status(lost(path));
                }));
  io.staged_bytes += std::exchange(io.straight_bytes, 0);  // into the buffer, not where they belong
  fill_in(result.report, io);
  return result;
}

}  // namespace

Result<SafetensorsFile> open_data(const std::string& path, const Manifest& manifest) {
  TERRACE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  if (file.index.file_bytes == manifest.file_bytes && file.index.tensors.size() == manifest.tensors)
    return file;
  return Error{
      .code = ErrorCode::corrupt, .where = where, .detail = path + ": is not the file that its manifest is of"};
}

Result<PoolImport> restore(const std::string& path, const Manifest& manifest, TensorPool& pool,
                           const PoolImportOptions& options) try {
  TERRACE_ASSIGN_OR_RETURN(const SafetensorsFile file, open_data(path, manifest));
  if (!options.tensors.empty()) return restore_some(file, path, manifest, pool, options);
  PoolImport result;
  TERRACE_ASSIGN_OR_RETURN(result.tensors, tensors_for(pool, path, file.index.tensors, options));
  result.metadata = file.index.metadata;
  result.report.tensors = result.tensors.size();
  std::vector<std::byte> header(file.index.buffer_offset);
  TERRACE_RETURN_IF_ERROR(read_exactly(file.fd.get(), path, 0, header));
  std::vector<FileSegment> segments = {{0, header}};
  for (size_t index = 0; index < result.tensors.size(); ++index)
    if (file.index.tensors[index].bytes > 0)
      segments.push_back({file.index.tensors[index].file_offset, result.tensors[index]->bytes()});
  FollowingChunks following(manifest, segments);
  const Status read = read_into_pool(
      pool, file, path, file.index.tensors, result.tensors, options,
      [&](uint64_t done) { following.arrived(file.index.buffer_offset + done); }, result.report);
  if (!read.ok() && read.error().os_errno == EFAULT) return lost(path);
  TERRACE_RETURN_IF_ERROR(read);
  const auto wrong = following.finish();
  if (following.lost()) return lost(path);
  if (wrong) return damaged_chunk(path, manifest, *wrong);
  TERRACE_RETURN_IF_ERROR(file.check_not_written(path));
  if (options.cancelled && options.cancelled()) return cancelled_error(where, path);
  return result;
} catch (const std::bad_alloc&) {
  return Error{.code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no local memory"};
} catch (const std::system_error&) {
  return Error{
      .code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no thread could be started"};
}

}  // namespace terrace::checkpoint
