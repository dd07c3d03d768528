// SPDX-License-Identifier: Apache-2.0
// From a pool's tensors to a safetensors file, a piece at a time: held, written, let go.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <unordered_set>

#include "core/os/io/block_io.h"
#include "libclient/io/pool_transfer.h"
#include "libclient/io/replace_file.h"
#include "libclient/io/transfer.h"

namespace terrace {
namespace {

constexpr uint64_t file_page_bytes = 4096;
// Long enough that the queue is seldom empty between two pieces; short enough that moves wait well below a
// second.
constexpr uint64_t held_bytes_max = 256 * mib;

bool of_whole_pages(const TensorView& tensor) {
  return tensor.bytes.size() % file_page_bytes == 0;
}

Status check_tensor(TensorPool& pool, const Tensor& tensor, const char* where) {
  if (tensor.name().empty()) {
    return Error{
        .code = ErrorCode::invalid_argument,
        .where = where,
        .detail = "a tensor of shape " + tensor.shape().to_string() + " has no name, which a file needs"};
  }
  const std::span<std::byte> bytes = tensor.bytes();
  const std::span<std::byte> range = pool.range().bytes();
  if (!bytes.empty() && (bytes.data() < range.data() || bytes.data() >= range.data() + range.size())) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = "tensor " + quoted_name(tensor.name()) + " is of another pool"};
  }
  if (tensor.strides() != row_major_strides(tensor.shape())) {
    return Error{.code = ErrorCode::unsupported,
                 .where = where,
                 .detail = "tensor " + quoted_name(tensor.name()) +
                           " is a view that is not row-major; copy it to a tensor of its own first"};
  }
  return {};
}

TensorView view_of(const Tensor& tensor) {
  TensorView view;
  view.name = tensor.name();
  view.dtype = tensor.dtype();
  view.shape = tensor.shape();
  view.strides = tensor.strides();
  view.bytes = tensor.bytes();
  return view;
}

Result<BlockIoReport> write_held(TensorPool& pool, const PoolFilePlan& plan, int fd, const std::string& path,
                                 const TransferOptions& options) {
  BlockIoReport sum;
  for (uint64_t begin = 0; begin < plan.total_bytes; begin += held_bytes_max) {
    const uint64_t end = std::min(plan.total_bytes, begin + held_bytes_max);
    std::vector<Hold> holds;
    std::vector<std::span<const std::byte>> pieces;
    for (const FileSegment& segment : segments_within(plan.segments, begin, end)) {
      pieces.push_back(segment.bytes);
      if (segment.file_offset < plan.header.size()) continue;
      TERRACE_ASSIGN_OR_RETURN(Hold hold, pool.range().hold(segment.bytes));
      holds.push_back(std::move(hold));
    }
    BlockIoOptions io = block_io_options(options);
    if (options.progress)
      io.progress = [&](uint64_t done, uint64_t) { options.progress(begin + done, plan.total_bytes); };
    const auto part = write_blocks(fd, path, begin, pieces, io);
    if (!part.ok()) return lease_lost_error(part.error(), "export_safetensors", path);
    sum += *part;
  }
  return sum;
}

}  // namespace

Result<PoolFilePlan> plan_pool_file(TensorPool& pool, std::span<const std::shared_ptr<Tensor>> tensors,
                                    const TensorMetadata& metadata, const char* where) {
  std::vector<TensorView> views;
  for (const auto& tensor : tensors) {
    if (tensor == nullptr)
      return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = "a null tensor"};
    TERRACE_RETURN_IF_ERROR(check_tensor(pool, *tensor, where));
    TERRACE_RETURN_IF_ERROR(tensor->write_back());  // what a device has written
    views.push_back(view_of(*tensor));
  }
  TERRACE_ASSIGN_OR_RETURN(PoolFilePlan plan, plan_file(std::move(views), metadata, where));
  plan.tensors.assign(tensors.begin(), tensors.end());
  return plan;
}

Result<PoolFilePlan> plan_file(std::vector<TensorView> tensors, const TensorMetadata& metadata,
                               const char* where) {
  std::unordered_set<std::string_view> names;
  for (const TensorView& tensor : tensors)
    if (!names.insert(tensor.name).second)
      return Error{.code = ErrorCode::already_exists,
                   .where = where,
                   .detail = "tensor " + quoted_name(tensor.name) + " is given twice"};
  std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    if (of_whole_pages(a) != of_whole_pages(b)) return of_whole_pages(a);
    const uint32_t bits_a = dtype_bits(a.dtype), bits_b = dtype_bits(b.dtype);
    if (!of_whole_pages(a) && bits_a != bits_b) return bits_a > bits_b;
    return a.name < b.name;
  });
  PoolFilePlan plan;
  TERRACE_ASSIGN_OR_RETURN(std::string header, safetensors_header(tensors, metadata));
  const size_t header_bytes = header.size();
  header.resize(header_bytes + file_page_bytes);
  const size_t skip =
      (file_page_bytes - reinterpret_cast<uintptr_t>(header.data()) % file_page_bytes) % file_page_bytes;
  std::memmove(header.data() + skip, header.data(), header_bytes);
  plan.header_memory =
      std::make_shared<const std::string>(std::move(header));  // long, so that it does not move
  plan.header = std::as_bytes(std::span(plan.header_memory->data() + skip, header_bytes));
  plan.segments.push_back({0, plan.header});
  plan.total_bytes = header_bytes;
  for (const TensorView& tensor : tensors) {
    if (tensor.bytes.empty()) continue;
    plan.segments.push_back({plan.total_bytes, tensor.bytes});
    plan.total_bytes += tensor.bytes.size();
  }
  plan.tensor_bytes = plan.total_bytes - plan.header.size();
  plan.tensor_count = tensors.size();
  return plan;
}

Error lease_lost_error(const Error& error, const char* where, const std::string& path) {
  if (error.os_errno != EFAULT) return error;
  return {.code = ErrorCode::lease_expired,
          .where = where,
          .detail = path + ": a lease behind the pool is lost, and tensors' bytes with it"};
}

std::vector<FileSegment> segments_within(std::span<const FileSegment> segments, uint64_t begin, uint64_t end) {
  std::vector<FileSegment> within;
  auto at = std::upper_bound(segments.begin(), segments.end(), begin,
                             [](uint64_t offset, const FileSegment& segment) {
                               return offset < segment.file_offset + segment.bytes.size();
                             });
  for (; at != segments.end() && at->file_offset < end; ++at) {
    const uint64_t from = std::max(begin, at->file_offset);
    const uint64_t to = std::min(end, at->file_offset + at->bytes.size());
    within.push_back({from, at->bytes.subspan(from - at->file_offset, to - from)});
  }
  return within;
}

Result<TransferReport> export_safetensors(TensorPool& pool, std::span<const std::shared_ptr<Tensor>> tensors,
                                          const std::string& path, const PoolExportOptions& options) try {
  constexpr const char* where = "export_safetensors";
  TERRACE_ASSIGN_OR_RETURN(const PoolFilePlan plan, plan_pool_file(pool, tensors, options.metadata, where));
  TransferReport report{.tensors = plan.tensor_count, .tensor_bytes = plan.tensor_bytes};
  report.total_bytes = plan.total_bytes;
  TERRACE_ASSIGN_OR_RETURN(TemporaryFile file, TemporaryFile::create(path, plan.total_bytes, options.replace));
  TERRACE_ASSIGN_OR_RETURN(const BlockIoReport io, write_held(pool, plan, file.fd(), path, options));
  fill_in(report, io);
  if (options.cancelled && options.cancelled()) return cancelled_error(where, path);
  TERRACE_RETURN_IF_ERROR(file.commit());
  return report;
} catch (const std::bad_alloc&) {
  return Error{
      .code = ErrorCode::out_of_memory, .where = "export_safetensors", .detail = path + ": no local memory"};
}

}  // namespace terrace
