// SPDX-License-Identifier: Apache-2.0
#include "libclient/checkpoint/chunks.h"

#include <algorithm>
#include <cstdlib>
#include <future>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <system_error>

#include "core/base/crc32c.h"
#include "core/os/io/block_io.h"
#include "libclient/io/transfer.h"

namespace terrace::checkpoint {
namespace {

struct FreeDelete {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::byte, FreeDelete>;

Status write_chunk(const ChunkFile& file, uint64_t begin, std::span<const std::byte> bytes,
                   const BlockIoOptions& io) {
  const std::span<const std::byte> segments[1] = {bytes};
  const auto report = write_blocks(file.fd, file.path, begin, segments, io);
  return report.ok() ? Status() : Status(report.error());
}

}  // namespace

Status for_each_chunk(const ChunkFile& from, const ChunkFile& to, uint64_t file_bytes, uint64_t chunk_bytes,
                      const TransferOptions& options,
                      const std::function<Status(uint64_t number, uint32_t crc32c)>& each) {
  std::vector<uint64_t> numbers(file_bytes / chunk_bytes + (file_bytes % chunk_bytes != 0 ? 1 : 0));
  std::iota(numbers.begin(), numbers.end(), uint64_t{0});
  BlockIoOptions io = block_io_options(options);
  io.progress = {};
  ChunkWork work{.check = each};
  if (to.fd >= 0)
    work.use = [&](uint64_t begin, std::span<const std::byte> bytes) {
      return write_chunk(to, begin, bytes, io);
    };
  const auto report = for_chunks(from, file_bytes, chunk_bytes, numbers, options, work);
  return report.ok() ? Status() : Status(report.error());
}

Result<BlockIoReport> for_chunks(const ChunkFile& from, uint64_t file_bytes, uint64_t chunk_bytes,
                                 std::span<const uint64_t> numbers, const TransferOptions& options,
                                 const ChunkWork& work) try {
  const Buffer buffers[2] = {Buffer(static_cast<std::byte*>(std::aligned_alloc(4096, chunk_bytes))),
                             Buffer(static_cast<std::byte*>(std::aligned_alloc(4096, chunk_bytes)))};
  if (buffers[0] == nullptr || buffers[1] == nullptr) throw std::bad_alloc();
  BlockIoOptions io = block_io_options(options);
  io.progress = {};
  uint64_t done = 0, total = 0;
  for (const uint64_t number : numbers) total += std::min(chunk_bytes, file_bytes - number * chunk_bytes);
  BlockIoReport sum;
  std::future<uint32_t> checksum;  // of the chunk before
  for (size_t index = 0; index < numbers.size(); ++index) {
    const uint64_t begin = numbers[index] * chunk_bytes;
    const std::span<std::byte> bytes = {buffers[index % 2].get(), std::min(chunk_bytes, file_bytes - begin)};
    TERRACE_ASSIGN_OR_RETURN(const BlockIoReport part, read_blocks(from.fd, from.path, begin, {&bytes, 1}, io));
    sum += part;
    if (checksum.valid()) TERRACE_RETURN_IF_ERROR(work.check(numbers[index - 1], checksum.get()));
    checksum = std::async(std::launch::async, [bytes] { return crc32c(bytes); });
    if (work.use) TERRACE_RETURN_IF_ERROR(work.use(begin, bytes));
    done += bytes.size();
    if (options.progress) options.progress(done, total);
    if (options.cancelled && options.cancelled()) return cancelled_error("checkpoint", from.path);
  }
  if (checksum.valid()) TERRACE_RETURN_IF_ERROR(work.check(numbers.back(), checksum.get()));
  return sum;
} catch (const std::bad_alloc&) {
  return Error{
      .code = ErrorCode::out_of_memory, .where = "checkpoint", .detail = from.path + ": no local memory"};
} catch (const std::system_error&) {
  return Error{.code = ErrorCode::out_of_memory,
               .where = "checkpoint",
               .detail = from.path + ": no thread could be started"};
}

}  // namespace terrace::checkpoint
