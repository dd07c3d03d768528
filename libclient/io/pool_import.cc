// SPDX-License-Identifier: Apache-2.0
// From a safetensors file to a pool's tensors: open and check, make the tensors, read straight to where each
// lies.
#include <algorithm>
#include <new>
#include <unordered_map>
#include <utility>

#include "core/os/io/block_io.h"
#include "libclient/io/pool_transfer.h"
#include "libclient/io/prefault.h"
#include "libclient/io/transfer.h"

namespace terrace {
namespace {

constexpr const char* where = "import_safetensors";

void add_up(TransferReport& report, const BlockIoReport& part) {
  TransferReport one;
  fill_in(one, part);
  report.straight_bytes += one.straight_bytes;
  report.staged_bytes += one.staged_bytes;
  report.buffered_bytes += one.buffered_bytes;
  report.io_uring = one.io_uring;
  if (!one.note.empty()) report.note = one.note;
}

// "'a', 'b' and 3 more"
std::string listed(std::span<const std::string> names) {
  constexpr size_t shown_max = 16;
  std::string text;
  for (size_t index = 0; index < std::min(names.size(), shown_max); ++index)
    text += (index == 0 ? "" : ", ") + quoted_name(names[index]);
  if (names.size() > shown_max) text += " and " + std::to_string(names.size() - shown_max) + " more";
  return text;
}

}  // namespace

Result<std::vector<SafetensorsEntry>> choose_entries(const SafetensorsIndex& index, const std::string& path,
                                                     const std::vector<std::string>& names, const char* at) {
  if (names.empty()) return index.tensors;
  std::unordered_map<std::string_view, bool> wanted;  // whether the file has it
  for (const std::string& name : names) wanted.emplace(name, false);
  std::vector<SafetensorsEntry> chosen;
  for (const SafetensorsEntry& entry : index.tensors) {
    const auto found = wanted.find(entry.name);
    if (found == wanted.end()) continue;
    found->second = true;
    chosen.push_back(entry);
  }
  std::vector<std::string> missing;
  for (const std::string& name : names)
    if (!std::exchange(wanted[name], true)) missing.push_back(name);
  if (missing.empty()) return chosen;
  return Error{
      .code = ErrorCode::not_found, .where = at, .detail = path + ": has no tensor " + listed(missing)};
}

Result<std::vector<std::shared_ptr<Tensor>>> tensors_for(TensorPool& pool, const std::string& path,
                                                         std::span<const SafetensorsEntry> entries,
                                                         const PoolImportOptions& options) {
  std::vector<std::shared_ptr<Tensor>> tensors;
  tensors.reserve(entries.size());
  for (const SafetensorsEntry& entry : entries) {
    std::shared_ptr<Tensor> found;
    if (options.into_existing) {
      if (auto existing = pool.find(entry.name); existing.ok()) found = std::move(*existing);
    }
    if (found != nullptr) {
      const Tensor& tensor = *found;
      if (tensor.dtype() != entry.dtype || tensor.shape() != entry.shape) {
        return Error{.code = ErrorCode::invalid_argument,
                     .where = where,
                     .detail = path + ": tensor " + quoted_name(entry.name) + " is " +
                               std::string(dtype_name(entry.dtype)) + " " + entry.shape.to_string() +
                               " in the file, " + std::string(dtype_name(tensor.dtype())) + " " +
                               tensor.shape().to_string() + " in the pool"};
      }
      tensors.push_back(std::move(found));
      continue;
    }
    auto made = pool.create({.name = entry.name,
                             .dtype = entry.dtype,
                             .shape = entry.shape,
                             .hint = options.hint,
                             .flags = options.flags});
    if (!made.ok()) {
      Error error = std::move(made).error();
      error.detail = path + ": " + error.detail;
      return error;
    }
    tensors.push_back(std::move(*made));
  }
  return tensors;
}

Status read_into_pool(TensorPool& pool, const SafetensorsFile& file, const std::string& path,
                      std::span<const SafetensorsEntry> entries,
                      std::span<const std::shared_ptr<Tensor>> tensors, const TransferOptions& options,
                      const std::function<void(uint64_t)>& arrived, TransferReport& report) {
  uint64_t total = 0, before = 0;
  for (const SafetensorsEntry& entry : entries) total += entry.bytes;
  const bool has_device = pool.statistics().hbm.capacity_bytes > 0;
  while (!entries.empty()) {
    const size_t count = run_length(entries);
    std::vector<std::span<std::byte>> segments;
    std::vector<Hold> holds;
    std::vector<WriteGuard> guards;  // a replica on a device is older afterwards
    uint64_t bytes = 0;
    for (const auto& tensor : tensors.first(count)) {
      if (tensor->bytes().empty()) continue;
      segments.push_back(tensor->bytes());
      bytes += tensor->bytes().size();
      if (has_device) {
        TERRACE_ASSIGN_OR_RETURN(WriteGuard guard, tensor->write({.wait = GuardWait::never}));
        guards.push_back(std::move(guard));
      }
      TERRACE_ASSIGN_OR_RETURN(Hold hold, pool.range().hold(tensor->bytes()));
      holds.push_back(std::move(hold));
    }
    BlockIoOptions io = block_io_options(options);
    io.progress = [&](uint64_t done, uint64_t) {
      if (arrived) arrived(before + done);
      if (options.progress) options.progress(before + done, total);
    };
    {
      const Prefault prefault(std::span<const std::span<std::byte>>{segments});
      TERRACE_ASSIGN_OR_RETURN(const BlockIoReport part,
                               read_blocks(file.fd.get(), path, entries[0].file_offset, segments, io));
      add_up(report, part);
    }
    before += bytes;
    entries = entries.subspan(count);
    tensors = tensors.subspan(count);
  }
  report.tensor_bytes = report.total_bytes = total;
  return {};
}

Result<PoolImport> import_safetensors(TensorPool& pool, const std::string& path,
                                      const PoolImportOptions& options) try {
  TERRACE_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> entries,
                           choose_entries(file.index, path, options.tensors, where));
  PoolImport result;
  TERRACE_ASSIGN_OR_RETURN(result.tensors, tensors_for(pool, path, entries, options));
  result.metadata = file.index.metadata;
  result.report.tensors = entries.size();
  if (const Status read = read_into_pool(pool, file, path, entries, result.tensors, options, {}, result.report);
      !read.ok())
    return lease_lost_error(read.error(), where, path);
  TERRACE_RETURN_IF_ERROR(file.check_unchanged(path));
  if (options.cancelled && options.cancelled()) return cancelled_error(where, path);
  return result;
} catch (const std::bad_alloc&) {
  return Error{.code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no local memory"};
}

}  // namespace terrace
