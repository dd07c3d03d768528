// SPDX-License-Identifier: Apache-2.0
#include "core/os/io/block_io.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/os/fault_guard.h"
#include "core/os/io/block_plan.h"
#include "core/os/io/io_queue.h"

namespace terrace {
namespace {

using block_plan::Chunk;
using block_plan::Kind;
using block_plan::Planner;
using block_plan::Segment;

// Every disk and file system that Debian 12 runs on accepts 4 KiB; some accept less, which gains nothing here.
constexpr uint64_t direct_alignment_bytes = 4096;
constexpr uint64_t block_bytes_max = 64 * mib;
constexpr uint32_t queue_depth_max = 1024;
// EAGAIN means that the kernel is short of something for a moment. About two seconds of it is a failure.
constexpr int again_max = 2000;

struct FreeDelete {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Staging = std::unique_ptr<std::byte, FreeDelete>;

struct Request {
  Chunk chunk;
  std::byte* memory = nullptr;  // where io_offset's byte goes
  uint64_t done_bytes = 0;      // of io_bytes
  bool direct = false;          // through the O_DIRECT descriptor
  bool active = false;
  int agains = 0;
  Staging staging;
};

// A second descriptor of the same open file, with O_DIRECT; through /proc so that it is the same inode even if
// the name was replaced meanwhile.
UniqueFd open_direct(int fd, bool write, uint64_t block_bytes, std::string& reason) {
  struct statx status {};
#if defined(STATX_DIOALIGN)
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN) != 0) {
    if (status.stx_dio_offset_align == 0) {
      reason = "the file system does not support O_DIRECT on this file";
      return {};
    }
    if (std::max(status.stx_dio_offset_align, status.stx_dio_mem_align) > direct_alignment_bytes) {
      reason = "the file system wants an O_DIRECT alignment above 4 KiB";
      return {};
    }
  }
#endif
  if (block_bytes % direct_alignment_bytes != 0) {
    reason = "the block size is no multiple of 4 KiB";
    return {};
  }
  char path[64];
  std::snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  UniqueFd direct(::open(path, (write ? O_WRONLY : O_RDONLY) | O_DIRECT | O_CLOEXEC));
  if (!direct.valid()) reason = std::string("opening the file with O_DIRECT failed: ") + std::strerror(errno);
  return direct;
}

class Transfer {
 public:
  Transfer(int fd, std::string_view name, bool write, uint64_t offset, const std::vector<Segment>& segments,
           const BlockIoOptions& options)
      : fd_(fd),
        name_(name),
        write_(write),
        start_(offset),
        options_(options),
        direct_(options.direct ? open_direct(fd, write, options.block_bytes, report_.direct_reason)
                               : UniqueFd()),
        planner_(offset, segments,
                 {.block_bytes = options.block_bytes,
                  .alignment_bytes = direct_.valid() ? direct_alignment_bytes : 0,
                  .write = write}),
        queue_(options.queue_depth, options.io_uring && planner_.total_bytes() > 0),
        requests_(queue_.io_uring() ? options.queue_depth : 1) {
    if (!options.direct) report_.direct_reason = "switched off by the caller";
    report_.io_uring = queue_.io_uring();
    report_.io_uring_reason = queue_.reason();
    report_.bytes = planner_.total_bytes();
  }

  Result<BlockIoReport> run() {
    while (true) {
      if (!error_ && options_.cancelled && options_.cancelled()) {
        fail(Error{.code = ErrorCode::cancelled, .where = where(), .detail = name_ + ": given up"});
      }
      fill();
      if (active_ == 0) break;
      reap();
    }
    if (error_) return std::move(*error_);
    return std::move(report_);
  }

 private:
  const char* where() const { return write_ ? "write_blocks" : "read_blocks"; }

  void fail(Error error) {
    if (!error_) error_ = std::move(error);
  }

  // Starts requests until the queue is full, the work is handed out, or something failed.
  void fill() {
    for (Request& request : requests_) {
      if (error_ || planner_.done()) return;
      if (request.active) continue;
      request.chunk = planner_.next();
      request.done_bytes = 0;
      request.agains = 0;
      request.direct = request.chunk.kind != Kind::buffered;
      if (!place(request)) return;
      request.active = true;
      ++active_;
      start(request);
    }
  }

  bool place(Request& request) {
    if (request.chunk.kind != Kind::staged) {
      request.memory = planner_.address(request.chunk);
      return true;
    }
    if (!request.staging) {
      request.staging.reset(
          static_cast<std::byte*>(std::aligned_alloc(direct_alignment_bytes, options_.block_bytes)));
      if (!request.staging) {
        fail(
            Error{.code = ErrorCode::out_of_memory, .where = where(), .detail = name_ + ": no staging buffer"});
        return false;
      }
    }
    request.memory = request.staging.get();
    if (!write_) return true;
    const bool there = os::guarded([&] {
      planner_.for_each_piece(request.chunk, [&](const std::byte* memory, uint64_t at, uint64_t bytes) {
        std::memcpy(request.memory + at, memory, bytes);
      });
    });
    if (!there) fail(os_error(EFAULT, where(), name_ + ": memory went away while it was written"));
    return there;
  }

  // Hands the request's remainder to the queue; without a ring, that does it now.
  void start(Request& request) {
    const int fd = request.direct ? direct_.get() : fd_;
    std::byte* memory = request.memory + request.done_bytes;
    const uint64_t bytes = request.chunk.io_bytes - request.done_bytes;
    const uint64_t offset = request.chunk.io_offset + request.done_bytes;
    if (write_)
      queue_.write(fd, memory, bytes, offset, &request);
    else
      queue_.read(fd, memory, bytes, offset, &request);
  }

  // Waits for at least one request and completes all that are finished.
  void reap() {
    std::vector<IoQueue::Done> finished;
    if (const int os_errno = queue_.wait(&finished); os_errno != 0) {
      // Nothing may be left in flight when the caller gets its memory back. A ring that keeps failing is a kernel defect.
      fail(os_error(os_errno, where(), name_ + ": io_uring_enter failed"));
      TERRACE_CHECK(++ring_failures_ < again_max, "io_uring_enter keeps failing with requests in flight");
    }
    for (const IoQueue::Done& one : finished) complete(*static_cast<Request*>(one.tag), one.result);
  }

  void complete(Request& request, int64_t result) {
    const Chunk& chunk = request.chunk;
    const uint64_t needed = chunk.offset + chunk.bytes - chunk.io_offset;  // done_bytes that satisfy the caller
    if (result < 0) {
      retry_or_fail(request, static_cast<int>(-result));
      return;
    }
    request.done_bytes += static_cast<uint64_t>(result);
    if (request.done_bytes >= needed) {
      finish(request);
      return;
    }
    if (result == 0) {
      abandon(request, write_ ? os_error(EIO, where(), name_ + ": the kernel wrote nothing")
                              : Error{.code = ErrorCode::io_error,
                                      .where = where(),
                                      .detail = name_ + ": the file ended before byte " +
                                                std::to_string(chunk.io_offset + request.done_bytes) +
                                                ", it was longer before; somebody is changing it"});
      return;
    }
    // A short transfer: go on behind it. O_DIRECT cannot start unaligned, the page cache can.
    if (request.done_bytes % direct_alignment_bytes != 0) request.direct = false;
    request.agains = 0;
    again(request);
  }

  void retry_or_fail(Request& request, int os_errno) {
    if ((os_errno == EINVAL || os_errno == EFAULT) && request.direct) {  // EFAULT: memory that cannot be pinned
      report_.direct_reason = std::string("an O_DIRECT request was refused: ") + std::strerror(os_errno);
      planner_.give_up_direct();
      request.direct = false;
      again(request);
    } else if (os_errno == EINTR || (os_errno == EAGAIN && ++request.agains < again_max)) {
      if (os_errno == EAGAIN) ::poll(nullptr, 0, 1);
      again(request);
    } else {
      abandon(request, os_error(os_errno, where(),
                                name_ + (write_ ? ": writing failed at byte " : ": reading failed at byte ") +
                                    std::to_string(request.chunk.io_offset + request.done_bytes)));
    }
  }

  void again(Request& request) {
    if (error_) {
      release(request);
    } else {
      start(request);
    }
  }

  void abandon(Request& request, Error error) {
    fail(std::move(error));
    release(request);
  }

  void release(Request& request) {
    request.active = false;
    --active_;
  }

  void finish(Request& request) {
    const Chunk& chunk = request.chunk;
    if (chunk.kind == Kind::staged && !write_) {
      const bool there = os::guarded([&] {
        planner_.for_each_piece(chunk, [&](std::byte* memory, uint64_t at, uint64_t bytes) {
          std::memcpy(memory, request.memory + at, bytes);
        });
      });
      if (!there) fail(os_error(EFAULT, where(), name_ + ": memory went away while it was read into"));
    }
    if (!request.direct) {
      report_.buffered_bytes += chunk.bytes;
    } else {
      (chunk.kind == Kind::staged ? report_.staged_bytes : report_.straight_bytes) += chunk.bytes;
    }
    release(request);
    if (!options_.progress || error_) return;
    uint64_t complete_to = planner_.position();
    for (const Request& other : requests_) {
      if (other.active) complete_to = std::min(complete_to, other.chunk.offset);
    }
    options_.progress(complete_to - start_, planner_.total_bytes());
  }

  int fd_;
  std::string name_;
  bool write_;
  uint64_t start_;
  const BlockIoOptions& options_;
  BlockIoReport report_;
  UniqueFd direct_;
  Planner planner_;
  IoQueue queue_;
  std::vector<Request> requests_;
  std::optional<Error> error_;
  uint32_t active_ = 0;
  int ring_failures_ = 0;
};

Result<BlockIoReport> transfer(int fd, std::string_view name, bool write, uint64_t offset,
                               const std::vector<Segment>& segments, const BlockIoOptions& options) {
  const char* where = write ? "write_blocks" : "read_blocks";
  if (options.queue_depth == 0 || options.queue_depth > queue_depth_max ||
      options.block_bytes < direct_alignment_bytes || options.block_bytes > block_bytes_max ||
      options.block_bytes % direct_alignment_bytes != 0) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = "queue depth must be 1 to 1024, block size a multiple of 4 KiB up to 64 MiB"};
  }
  uint64_t end = offset;
  if (end > static_cast<uint64_t>(INT64_MAX)) {
    return Error{
        .code = ErrorCode::invalid_argument, .where = where, .detail = "file offset beyond 2^63 bytes"};
  }
  for (const Segment& segment : segments) {
    if (__builtin_add_overflow(end, segment.bytes, &end) || end > static_cast<uint64_t>(INT64_MAX)) {
      return Error{
          .code = ErrorCode::invalid_argument, .where = where, .detail = "file range beyond 2^63 bytes"};
    }
  }
  return Transfer(fd, name, write, offset, segments, options).run();
}

}  // namespace

Result<BlockIoReport> read_blocks(int fd, std::string_view name, uint64_t file_offset,
                                  std::span<const std::span<std::byte>> segments,
                                  const BlockIoOptions& options) {
  std::vector<Segment> list;
  list.reserve(segments.size());
  for (const auto& segment : segments) list.push_back({segment.data(), segment.size()});
  return transfer(fd, name, false, file_offset, list, options);
}

Result<BlockIoReport> write_blocks(int fd, std::string_view name, uint64_t file_offset,
                                   std::span<const std::span<const std::byte>> segments,
                                   const BlockIoOptions& options) {
  std::vector<Segment> list;
  list.reserve(segments.size());
  // One planner serves both directions; a write never stores through the pointer.
  for (const auto& segment : segments) list.push_back({const_cast<std::byte*>(segment.data()), segment.size()});
  return transfer(fd, name, true, file_offset, list, options);
}

}  // namespace terrace
