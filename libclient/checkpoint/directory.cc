// SPDX-License-Identifier: Apache-2.0
// CheckpointDirectory: names to checkpoints, and safetensors files in and out.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "core/base/clock.h"
#include "libclient/checkpoint/chunks.h"
#include "libclient/checkpoint/folder.h"
#include "libclient/checkpoint/restore.h"
#include "libclient/checkpoint/space_restore.h"
#include "libclient/checkpoint/subset.h"
#include "libclient/checkpoint/write.h"
#include "libclient/io/pool_transfer.h"
#include "libclient/io/replace_file.h"
#include "libclient/io/safetensors_file.h"

namespace terrace {
namespace {

using checkpoint::Manifest;
using checkpoint::NewFolder;

constexpr const char* where = "checkpoint";

class Directory final : public CheckpointDirectory {
 public:
  explicit Directory(std::string path) : path_(std::move(path)) {}

  Result<std::unique_ptr<CheckpointWrite>> checkpoint(const std::string& name, TensorPool& pool,
                                                      std::span<const std::shared_ptr<Tensor>> tensors,
                                                      const CheckpointOptions& options) override {
    return checkpoint::start_write(path_, name, pool, tensors, options);
  }
  Result<std::unique_ptr<CheckpointWrite>> checkpoint(const std::string& name, TensorSpace& space,
                                                      std::span<const SharedTensor> tensors,
                                                      const SpaceCheckpointOptions& options) override {
    return checkpoint::start_write(path_, name, space, tensors, options);
  }
  Result<CheckpointInfo> find(const std::string& name) const override {
    TERRACE_ASSIGN_OR_RETURN(const Manifest manifest, checkpoint::read_folder(path_, name));
    return info_of(manifest);
  }
  Result<CheckpointList> list() override;
  Result<CheckpointVerification> verify(const std::string& name, const TransferOptions& options) const override;
  Result<PoolImport> restore(const std::string& name, TensorPool& pool,
                             const PoolImportOptions& options) const override {
    TERRACE_ASSIGN_OR_RETURN(const Manifest manifest, checkpoint::read_folder(path_, name));
    return checkpoint::restore(file_of(name), manifest, pool, options);
  }
  Result<SpaceImport> restore(const std::string& name, TensorSpace& space,
                              const SpaceImportOptions& options) const override {
    TERRACE_ASSIGN_OR_RETURN(const Manifest manifest, checkpoint::read_folder(path_, name));
    return checkpoint::restore(file_of(name), manifest, space, options);
  }
  Result<CheckpointInfo> import_file(const std::string& file, const std::string& name,
                                     const TransferOptions& options) override;
  Result<CheckpointInfo> export_file(const std::string& name, const std::string& file, bool replace,
                                     const CheckpointExportOptions& options) const override;
  Status remove(const std::string& name) override {
    TERRACE_ASSIGN_OR_RETURN(const checkpoint::FolderLock lock, checkpoint::lock_directory(path_));
    return checkpoint::remove_folder(path_, name);
  }

 private:
  Result<CheckpointInfo> export_some(const Manifest& manifest, const std::string& file, bool replace,
                                     const CheckpointExportOptions& options) const;
  std::string file_of(const std::string& name) const {
    return path_ + "/" + name + "/" + checkpoint::data_name;
  }
  CheckpointInfo info_of(const Manifest& manifest) const {
    return {.name = manifest.name,
            .tensors = manifest.tensors,
            .tensor_bytes = manifest.tensor_bytes,
            .file_bytes = manifest.file_bytes,
            .created_unix_ns = manifest.created_unix_ns,
            .file = file_of(manifest.name)};
  }
  Result<UniqueFd> open_data(const std::string& name) const {
    UniqueFd fd(::open(file_of(name).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd.valid()) return os_error(errno, where, file_of(name) + ": cannot be opened");
    return fd;
  }

  const std::string path_;
};

Result<CheckpointList> Directory::list() {
  CheckpointList list;
  // Where this user may not write, what dead writers left stays hidden.
  if (const auto lock = checkpoint::lock_directory(path_); lock.ok())
    checkpoint::clean(path_, &list.half_written, &list.being_written);
  std::vector<std::string> names;
  const std::error_code failed = checkpoint::for_each_name(path_, [&](const std::string& name) {
    // Not what a link leads to: it may lead out of here. One that goes meanwhile is no error of the list's.
    struct stat status {};
    if (checkpoint::check_name(name).ok() && ::lstat((path_ + "/" + name).c_str(), &status) == 0 &&
        S_ISDIR(status.st_mode))
      names.push_back(name);
  });
  if (failed) return os_error(failed.value(), where, path_ + ": cannot be read");
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    auto info = find(name);
    if (info.ok()) {
      list.checkpoints.push_back(std::move(*info));
    } else if (info.error().code != ErrorCode::not_found) {  // else removed meanwhile
      list.damaged.push_back({name, info.error()});
    }
  }
  return list;
}

Result<CheckpointVerification> Directory::verify(const std::string& name,
                                                 const TransferOptions& options) const {
  TERRACE_ASSIGN_OR_RETURN(const Manifest manifest, checkpoint::read_folder(path_, name));
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd data, open_data(name));
  CheckpointVerification result{.bytes = manifest.file_bytes};
  TERRACE_RETURN_IF_ERROR(checkpoint::for_each_chunk(
      {data.get(), file_of(name)}, {}, manifest.file_bytes, manifest.chunk_bytes, options,
      [&](uint64_t number, uint32_t sum) -> Status {
        if (sum == manifest.crc32c[number]) return {};
        const uint64_t begin = number * manifest.chunk_bytes;
        result.damaged.push_back({begin, std::min(begin + manifest.chunk_bytes, manifest.file_bytes)});
        return {};
      }));
  return result;
}

Result<CheckpointInfo> Directory::import_file(const std::string& file, const std::string& name,
                                              const TransferOptions& options) {
  TERRACE_ASSIGN_OR_RETURN(const SafetensorsFile source, SafetensorsFile::open(file));
  TERRACE_ASSIGN_OR_RETURN(const auto folder, NewFolder::make(path_, name, source.index.file_bytes));
  Manifest manifest;
  manifest.name = name;
  manifest.created_unix_ns = wall_clock_ns();
  manifest.tensors = source.index.tensors.size();
  manifest.file_bytes = source.index.file_bytes;
  manifest.tensor_bytes = manifest.file_bytes - source.index.buffer_offset;
  TERRACE_RETURN_IF_ERROR(checkpoint::for_each_chunk(
      {source.fd.get(), file}, {folder->fd(), folder->data_path()}, manifest.file_bytes, manifest.chunk_bytes,
      options, [&](uint64_t, uint32_t sum) -> Status {
        manifest.crc32c.push_back(sum);
        return {};
      }));
  TERRACE_RETURN_IF_ERROR(source.check_unchanged(file));
  TERRACE_RETURN_IF_ERROR(folder->commit(manifest));
  return info_of(manifest);
}

Result<CheckpointInfo> Directory::export_file(const std::string& name, const std::string& file, bool replace,
                                              const CheckpointExportOptions& options) const {
  TERRACE_ASSIGN_OR_RETURN(const Manifest manifest, checkpoint::read_folder(path_, name));
  if (!options.tensors.empty()) return export_some(manifest, file, replace, options);
  TERRACE_ASSIGN_OR_RETURN(const UniqueFd data, open_data(name));
  TERRACE_ASSIGN_OR_RETURN(TemporaryFile target, TemporaryFile::create(file, manifest.file_bytes, replace));
  TERRACE_RETURN_IF_ERROR(
      checkpoint::for_each_chunk({data.get(), file_of(name)}, {target.fd(), file}, manifest.file_bytes,
                                 manifest.chunk_bytes, options, [&](uint64_t number, uint32_t sum) -> Status {
                                   if (sum == manifest.crc32c[number]) return {};
                                   return checkpoint::damaged_chunk(file_of(name), manifest, number);
                                 }));
  TERRACE_RETURN_IF_ERROR(target.commit());
  return info_of(manifest);
}

Result<CheckpointInfo> Directory::export_some(const Manifest& manifest, const std::string& file, bool replace,
                                              const CheckpointExportOptions& options) const {
  const std::string path = file_of(manifest.name);
  TERRACE_ASSIGN_OR_RETURN(const SafetensorsFile data, checkpoint::open_data(path, manifest));
  TERRACE_ASSIGN_OR_RETURN(const std::vector<SafetensorsEntry> entries,
                           choose_checked(data, path, manifest, options.tensors));
  CheckpointInfo info = info_of(manifest);
  info.tensors = entries.size();
  info.tensor_bytes = 0;
  for (const SafetensorsEntry& entry : entries) info.tensor_bytes += entry.bytes;
  TERRACE_RETURN_IF_ERROR(
      checkpoint::write_some(data, path, manifest, entries, file, replace, options, info.file_bytes));
  return info;
}

}  // namespace

Result<std::unique_ptr<CheckpointDirectory>> CheckpointDirectory::open(const std::string& path, bool make) {
  if (path.empty())
    return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = "no directory was named"};
  if (make && ::mkdir(path.c_str(), 0777) == 0) {
    // Or all checkpoints in it may be gone when the machine dies.
    const std::string parent = std::filesystem::path(path + "/.").parent_path().parent_path().string();
    const Status synced = checkpoint::sync_directory(parent.empty() ? "." : parent);
    if (!synced.ok() && synced.error().os_errno != EACCES)
      return synced.error();  // EACCES: not this user's to sync
  } else if (make && errno != EEXIST) {
    return os_error(errno, where, path + ": cannot be made");
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return os_error(errno, where, path + ": cannot be looked at");
  if (!S_ISDIR(status.st_mode))
    return Error{.code = ErrorCode::invalid_argument, .where = where, .detail = path + ": is no directory"};
  return std::unique_ptr<CheckpointDirectory>(std::make_unique<Directory>(path));
}

}  // namespace terrace
