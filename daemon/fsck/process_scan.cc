// SPDX-License-Identifier: Apache-2.0
#include "daemon/fsck/process_scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "core/base/unique_fd.h"
#include "daemon/memory/files/emulated.h"
#include "daemon/model/kinds.h"

namespace terrace::daemon {
namespace {

using Steady = std::chrono::steady_clock;
using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;

constexpr std::string_view object_suffix = ".obj";
constexpr std::string_view gone_suffix = ".gone";
constexpr std::string_view deleted_suffix = " (deleted)";
constexpr std::string_view dax_prefix = "/dev/dax";

// Where objects are, as a line of maps and a link of fd show it.
struct Place {
  bool exists = false;
  dev_t device = 0;
  std::string folder;  // its last component
  bool dax_devices = false;
};

struct Sighting {
  std::string object;
  bool deleted = false;
  bool dax = false;  // in /dev, not in the folder
};

// "/run/terrace/objects/lease-7.obj (deleted)" -> lease-7, deleted. A process in another mount namespace sees
// another path to the folder, or none at all; the device number says that it is the same one.
std::optional<Sighting> object_of(std::string_view path, const Place& place) {
  Sighting seen;
  if (path.ends_with(deleted_suffix)) {
    seen.deleted = true;
    path.remove_suffix(deleted_suffix.size());
  }
  if (place.dax_devices && seen.deleted && path.starts_with(dax_prefix)) {
    seen.object = std::string(path.substr(path.rfind('/') + 1));
    seen.dax = true;
    return seen;
  }
  // One that was scrubbed while somebody had it open: "lease-7.obj.<inode>.gone".
  if (path.ends_with(gone_suffix)) {
    seen.deleted = true;
    path.remove_suffix(gone_suffix.size());
    path = path.substr(0, path.rfind('.'));
  }
  if (!place.exists || !path.ends_with(object_suffix)) return std::nullopt;
  path.remove_suffix(object_suffix.size());
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos || !valid_object_name(path.substr(slash + 1))) return std::nullopt;
  seen.object = std::string(path.substr(slash + 1));
  std::string_view folder = path.substr(0, slash);
  folder = folder.substr(folder.rfind('/') + 1);
  if (!folder.empty() && folder != place.folder) return std::nullopt;
  return seen;
}

Directory open_directory(int at, const std::string& name) {
  const int fd = ::openat(at, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  Directory directory(fd < 0 ? nullptr : ::fdopendir(fd), ::closedir);
  if (fd >= 0 && directory == nullptr) ::close(fd);
  return directory;
}

std::string read_text(int at, const char* name, size_t bytes_max) {
  const UniqueFd file(::openat(at, name, O_RDONLY | O_CLOEXEC));
  std::string text(bytes_max, '\0');
  const ssize_t n = file.valid() ? ::read(file.get(), text.data(), text.size()) : 0;
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

std::string command_of(int process) {
  std::string text = read_text(process, "comm", 64);
  while (!text.empty() && text.back() == '\n') text.pop_back();
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';  // another user chose it
  return text;
}

template <typename Number>
bool take_number(std::string_view& text, Number& number, int base) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

class ProcessReader {
 public:
  ProcessReader(pid_t pid, const Place& place, Steady::time_point until)
      : pid_(pid), place_(place), until_(until) {}

  // false: another user's, or gone
  bool read(int proc) {
    const UniqueFd process(::openat(proc, std::to_string(pid_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!process.valid()) return gone();
    const bool mapped = read_maps(process.get());
    const bool opened = read_descriptors(process.get());
    if (!found_.empty()) {
      const std::string command = command_of(process.get());
      for (auto& [key, mapping] : found_) mapping.command = command;
    }
    return mapped && opened;
  }
  bool vanished() const { return vanished_; }
  bool late() const { return late_; }
  void move_to(std::vector<LiveMapping>& mappings) {
    for (auto& [key, mapping] : found_) mappings.push_back(std::move(mapping));
  }

 private:
  bool gone() {
    vanished_ = errno == ENOENT || errno == ESRCH;
    return false;
  }
  bool in_time() {
    late_ = late_ || Steady::now() >= until_;
    return !late_;
  }
  LiveMapping& entry(const Sighting& seen) {
    LiveMapping& mapping = found_[{seen.object, seen.deleted}];
    mapping.pid = pid_;
    mapping.object = seen.object;
    mapping.deleted = seen.deleted;
    return mapping;
  }

  // Line by line, as a process may have very many.
  bool read_maps(int process) {
    const UniqueFd file(::openat(process, "maps", O_RDONLY | O_CLOEXEC));
    if (!file.valid()) return gone();
    std::string rest;
    std::array<char, 65536> buffer;
    while (in_time()) {
      const ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return gone();
      if (n == 0) return true;
      rest.append(buffer.data(), static_cast<size_t>(n));
      size_t begin = 0;
      for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1)
        read_line(std::string_view(rest).substr(begin, end - begin));
      rest.erase(0, begin);
    }
    return true;
  }

  // "7f12a000-7f12c000 rw-s 00000000 00:2f 1234   /path"
  void read_line(std::string_view line) {
    const size_t slash = line.find('/');
    if (slash == std::string_view::npos) return;
    const std::optional<Sighting> seen = object_of(line.substr(slash), place_);
    if (!seen.has_value()) return;
    uint64_t begin = 0, end = 0, offset = 0;
    unsigned major_number = 0, minor_number = 0;
    const auto skip = [&line](size_t characters) { line.remove_prefix(std::min(characters, line.size())); };
    if (!take_number(line, begin, 16)) return;
    skip(1);
    if (!take_number(line, end, 16)) return;
    skip(6);  // " rw-s "
    if (!take_number(line, offset, 16)) return;
    skip(1);
    if (!take_number(line, major_number, 16)) return;
    skip(1);
    if (!take_number(line, minor_number, 16)) return;
    if (seen->dax || makedev(major_number, minor_number) == place_.device)
      entry(*seen).mapped_bytes += end - begin;
  }

  bool read_descriptors(int process) {
    const Directory directory = open_directory(process, "fd");
    if (directory == nullptr) return gone();
    std::array<char, 4096> link;
    while (in_time()) {
      const dirent* descriptor = ::readdir(directory.get());
      if (descriptor == nullptr) return true;
      const ssize_t n = ::readlinkat(::dirfd(directory.get()), descriptor->d_name, link.data(), link.size());
      if (n <= 0) continue;  // closed meanwhile
      const auto seen = object_of({link.data(), static_cast<size_t>(n)}, place_);
      struct stat status {};
      if (!seen.has_value()) continue;
      if (!seen->dax && (::fstatat(::dirfd(directory.get()), descriptor->d_name, &status, 0) != 0 ||
                         status.st_dev != place_.device))
        continue;
      entry(*seen).open = true;
    }
    return true;
  }

  const pid_t pid_;
  const Place& place_;
  const Steady::time_point until_;
  std::map<std::pair<std::string, bool>, LiveMapping> found_;
  bool vanished_ = false;
  bool late_ = false;
};

}  // namespace

Result<ProcessScan> scan_processes(const std::string& object_directory, std::chrono::milliseconds time_max,
                                   bool dax_devices) {
  ProcessScan scan;
  struct stat status {};
  const bool exists = ::stat(object_directory.c_str(), &status) == 0;
  if (!exists && !dax_devices) return scan;
  std::error_code ignored;
  const auto resolved = std::filesystem::canonical(object_directory, ignored);
  const Place place{exists, status.st_dev,
                    (ignored ? std::filesystem::path(object_directory) : resolved).filename(), dax_devices};
  const Directory proc = open_directory(AT_FDCWD, "/proc");
  if (proc == nullptr) return os_error(errno, "scan_processes", "cannot read /proc");
  const auto until = Steady::now() + time_max;
  const pid_t self = ::getpid();
  while (const dirent* entry = ::readdir(proc.get())) {
    pid_t pid = 0;
    std::string_view name = entry->d_name;
    if (!take_number(name, pid, 10) || !name.empty() || pid == self) continue;
    ProcessReader reader(pid, place, until);
    const bool readable = reader.read(::dirfd(proc.get()));
    reader.move_to(scan.mappings);
    if (!readable && reader.vanished()) continue;
    ++scan.processes;
    scan.unreadable += !readable;
    if (reader.late()) {
      scan.complete = false;
      break;
    }
  }
  std::stable_sort(scan.mappings.begin(), scan.mappings.end(),
                   [](const LiveMapping& a, const LiveMapping& b) { return a.pid < b.pid; });
  return scan;
}

std::vector<LiveMapping> scan_mappings(const std::string& object_directory, bool dax_devices) {
  auto scan = scan_processes(object_directory, std::chrono::seconds(5), dax_devices);
  if (!scan.ok()) return {};
  return std::move(scan->mappings);
}

bool has_dax_devices(const Image& image) {
  return std::any_of(image.devices.begin(), image.devices.end(),
                     [](const DeviceRow& device) { return memory_kind(device.backend).held_by_device_node; });
}

}  // namespace terrace::daemon
