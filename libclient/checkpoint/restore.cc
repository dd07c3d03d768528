#include "libclient/checkpoint/restore.h"

#include <atomic>
#include <new>
#include <system_error>
#include <thread>

#include "core/base/crc32c.h"
#include "libclient/io/pool_transfer.h"
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

 private:
  static constexpr uint64_t given_up = UINT64_MAX;

  void follow() {
    for (uint64_t number = 0; number < manifest_.crc32c.size(); ++number) {
      const uint64_t begin = number * manifest_.chunk_bytes;
      const uint64_t end = std::min(begin + manifest_.chunk_bytes, manifest_.file_bytes);
      uint64_t arrived = arrived_.load(std::memory_order_acquire);
      while (arrived < end) {
        arrived_.wait(arrived, std::memory_order_acquire);
        arrived = arrived_.load(std::memory_order_acquire);
      }
      if (arrived == given_up) return;
      uint32_t sum = 0;
      for (const FileSegment& segment : segments_within(segments_, begin, end))
        sum = crc32c(segment.bytes, sum);
      if (sum == manifest_.crc32c[number]) continue;
      wrong_ = number;
      return;
    }
  }

  const Manifest& manifest_;
  const std::vector<FileSegment>& segments_;
  std::atomic<uint64_t> arrived_{0};
  std::optional<uint64_t> wrong_;  // the thread's until it is joined
  std::thread thread_;
};

}  // namespace

Result<PoolImport> restore(const std::string& path, const Manifest& manifest, TensorPool& pool,
                           const PoolImportOptions& options) try {
  if (!options.tensors.empty())
    return Error{
        .code = ErrorCode::invalid_argument,
        .where = where,
        .detail = "a checkpoint is restored as a whole; import_safetensors takes some tensors of its file"};
  TERRACE_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  if (file.index.file_bytes != manifest.file_bytes || file.index.tensors.size() != manifest.tensors)
    return Error{.code = ErrorCode::corrupt,
                 .where = where,
                 .detail = path + ": is not the file that its manifest is of"};
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
  TERRACE_RETURN_IF_ERROR(read_into_pool(
      pool, file, path, file.index.tensors, result.tensors, options,
      [&](uint64_t done) { following.arrived(file.index.buffer_offset + done); }, result.report));
  if (const auto wrong = following.finish())
    return Error{.code = ErrorCode::corrupt,
                 .where = where,
                 .detail = path + ": bytes " + std::to_string(*wrong * manifest.chunk_bytes) + " to " +
                           std::to_string(std::min((*wrong + 1) * manifest.chunk_bytes, manifest.file_bytes)) +
                           " do not have the checksum that they were written with"};
  TERRACE_RETURN_IF_ERROR(file.check_unchanged(path));
  if (options.cancelled && options.cancelled()) return cancelled_error(where, path);
  return result;
} catch (const std::bad_alloc&) {
  return Error{.code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no local memory"};
} catch (const std::system_error&) {
  return Error{
      .code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no thread could be started"};
}

}  // namespace terrace::checkpoint
