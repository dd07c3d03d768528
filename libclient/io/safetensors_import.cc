// SPDX-License-Identifier: Apache-2.0
// From a model's safetensors files into a catalog: open and check, plan, read straight to where each tensor lies,
// checksum behind the read, publish.
#include <atomic>
#include <new>
#include <system_error>
#include <thread>

#include "core/base/crc32c.h"
#include "core/base/failpoint.h"
#include "core/os/fault_guard.h"
#include "core/os/io/block_io.h"
#include "libclient/io/model_files.h"
#include "libclient/io/prefault.h"
#include "libclient/io/transfer.h"
#include "terrace/safetensors.h"

namespace terrace {
namespace {

Result<CatalogPlan> plan_for(const ModelFiles& model, TensorHint hint, uint8_t flags) {
  std::vector<TensorSpec> specs;
  specs.reserve(model.tensors());
  for (const ModelFile& one : model.files) {
    for (const SafetensorsEntry& entry : one.file.index.tensors) {
      specs.push_back(
          {.name = entry.name, .dtype = entry.dtype, .shape = entry.shape, .hint = hint, .flags = flags});
    }
  }
  return CatalogPlan::make(std::move(specs), model.metadata);
}

// Checksums tensors on a thread of its own as soon as the read has passed them, while they are in the cache.
class FollowingChecksums {
 public:
  explicit FollowingChecksums(CatalogWriter& writer)
      : writer_(writer), checksums_(writer.plan().tensors().size()) {
    try {
      thread_ = std::jthread([this] { follow(); });
    } catch (const std::system_error&) {
      // Without a thread, publish() computes all of them.
    }
  }
  ~FollowingChecksums() { arrived(given_up); }

  // The first `bytes` bytes of all tensors are in place. release pairs with follow()'s acquire.
  void arrived(uint64_t bytes) {
    arrived_.store(bytes, std::memory_order_release);
    arrived_.notify_one();
  }

  // All bytes are in place: waits for the thread and hands its checksums over.
  void finish() {
    arrived(all);
    if (thread_.joinable()) thread_.join();
    for (size_t index = 0; index < checksums_.size(); ++index) writer_.filled(index, checksums_[index]);
  }

 private:
  static constexpr uint64_t all = UINT64_MAX - 1;
  static constexpr uint64_t given_up = UINT64_MAX;

  void follow() {
    uint64_t end = 0;
    for (size_t index = 0; index < checksums_.size(); ++index) {
      const std::span<const std::byte> bytes = writer_.data(index);
      end += bytes.size();
      uint64_t arrived = arrived_.load(std::memory_order_acquire);  // acquire: pairs with arrived()
      while (arrived < end) {
        arrived_.wait(arrived, std::memory_order_acquire);   // acquire: pairs with arrived()
        arrived = arrived_.load(std::memory_order_acquire);  // acquire: pairs with arrived()
      }
      if (arrived == given_up) return;
      // Of memory that went away publish() says so.
      uint32_t sum = 0;
      if (os::guarded({bytes}, [&] { sum = crc32c(bytes); })) checksums_[index] = sum;
    }
  }

  CatalogWriter& writer_;
  std::vector<std::optional<uint32_t>> checksums_;
  std::atomic<uint64_t> arrived_{0};
  std::jthread thread_;
};

// Reads the tensors of all files, in the order of the plan.
Result<BlockIoReport> read_files(const ModelFiles& model, CatalogWriter& writer, FollowingChecksums& checksums,
                                 uint64_t tensor_bytes, const ImportOptions& options) {
  BlockIoReport report;
  uint64_t before = 0;  // bytes of the files that are done
  BlockIoOptions io = block_io_options(options);
  io.progress = [&](uint64_t done, uint64_t) {
    checksums.arrived(before + done);
    if (options.progress) options.progress(before + done, tensor_bytes);
  };
  size_t index = 0;
  for (const ModelFile& one : model.files) {
    std::span<const SafetensorsEntry> left = one.file.index.tensors;
    while (!left.empty()) {
      const size_t run = run_length(left);
      std::vector<std::span<std::byte>> segments;
      for (size_t end = index + run; index < end; ++index) segments.push_back(writer.data(index));
      TERRACE_ASSIGN_OR_RETURN(const BlockIoReport part, read_blocks(one.file.fd.get(), one.path,
                                                                     left.front().file_offset, segments, io));
      before += part.bytes;
      report += part;
      left = left.subspan(run);
    }
  }
  return report;
}

// Reads the file once more and compares it with what is in memory, where its tensors begin at `index` of the plan.
Status compare_again(const SafetensorsFile& file, const std::string& path, size_t index, CatalogWriter& writer,
                     const ImportOptions& options) {
  std::vector<std::byte> buffer(1 * mib);
  for (const SafetensorsEntry& entry : file.index.tensors) {
    uint32_t checksum = 0;
    for (uint64_t done = 0; done < entry.bytes; done += buffer.size()) {
      const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), entry.bytes - done));
      TERRACE_RETURN_IF_ERROR(read_exactly(file.fd.get(), path, entry.file_offset + done, part));
      checksum = crc32c(part, checksum);
      if (options.cancelled && options.cancelled()) return cancelled_error("import_safetensors", path);
    }
    uint32_t memory = 0;
    if (!os::guarded({writer.data(index)}, [&] { memory = crc32c(writer.data(index)); }))
      return memory_gone("import_safetensors", path);
    if (checksum != memory) {
      return Error{.code = ErrorCode::corrupt,
                   .where = "import_safetensors",
                   .detail = path + ": tensor " + quoted_name(entry.name) +
                             " in memory differs from the file; it was changed meanwhile, or memory is faulty"};
    }
    ++index;
  }
  return {};
}

}  // namespace

Result<uint64_t> required_bytes(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(const ModelFiles model, ModelFiles::open(path));
  TERRACE_ASSIGN_OR_RETURN(const CatalogPlan plan, plan_for(model, TensorHint::none, 0));
  return plan.required_bytes();
}

Result<TransferReport> import_safetensors(const std::string& path, std::span<std::byte> destination,
                                          const ImportOptions& options) try {
  TERRACE_ASSIGN_OR_RETURN(const ModelFiles model, ModelFiles::open(path));
  TERRACE_ASSIGN_OR_RETURN(CatalogPlan plan, plan_for(model, options.hint, options.flags));
  TransferReport report{.tensors = model.tensors(), .total_bytes = plan.required_bytes()};
  TERRACE_ASSIGN_OR_RETURN(CatalogWriter writer, CatalogWriter::begin(destination, std::move(plan),
                                                                      {.persist = options.persist,
                                                                       .lease_epoch = options.lease_epoch,
                                                                       .threads = options.threads}));

  for (size_t index = 0; index < report.tensors; ++index) report.tensor_bytes += writer.data(index).size();
  {
    const Prefault prefault(destination.first(report.total_bytes));
    FollowingChecksums checksums(writer);
    TERRACE_ASSIGN_OR_RETURN(const BlockIoReport io_report,
                             read_files(model, writer, checksums, report.tensor_bytes, options));
    fill_in(report, io_report);
    checksums.finish();
  }
  size_t first = 0;  // of the file's tensors, in the plan
  for (const ModelFile& one : model.files) {
    if (options.verify) TERRACE_RETURN_IF_ERROR(compare_again(one.file, one.path, first, writer, options));
    first += one.file.index.tensors.size();
  }
  TERRACE_RETURN_IF_ERROR(model.check_unchanged());
  if (const int failure = TERRACE_FAILPOINT(import_before_publish); failure != 0) {
    return os_error(failure, "import_safetensors", path + ": failpoint before publishing");
  }
  if (options.cancelled && options.cancelled()) return cancelled_error("import_safetensors", path);
  TERRACE_RETURN_IF_ERROR(writer.publish());
  if (const int failure = TERRACE_FAILPOINT(import_after_publish); failure != 0) {
    return os_error(failure, "import_safetensors", path + ": failpoint after publishing");
  }
  report.generation = writer.generation();
  return report;
} catch (const std::bad_alloc&) {
  return Error{
      .code = ErrorCode::out_of_memory, .where = "import_safetensors", .detail = path + ": no local memory"};
}

}  // namespace terrace
