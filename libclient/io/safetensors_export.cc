// From a catalog to a safetensors file: the whole file under a temporary name, synced, then renamed.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>
#include <thread>

#include "core/base/crc32c.h"
#include "core/base/failpoint.h"
#include "core/base/prng.h"
#include "core/base/unique_fd.h"
#include "core/os/block_io.h"
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

Result<std::vector<TensorView>> choose(const CatalogReader& catalog, const std::vector<std::string>& names) {
  std::vector<TensorView> chosen;
  if (names.empty()) {
    chosen.assign(catalog.tensors().begin(), catalog.tensors().end());
  }
  for (const std::string& name : names) {
    TERRACE_ASSIGN_OR_RETURN(const TensorView tensor, catalog.find(name));
    chosen.push_back(tensor);
  }
  // Wide elements first, so that every tensor is aligned to its element without holes; then by name. Asking for
  // one name twice gives it once.
  std::sort(chosen.begin(), chosen.end(), [](const TensorView& a, const TensorView& b) {
    const uint32_t bits_a = dtype_bits(a.dtype);
    const uint32_t bits_b = dtype_bits(b.dtype);
    return bits_a != bits_b ? bits_a > bits_b : a.name < b.name;
  });
  chosen.erase(std::unique(chosen.begin(), chosen.end(),
                           [](const TensorView& a, const TensorView& b) { return a.name == b.name; }),
               chosen.end());
  for (const TensorView& tensor : chosen) {
    if (tensor.row_major()) continue;
    return Error{
        .code = ErrorCode::unsupported,
        .where = where,
        .detail = "tensor " + quoted_name(tensor.name) + " is not row-major; make it contiguous first"};
  }
  return chosen;
}

// The name that a replacement really goes to: symbolic links stay, what they lead to is replaced. Only a
// regular file, or nothing, may be replaced: never a device, a fifo, a socket or a directory.
Result<std::string> replacement_target(const std::string& path) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) {
    if (errno == ENOENT) return path;
    return os_error(errno, where, path + ": cannot be looked at");
  }
  std::string target = path;
  if (S_ISLNK(found.st_mode)) {
    char* resolved = ::realpath(path.c_str(), nullptr);
    if (resolved == nullptr) return os_error(errno, where, path + ": is a symbolic link that leads nowhere");
    target = resolved;
    std::free(resolved);
    if (::lstat(target.c_str(), &found) != 0) return os_error(errno, where, target + ": cannot be looked at");
  }
  if (!S_ISREG(found.st_mode)) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = path + ": is not a regular file, so it is not replaced"};
  }
  return target;
}

// A file that is deleted again unless it was given its final name.
class TemporaryFile {
 public:
  static Result<TemporaryFile> create(const std::string& path) {
    const size_t slash = path.rfind('/');
    TemporaryFile file;
    file.directory_ = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
    const std::string base = slash == std::string::npos ? path : path.substr(slash + 1);
    if (base.empty()) {
      return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = path + ": names no file"};
    }
    char random[20];
    std::snprintf(random, sizeof random, ".%016llx", static_cast<unsigned long long>(secure_random_u64()));
    // A file name has at most 255 bytes; the suffix takes 22.
    file.path_ = file.directory_ + "/." + base.substr(0, 230) + random + ".tmp";
    file.fd_.reset(::open(file.path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!file.fd_.valid()) {
      const int failure = errno;
      file.path_.clear();
      return os_error(failure, where, path + ": cannot create a file in " + file.directory_);
    }
    return file;
  }

  TemporaryFile(TemporaryFile&& other) noexcept
      : fd_(std::move(other.fd_)),
        directory_(std::move(other.directory_)),
        path_(std::exchange(other.path_, {})) {}
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  int fd() const { return fd_.get(); }

  // Makes it durable under `path`, in place of what was there.
  Status commit(const std::string& path, bool replace) {
    if (::fsync(fd_.get()) != 0) return os_error(errno, where, path + ": syncing failed");
    if (const int failure = TERRACE_FAILPOINT(export_before_rename); failure != 0) {
      return os_error(failure, where, path + ": failpoint before the rename");
    }
    // Looked at again: it may have become something else while the bytes were written.
    if (replace) TERRACE_RETURN_IF_ERROR(replacement_target(path));
    if (!rename_to(path, replace)) {
      return os_error(errno, where,
                      path + (replace ? ": cannot be replaced" : ": cannot be made; does it exist?"));
    }
    path_.clear();
    if (const int failure = TERRACE_FAILPOINT(export_after_rename); failure != 0) {
      return os_error(failure, where, path + ": failpoint after the rename");
    }
    const UniqueFd directory(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // Some file systems cannot sync a directory and say EINVAL: there the rename is as durable as it gets.
    if (!directory.valid() || (::fsync(directory.get()) != 0 && errno != EINVAL)) {
      return os_error(errno, where, path + ": is complete, but syncing its directory failed");
    }
    return {};
  }

 private:
  TemporaryFile() = default;

  bool rename_to(const std::string& path, bool replace) {
    if (replace) return ::rename(path_.c_str(), path.c_str()) == 0;
    if (::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0) return true;
    if (errno != EINVAL) return false;
    // A file system without that flag: a link never replaces either, and takes a second step.
    return ::link(path_.c_str(), path.c_str()) == 0 && ::unlink(path_.c_str()) == 0;
  }

  UniqueFd fd_;
  std::string directory_;
  std::string path_;
};

// Checks the recorded checksums while the bytes are written.
class SourceCheck {
 public:
  SourceCheck(const std::vector<TensorView>& tensors, uint32_t threads) : wrong_(tensors.size()) {
    work_ = std::jthread([this, &tensors, threads](const std::stop_token& stop) {
      parallel_for(tensors.size(), worker_threads(threads, tensors.size()), [&](size_t index) {
        if (!stop.stop_requested()) wrong_[index] = crc32c(tensors[index].bytes) != tensors[index].crc32c;
      });
    });
  }

  Status finish(const std::vector<TensorView>& tensors) {
    work_.join();
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
  std::vector<uint8_t> wrong_;  // not vector<bool>: threads write neighbours
  std::jthread work_;
};

}  // namespace

Result<std::string> safetensors_header(std::span<const TensorView> tensors, const TensorMetadata& metadata) {
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
  for (const TensorView& tensor : tensors) {
    if (json.size() > 1) json += ',';
    append_quoted(json, std::string(tensor.name));
    json += ":{\"dtype\":\"";
    json += dtype_name(tensor.dtype);
    json += "\",\"shape\":";
    append_numbers(json, tensor.shape.dimensions());
    json += ",\"data_offsets\":";
    const uint64_t range[2] = {offset, offset + tensor.bytes.size()};
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

Result<TransferReport> export_safetensors(const CatalogReader& catalog, const std::string& path,
                                          const ExportOptions& options) try {
  TERRACE_ASSIGN_OR_RETURN(const std::vector<TensorView> tensors, choose(catalog, options.tensors));
  TERRACE_ASSIGN_OR_RETURN(const std::string header, safetensors_header(tensors, catalog.metadata()));
  TransferReport report{.tensors = tensors.size(), .generation = catalog.generation()};
  std::vector<std::span<const std::byte>> segments = {std::as_bytes(std::span(header.data(), header.size()))};
  for (const TensorView& tensor : tensors) {
    segments.push_back(tensor.bytes);
    report.tensor_bytes += tensor.bytes.size();
  }
  report.total_bytes = header.size() + report.tensor_bytes;

  if (!options.replace && ::access(path.c_str(), F_OK) == 0) {  // decided at the rename; here to fail early
    return os_error(EEXIST, where, path + ": exists already");
  }
  std::string target = path;
  if (options.replace) {
    TERRACE_ASSIGN_OR_RETURN(target, replacement_target(path));
  }
  TERRACE_ASSIGN_OR_RETURN(TemporaryFile file, TemporaryFile::create(target));
  // Space for all of it now, rather than a failure at the end; not every file system can say.
  if (::fallocate(file.fd(), 0, 0, static_cast<off_t>(report.total_bytes)) != 0 && errno == ENOSPC) {
    return os_error(ENOSPC, where, path + ": " + format_size(report.total_bytes) + " do not fit");
  }
  SourceCheck check(tensors, options.threads);
  TERRACE_ASSIGN_OR_RETURN(const BlockIoReport io,
                           write_blocks(file.fd(), path, 0, segments, block_io_options(options)));
  fill_in(report, io);
  TERRACE_RETURN_IF_ERROR(check.finish(tensors));
  if (options.cancelled && options.cancelled()) return cancelled_error(where, path);
  TERRACE_RETURN_IF_ERROR(file.commit(target, options.replace));
  return report;
} catch (const std::bad_alloc&) {
  return Error{.code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no local memory"};
} catch (const std::system_error&) {
  return Error{
      .code = ErrorCode::out_of_memory, .where = where, .detail = path + ": no thread could be started"};
}

}  // namespace terrace
