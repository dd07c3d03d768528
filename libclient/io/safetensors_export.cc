// SPDX-License-Identifier: Apache-2.0
// From a catalog to a safetensors file: the whole file under a temporary name, synced, then renamed.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "core/base/crc32c.h"
#include "core/os/fault_guard.h"
#include "core/os/io/block_io.h"
#include "libclient/io/replace_file.h"
#include "libclient/io/safetensors_file.h"
#include "libclient/io/transfer.h"
#include "libclient/tensor/parallel.h"
#include "terrace/safetensors.h"

namespace terrace {
namespace {

constexpr const char* where = "export_safetensors";
constexpr uint64_t buffer_alignment_bytes = 4096;

void append_quoted(std::string& json, const std::string& text) {
  json += nlohmann::json(text).dump();
}

void append_numbers(std::string& json, std::span<const uint64_t> numbers) {
  json += '[';
  for (size_t index = 0; index < numbers.size(); ++index) {
    if (index > 0) json += ',';
    json += std::to_string(numbers[index]);
  }
  json += ']';
}

// Wide elements first, so that every tensor is aligned to its element without holes; then by name.
void put_in_file_order(std::vector<TensorView>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    const uint32_t bits_a = dtype_bits(a.dtype);
    const uint32_t bits_b = dtype_bits(b.dtype);
    return bits_a != bits_b ? bits_a > bits_b : a.name < b.name;
  });
}

Status check_row_major(const std::vector<TensorView>& tensors) {
  for (const TensorView& tensor : tensors) {
    if (tensor.row_major()) continue;
    return Error{
        .code = ErrorCode::unsupported,
        .where = where,
        .detail = "tensor " + quoted_name(tensor.name) + " is not row-major; make it contiguous first"};
  }
  return {};
}

Result<std::vector<TensorView>> choose(const CatalogReader& catalog, const std::vector<std::string>& names) {
  std::vector<TensorView> chosen;
  if (names.empty()) {
    chosen.assign(catalog.tensors().begin(), catalog.tensors().end());
  }
  for (const std::string& name : names) {
    TERRACE_ASSIGN_OR_RETURN(const TensorView tensor, catalog.find(name));
    chosen.push_back(tensor);
  }
  put_in_file_order(chosen);
  // Asking for one name twice gives it once.
  chosen.erase(std::unique(chosen.begin(), chosen.end(),
                           [](const TensorView& a, const TensorView& b) { return a.name == b.name; }),
               chosen.end());
  TERRACE_RETURN_IF_ERROR(check_row_major(chosen));
  return chosen;
}

// The same rules for names and shapes as for a catalog.
Status check_names_and_sizes(std::span<const TensorView> tensors, const TensorMetadata& metadata) {
  std::vector<TensorSpec> specs;
  for (const TensorView& tensor : tensors)
    specs.push_back({.name = std::string(tensor.name), .dtype = tensor.dtype, .shape = tensor.shape});
  TERRACE_ASSIGN_OR_RETURN(const CatalogPlan plan, CatalogPlan::make(std::move(specs), metadata));
  for (size_t index = 0; index < tensors.size(); ++index) {
    if (plan.tensor_bytes(index) == tensors[index].bytes.size()) continue;
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = "tensor " + quoted_name(tensors[index].name) + " comes with " +
                           std::to_string(tensors[index].bytes.size()) +
                           " bytes, but its dtype and shape need " + std::to_string(plan.tensor_bytes(index))};
  }
  return {};
}

// Checks the recorded checksums while the bytes are written.
class SourceCheck {
 public:
  SourceCheck(const std::vector<TensorView>& tensors, uint32_t threads) : wrong_(tensors.size()) {
    work_ = std::jthread([this, &tensors, threads](const std::stop_token& stop) {
      parallel_for(tensors.size(), worker_threads(threads, tensors.size()), [&](size_t index) {
        const TensorView& tensor = tensors[index];
        if (stop.stop_requested()) return;
        if (!os::guarded({tensor.bytes}, [&] { wrong_[index] = crc32c(tensor.bytes) != tensor.crc32c; }))
          gone_ = true;
      });
    });
  }

  Status finish(const std::vector<TensorView>& tensors) {
    work_.join();
    if (gone_) return memory_gone(where, "tensor catalog");
    for (size_t index = 0; index < tensors.size(); ++index) {
      if (wrong_[index] == 0) continue;
      return Error{.code = ErrorCode::corrupt,
                   .where = where,
                   .detail = "tensor " + quoted_name(tensors[index].name) +
                             " no longer has its recorded checksum; nothing was exported"};
    }
    return {};
  }

 private:
  std::atomic<bool> gone_ = false;
  std::vector<uint8_t> wrong_;  // not vector<bool>: threads write neighbours
  std::jthread work_;
};

}  // namespace

Result<std::string> safetensors_header(std::span<const TensorView> tensors, const TensorMetadata& metadata) {
  std::vector<SafetensorsEntry> entries;
  entries.reserve(tensors.size());
  for (const TensorView& tensor : tensors)
    entries.push_back({.name = std::string(tensor.name),
                       .dtype = tensor.dtype,
                       .shape = tensor.shape,
                       .bytes = tensor.bytes.size()});
  return header_of_entries(entries, metadata);
}

Result<std::string> header_of_entries(std::span<const SafetensorsEntry> tensors,
                                      const TensorMetadata& metadata) {
  std::string json = "{";
  if (!metadata.empty()) {
    TensorMetadata sorted = metadata;
    std::sort(sorted.begin(), sorted.end());
    json += "\"__metadata__\":{";
    for (size_t index = 0; index < sorted.size(); ++index) {
      if (index > 0) json += ',';
      append_quoted(json, sorted[index].first);
      json += ':';
      append_quoted(json, sorted[index].second);
    }
    json += '}';
  }
  uint64_t offset = 0;
  for (const SafetensorsEntry& tensor : tensors) {
    if (json.size() > 1) json += ',';
    append_quoted(json, tensor.name);
    json += ":{\"dtype\":\"";
    json += dtype_name(tensor.dtype);
    json += "\",\"shape\":";
    append_numbers(json, tensor.shape.dimensions());
    json += ",\"data_offsets\":";
    const uint64_t range[2] = {offset, offset + tensor.bytes};
    append_numbers(json, range);
    json += '}';
    offset = range[1];
  }
  json += '}';
  json.resize(round_up(8 + json.size(), buffer_alignment_bytes) - 8, ' ');
  if (json.size() > safetensors_header_bytes_max) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = "the header would have more than 100 MB; export fewer tensors at once"};
  }
  const uint64_t header_bytes = json.size();
  std::string header(8, '\0');
  std::memcpy(header.data(), &header_bytes, sizeof header_bytes);
  return header + json;
}

namespace {

// `check` is called before the file gets its name.
template <typename Check>
Result<TransferReport> write_file(std::span<const TensorView> tensors, const TensorMetadata& metadata,
                                  const std::string& path, const ExportOptions& options, Check&& check) {
  TERRACE_ASSIGN_OR_RETURN(const std::string header, safetensors_header(tensors, metadata));
  TransferReport report{.tensors = tensors.size()};
  std::vector<std::span<const std::byte>> segments = {std::as_bytes(std::span(header.data(), header.size()))};
  for (const TensorView& tensor : tensors) {
    segments.push_back(tensor.bytes);
    report.tensor_bytes += tensor.bytes.size();
  }
  report.total_bytes = header.size() + report.tensor_bytes;

  TERRACE_ASSIGN_OR_RETURN(TemporaryFile file,
                           TemporaryFile::create(path, report.total_bytes, options.replace));
  TERRACE_ASSIGN_OR_RETURN(const BlockIoReport io,
                           write_blocks(file.fd(), path, 0, segments, block_io_options(options)));
  fill_in(report, io);
  TERRACE_RETURN_IF_ERROR(check());
  if (options.cancelled && options.cancelled()) return cancelled_error(where, path);
  TERRACE_RETURN_IF_ERROR(file.commit());
  return report;
}

}  // namespace

Result<TransferReport> write_safetensors(std::span<const TensorView> tensors, const TensorMetadata& metadata,
                                         const std::string& path, const ExportOptions& options) try {
  std::vector<TensorView> ordered(tensors.begin(), tensors.end());
  TERRACE_RETURN_IF_ERROR(check_names_and_sizes(ordered, metadata));
  TERRACE_RETURN_IF_ERROR(check_row_major(ordered));
  put_in_file_order(ordered);
  return write_file(ordered, metadata, path, options, [] { return Status(); });
} catch (const std::bad_alloc&) {
  return Error{.code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no local memory"};
}

Result<TransferReport> export_safetensors(const CatalogReader& catalog, const std::string& path,
                                          const ExportOptions& options) try {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TensorView> tensors, choose(catalog, options.tensors));
  SourceCheck check(tensors, options.threads);
  TERRACE_ASSIGN_OR_RETURN(TransferReport report, write_file(tensors, catalog.metadata(), path, options,
                                                             [&] { return check.finish(tensors); }));
  report.generation = catalog.generation();
  return report;
} catch (const std::bad_alloc&) {
  return Error{.code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no local memory"};
} catch (const std::system_error&) {
  return Error{
      .code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no thread could be started"};
}

}  // namespace terrace
