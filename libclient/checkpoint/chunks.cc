#include "libclient/checkpoint/chunks.h"

#include <algorithm>
#include <cstdlib>
#include <future>
#include <memory>
#include <new>
#include <span>
#include <system_error>

#include "core/base/crc32c.h"
#include "core/os/block_io.h"
#include "libclient/io/transfer.h"

namespace terrace::checkpoint {
namespace {

struct FreeDelete {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<std::byte, FreeDelete>;

Status read_chunk(const ChunkFile& file, uint64_t begin, std::span<std::byte> bytes, const BlockIoOptions& io) {
  const std::span<std::byte> segments[1] = {bytes};
  const auto report = read_blocks(file.fd, file.path, begin, segments, io);
  return report.ok() ? Status() : Status(report.error());
}

Status write_chunk(const ChunkFile& file, uint64_t begin, std::span<const std::byte> bytes,
                   const BlockIoOptions& io) {
  const std::span<const std::byte> segments[1] = {bytes};
  const auto report = write_blocks(file.fd, file.path, begin, segments, io);
  return report.ok() ? Status() : Status(report.error());
}

}  // namespace

Status for_each_chunk(const ChunkFile& from, const ChunkFile& to, uint64_t file_bytes, uint64_t chunk_bytes,
                      const TransferOptions& options,
                      const std::function<Status(uint64_t number, uint32_t crc32c)>& each) try {
  const Buffer buffers[2] = {Buffer(static_cast<std::byte*>(std::aligned_alloc(4096, chunk_bytes))),
                             Buffer(static_cast<std::byte*>(std::aligned_alloc(4096, chunk_bytes)))};
  if (buffers[0] == nullptr || buffers[1] == nullptr) throw std::bad_alloc();
  BlockIoOptions io = block_io_options(options);
  io.progress = {};
  std::future<uint32_t> checksum;  // of the chunk before
  for (uint64_t begin = 0, number = 0; begin < file_bytes || checksum.valid(); begin += chunk_bytes, ++number) {
    std::span<std::byte> bytes;
    if (begin < file_bytes) {
      bytes = {buffers[number % 2].get(), std::min(chunk_bytes, file_bytes - begin)};
      TERRACE_RETURN_IF_ERROR(read_chunk(from, begin, bytes, io));
    }
    if (checksum.valid()) TERRACE_RETURN_IF_ERROR(each(number - 1, checksum.get()));
    if (bytes.empty()) break;
    checksum = std::async(std::launch::async, [bytes] { return crc32c(bytes); });
    if (to.fd >= 0) TERRACE_RETURN_IF_ERROR(write_chunk(to, begin, bytes, io));
    if (options.progress) options.progress(begin + bytes.size(), file_bytes);
    if (options.cancelled && options.cancelled()) return cancelled_error("checkpoint", from.path);
  }
  return {};
} catch (const std::bad_alloc&) {
  return Error{
      .code = ErrorCode::out_of_memory, .where = "checkpoint", .detail = from.path + ": no local memory"};
} catch (const std::system_error&) {
  return Error{.code = ErrorCode::out_of_memory,
               .where = "checkpoint",
               .detail = from.path + ": no thread could be started"};
}

}  // namespace terrace::checkpoint
