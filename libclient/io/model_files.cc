// SPDX-License-Identifier: Apache-2.0
// Finds a model's files: a safetensors file, an index of shards, or a folder with one of them.
#include "libclient/io/model_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <new>
#include <set>
#include <unordered_map>

#include "libclient/io/shard_index.h"

namespace terrace {
namespace {

constexpr uint64_t index_bytes_max = 100'000'000;

Error refuse_model(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = "read_safetensors_model", .detail = std::move(detail)};
}

bool is_index(std::string_view path) {
  return path.ends_with(".json");
}

bool is_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
}

// A GGUF model in parts, NAME-00001-of-00003.gguf, has no index: its first part stands for all of them.
std::vector<std::string> parts_of(const std::string& path) {
  constexpr std::string_view form = "-00001-of-00000.gguf";
  if (path.size() <= form.size()) return {path};
  const std::string stem = path.substr(0, path.size() - form.size());
  const std::string tail = path.substr(stem.size());
  const std::string of = tail.substr(10, 5);
  if (!tail.starts_with("-00001-of-") || !tail.ends_with(".gguf") ||
      of.find_first_not_of("0123456789") != std::string::npos)
    return {path};
  std::vector<std::string> parts;
  for (uint64_t part = 1, count = std::stoull(of); part <= count; ++part) {
    const std::string number = std::to_string(part);
    parts.push_back(stem + "-" + std::string(5 - number.size(), '0') + number + "-of-" + of + ".gguf");
  }
  return parts.empty() ? std::vector<std::string>{path} : parts;
}

bool is_later_part(std::string_view name) {
  constexpr size_t tail_bytes = std::string_view("-00001-of-00000.gguf").size();
  if (name.size() < tail_bytes) return false;
  const std::string_view tail = name.substr(name.size() - tail_bytes);
  return tail[0] == '-' && tail.substr(6, 4) == "-of-" && tail.ends_with(".gguf") &&
         !tail.starts_with("-00001-");
}

// What a folder's model begins with: its index of shards or, without one, its safetensors file.
Result<std::string> first_of_folder(const std::string& folder) {
  std::vector<std::string> indexes, files, gguf_files;
  std::error_code failed;
  for (std::filesystem::directory_iterator entry(folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with('.')) continue;
    if (name.ends_with(".safetensors.index.json")) indexes.push_back(entry->path().string());
    if (name.ends_with(".safetensors")) files.push_back(entry->path().string());
    if (name.ends_with(".gguf") && !is_later_part(name)) gguf_files.push_back(entry->path().string());
  }
  if (failed) return os_error(failed.value(), "read_safetensors_model", folder + ": cannot be listed");
  const std::vector<std::string>& found = !indexes.empty() ? indexes : !files.empty() ? files : gguf_files;
  if (found.size() == 1) return found.front();
  if (found.empty()) {
    return refuse_model(ErrorCode::not_found,
                        folder + ": no *.safetensors.index.json, *.safetensors or *.gguf in it");
  }
  return refuse_model(ErrorCode::invalid_argument, folder + ": " + std::to_string(found.size()) +
                                                       " models in it, such as " + found.front() +
                                                       "; name one of them");
}

Result<std::string> read_index_text(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0)
    return os_error(errno, "read_safetensors_model", path + ": cannot be opened");
  if (!S_ISREG(status.st_mode))
    return refuse_model(ErrorCode::invalid_argument, path + ": not a regular file; copy it to one first");
  if (static_cast<uint64_t>(status.st_size) > index_bytes_max)
    return refuse_model(ErrorCode::limit_exceeded, path + ": more than 100 MB; is it an index of shards?");
  std::string text(static_cast<size_t>(status.st_size), '\0');
  TERRACE_RETURN_IF_ERROR(read_exactly(fd.get(), path, 0, std::as_writable_bytes(std::span(text))));
  return text;
}

// Opens the file; notes which tensors it has, and its metadata.
class Collector {
 public:
  Status add(const std::string& path) {
    TERRACE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open_any(path));
    for (const SafetensorsEntry& entry : file.index.tensors) {
      const auto [before, is_new] = file_of_.emplace(entry.name, found_.files.size());
      if (is_new) continue;
      return refuse_model(ErrorCode::corrupt, "tensor " + quoted_name(entry.name) + " is in " +
                                                  found_.files[before->second].path + " and in " + path);
    }
    for (const auto& [key, value] : file.index.metadata)
      if (keys_.insert(key).second) found_.metadata.emplace_back(key, value);
    found_.files.push_back({path, std::move(file)});
    return {};
  }

  bool has(const std::string& tensor, const std::string& path) const {
    const auto found = file_of_.find(tensor);
    return found != file_of_.end() && found_.files[found->second].path == path;
  }

  ModelFiles take() { return std::move(found_); }

 private:
  ModelFiles found_;
  std::unordered_map<std::string, size_t> file_of_;
  std::set<std::string> keys_;
};

}  // namespace

Result<ModelFiles> ModelFiles::open(const std::string& given) try {
  std::string path = given;
  if (is_folder(path)) {
    TERRACE_ASSIGN_OR_RETURN(path, first_of_folder(path));
  }
  Collector collector;
  if (is_later_part(path))
    return refuse_model(ErrorCode::invalid_argument,
                        path + ": a part of a model in several files; name the first, -00001-of-");
  if (!is_index(path)) {
    for (const std::string& one : parts_of(path)) TERRACE_RETURN_IF_ERROR(collector.add(one));
    return collector.take();
  }
  TERRACE_ASSIGN_OR_RETURN(const std::string text, read_index_text(path));
  TERRACE_ASSIGN_OR_RETURN(const auto map, parse_shard_index(text, path));
  std::set<std::string> names;
  for (const auto& [tensor, file] : map) names.insert(file);
  const std::string folder = folder_of(path);
  for (const std::string& name : names) TERRACE_RETURN_IF_ERROR(collector.add(folder + name));
  for (const auto& [tensor, file] : map) {
    if (collector.has(tensor, folder + file)) continue;
    return refuse_model(ErrorCode::corrupt, path + ": tensor " + quoted_name(tensor) + " is not in " + folder +
                                                file + "; index and files are of different models");
  }
  return collector.take();
} catch (const std::bad_alloc&) {
  return refuse_model(ErrorCode::out_of_memory, given + ": no local memory for its headers");
}

size_t ModelFiles::tensors() const {
  size_t count = 0;
  for (const ModelFile& one : files) count += one.file.index.tensors.size();
  return count;
}

Status ModelFiles::check_unchanged() const {
  for (const ModelFile& one : files) TERRACE_RETURN_IF_ERROR(one.file.check_unchanged(one.path));
  return {};
}

Result<std::vector<SafetensorsShard>> read_safetensors_model(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(ModelFiles model, ModelFiles::open(path));
  std::vector<SafetensorsShard> shards;
  for (ModelFile& one : model.files) shards.push_back({one.path, std::move(one.file.index)});
  return shards;
}

}  // namespace terrace
