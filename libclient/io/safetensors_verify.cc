// SPDX-License-Identifier: Apache-2.0
// Compares a catalog's bytes with their recorded checksums and with a file's, tensors in parallel.
#include <algorithm>
#include <atomic>
#include <new>
#include <thread>
#include <unordered_map>

#include "core/base/crc32c.h"
#include "core/base/sync/mutex.h"
#include "core/os/fault_guard.h"
#include "libclient/io/model_files.h"
#include "libclient/io/transfer.h"
#include "libclient/tensor/parallel.h"
#include "terrace/safetensors.h"

namespace terrace {
namespace {

constexpr uint64_t step_bytes = 1 * mib;

class Verifier {
 public:
  Verifier(const CatalogReader& catalog, const ModelFiles* model, const std::string& path,
           const VerifyOptions& options)
      : catalog_(catalog), model_(model), path_(path), options_(options), reasons_(catalog.size()) {
    if (model_ == nullptr) return;
    for (const ModelFile& one : model_->files)
      for (const SafetensorsEntry& entry : one.file.index.tensors)
        entries_.emplace(entry.name, InFile{&entry, &one});
  }

  Result<VerifyReport> run() {
    for (size_t index = 0; index < catalog_.size(); ++index) total_bytes_ += work_bytes(index);
    parallel_for(catalog_.size(), worker_threads(options_.threads, catalog_.size()),
                 [this](size_t index) { check(index); });
    {
      const MutexLock lock(mutex_);
      if (error_) return std::move(*error_);
    }
    if (stop_.load()) return cancelled_error("verify", path_);

    VerifyReport report{.tensors = catalog_.size(), .tensor_bytes = catalog_.data_bytes()};
    for (size_t index = 0; index < catalog_.size(); ++index) {
      if (!reasons_[index].empty()) {
        report.mismatches.push_back({std::string(catalog_[index].name), std::move(reasons_[index])});
      }
    }
    if (model_ == nullptr) return report;
    for (const ModelFile& one : model_->files) {
      for (const SafetensorsEntry& entry : one.file.index.tensors) {
        if (!catalog_.find(entry.name).ok()) report.mismatches.push_back({entry.name, "is missing in memory"});
      }
    }
    return report;
  }

 private:
  struct InFile {
    const SafetensorsEntry* entry = nullptr;
    const ModelFile* file = nullptr;
  };

  uint64_t work_bytes(size_t index) const { return catalog_[index].bytes.size() * (model_ != nullptr ? 2 : 1); }

  // Returns false when the work was given up. Callbacks belong to the thread that called verify().
  bool advance(uint64_t bytes) {
    const uint64_t done = done_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (std::this_thread::get_id() == caller_) {
      if (options_.progress) options_.progress(done, total_bytes_);
      if (options_.cancelled && options_.cancelled()) stop_.store(true);
    }
    return !stop_.load();
  }

  void check(size_t index) {
    if (stop_.load()) return;
    const TensorView& tensor = catalog_[index];
    InFile in_file;
    if (model_ != nullptr) {
      const auto found = entries_.find(tensor.name);
      if (found == entries_.end()) {
        reasons_[index] = "is missing in the file";
        return;
      }
      in_file = found->second;
      const SafetensorsEntry* const entry = in_file.entry;
      if (entry->dtype != tensor.dtype || entry->shape != tensor.shape) {
        reasons_[index] = "is " + describe(tensor.dtype, tensor.shape) + " in memory, " +
                          describe(entry->dtype, entry->shape) + " in the file";
        return;
      }
      if (!tensor.row_major()) {
        reasons_[index] = "is not row-major in memory";
        return;
      }
    }
    uint32_t memory = 0;
    for (uint64_t at = 0; at < tensor.bytes.size(); at += step_bytes) {
      const auto part = tensor.bytes.subspan(at, std::min<uint64_t>(step_bytes, tensor.bytes.size() - at));
      if (!os::guarded({part}, [&] { memory = crc32c(part, memory); })) {
        const MutexLock lock(mutex_);
        if (!error_) error_ = memory_gone("verify", path_);
        stop_.store(true);
        return;
      }
      if (!advance(part.size())) return;
    }
    if (memory != tensor.crc32c) reasons_[index] = "does not have its recorded checksum in memory";
    if (in_file.entry != nullptr) compare_file(index, in_file, memory);
  }

  void compare_file(size_t index, const InFile& in_file, uint32_t memory) {
    const SafetensorsEntry& entry = *in_file.entry;
    std::vector<std::byte> buffer(std::min<uint64_t>(step_bytes, entry.bytes));
    uint32_t checksum = 0;
    for (uint64_t at = 0; at < entry.bytes; at += buffer.size()) {
      const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), entry.bytes - at));
      const Status status =
          read_exactly(in_file.file->file.fd.get(), in_file.file->path, entry.file_offset + at, part);
      if (!status.ok()) {
        const MutexLock lock(mutex_);
        if (!error_) error_ = status.error();
        stop_.store(true);
        return;
      }
      checksum = crc32c(part, checksum);
      if (!advance(part.size())) return;
    }
    if (checksum != memory) {
      reasons_[index] += reasons_[index].empty() ? "differs from the file" : ", and differs from the file";
    }
  }

  static std::string describe(DType dtype, const Shape& shape) {
    return std::string(dtype_name(dtype)) + " " + shape.to_string();
  }

  const CatalogReader& catalog_;
  const ModelFiles* model_;
  const std::string& path_;
  const VerifyOptions& options_;
  std::unordered_map<std::string_view, InFile> entries_;
  std::vector<std::string> reasons_;  // each written by the one thread that has the index
  uint64_t total_bytes_ = 0;
  std::atomic<uint64_t> done_bytes_{0};
  std::atomic<bool> stop_{false};
  std::thread::id caller_ = std::this_thread::get_id();
  Mutex mutex_;
  std::optional<Error> error_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace

Result<VerifyReport> verify(const CatalogReader& catalog, const VerifyOptions& options) {
  const std::string nowhere = "tensor catalog";
  return Verifier(catalog, nullptr, nowhere, options).run();
}

Result<VerifyReport> verify(const CatalogReader& catalog, const std::string& path,
                            const VerifyOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const ModelFiles model, ModelFiles::open(path));
  TERRACE_ASSIGN_OR_RETURN(VerifyReport report, Verifier(catalog, &model, path, options).run());
  TERRACE_RETURN_IF_ERROR(model.check_unchanged());
  return report;
}

}  // namespace terrace
