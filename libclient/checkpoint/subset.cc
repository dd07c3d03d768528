// SPDX-License-Identifier: Apache-2.0
#include "libclient/checkpoint/subset.h"

#include <algorithm>

#include "libclient/checkpoint/chunks.h"
#include "libclient/io/pool_transfer.h"
#include "libclient/io/replace_file.h"
#include "libclient/io/transfer.h"

namespace terrace::checkpoint {
namespace {

std::vector<uint64_t> chunks_of(const Manifest& manifest, uint64_t header_bytes,
                                std::span<const SafetensorsEntry> entries) {
  std::vector<uint64_t> numbers;
  const auto add = [&](uint64_t begin, uint64_t end) {
    for (uint64_t number = begin / manifest.chunk_bytes; number * manifest.chunk_bytes < end; ++number)
      if (numbers.empty() || numbers.back() < number) numbers.push_back(number);
  };
  add(0, header_bytes);
  for (const SafetensorsEntry& entry : entries)
    if (entry.bytes > 0) add(entry.file_offset, entry.file_offset + entry.bytes);
  return numbers;
}

// The pieces of `entries` that lie in these bytes of the file.
Status for_each_piece(std::span<const SafetensorsEntry> entries, uint64_t begin,
                      std::span<const std::byte> bytes, const UsePiece& use) {
  const uint64_t end = begin + bytes.size();
  const auto first = std::partition_point(entries.begin(), entries.end(), [&](const SafetensorsEntry& entry) {
    return entry.file_offset + entry.bytes <= begin;
  });
  for (auto at = first; at != entries.end() && at->file_offset < end; ++at) {
    if (at->bytes == 0) continue;
    const uint64_t from = std::max(begin, at->file_offset), to = std::min(end, at->file_offset + at->bytes);
    TERRACE_RETURN_IF_ERROR(use(static_cast<size_t>(at - entries.begin()), from - at->file_offset,
                                bytes.subspan(from - begin, to - from)));
  }
  return {};
}

}  // namespace

Result<std::vector<SafetensorsEntry>> choose_checked(const SafetensorsFile& file, const std::string& path,
                                                     const Manifest& manifest,
                                                     const std::vector<std::string>& names) {
  auto chosen = choose_entries(file.index, path, names, "checkpoint");
  if (chosen.ok()) return chosen;
  const auto header = read_some(file, path, manifest, {}, {}, {});
  return header.ok() ? std::move(chosen) : Result<std::vector<SafetensorsEntry>>(header.error());
}

Error damaged_chunk(const std::string& path, const Manifest& manifest, uint64_t number) {
  const uint64_t begin = number * manifest.chunk_bytes;
  return {.code = ErrorCode::corrupt,
          .where = "checkpoint",
          .detail = path + ": bytes " + std::to_string(begin) + " to " +
                    std::to_string(std::min(begin + manifest.chunk_bytes, manifest.file_bytes)) +
                    " do not have the checksum that they were written with"};
}

Result<BlockIoReport> read_some(const SafetensorsFile& file, const std::string& path, const Manifest& manifest,
                                std::span<const SafetensorsEntry> entries, const TransferOptions& options,
                                const UsePiece& use) {
  const std::vector<uint64_t> numbers = chunks_of(manifest, file.index.buffer_offset, entries);
  ChunkWork work;
  work.use = [&](uint64_t begin, std::span<const std::byte> bytes) {
    return for_each_piece(entries, begin, bytes, use);
  };
  work.check = [&](uint64_t number, uint32_t sum) -> Status {
    if (sum == manifest.crc32c[number]) return {};
    return damaged_chunk(path, manifest, number);
  };
  TERRACE_ASSIGN_OR_RETURN(
      const BlockIoReport report,
      for_chunks({file.fd.get(), path}, manifest.file_bytes, manifest.chunk_bytes, numbers, options, work));
  TERRACE_RETURN_IF_ERROR(file.check_not_written(path));
  return report;
}

Status write_some(const SafetensorsFile& file, const std::string& path, const Manifest& manifest,
                  std::span<const SafetensorsEntry> entries, const std::string& target, bool replace,
                  const TransferOptions& options, uint64_t& file_bytes) {
  TERRACE_ASSIGN_OR_RETURN(const std::string header, header_of_entries(entries, file.index.metadata));
  std::vector<uint64_t> places;  // of the entries in the new file
  file_bytes = header.size();
  for (const SafetensorsEntry& entry : entries) {
    places.push_back(file_bytes);
    file_bytes += entry.bytes;
  }
  TERRACE_ASSIGN_OR_RETURN(TemporaryFile made, TemporaryFile::create(target, file_bytes, replace));
  // Pieces of any length at any place: the page cache is for that.
  const BlockIoOptions io{.direct = false, .io_uring = false};
  const auto write = [&](uint64_t at, std::span<const std::byte> bytes) -> Status {
    const auto written = write_blocks(made.fd(), target, at, {&bytes, 1}, io);
    return written.ok() ? Status() : Status(written.error());
  };
  TERRACE_RETURN_IF_ERROR(write(0, std::as_bytes(std::span(header.data(), header.size()))));
  TERRACE_ASSIGN_OR_RETURN([[maybe_unused]] const BlockIoReport read,
                           read_some(file, path, manifest, entries, options,
                                     [&](size_t index, uint64_t offset, std::span<const std::byte> bytes) {
                                       return write(places[index] + offset, bytes);
                                     }));
  return made.commit();
}

}  // namespace terrace::checkpoint
