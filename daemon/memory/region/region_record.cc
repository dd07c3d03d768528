// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/region/region_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <span>
#include <sstream>

#include "core/base/crc32c.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {
namespace {

constexpr size_t file_bytes_max = 4 << 20;
constexpr size_t memdevs_max = 16;  // the most that CXL interleaves over

std::string quoted(const std::string& text) {
  return "\"" + text + "\"";
}

uint32_t sum_of(const std::string& body) {
  return crc32c(std::as_bytes(std::span(body.data(), body.size())));
}

Error corrupt(size_t line, const std::string& what) {
  return Error{.code = ErrorCode::corrupt,
               .where = "RegionRecords::read",
               .detail = "line " + std::to_string(line) + ": " + what};
}

// Letters, digits and "-_.:@": nothing that would have to be escaped.
bool plain(const std::string& text) {
  return text.size() <= 128 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
                  c == '_' || c == '.' || c == ':' || c == '@';
         });
}

bool read_quoted(const std::string& text, std::string& out) {
  if (text.size() < 2 || text.front() != '"' || text.back() != '"') return false;
  out = text.substr(1, text.size() - 2);
  return plain(out);
}

template <typename Number>
bool read_number(const std::string& text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

bool read_list(const std::string& text, std::vector<std::string>& out) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') return false;
  std::istringstream items(text.substr(1, text.size() - 2));
  out.clear();
  for (std::string item; std::getline(items, item, ',');) {
    if (!item.empty() && item.front() == ' ') item.erase(0, 1);
    std::string value;
    if (!read_quoted(item, value) || value.empty() || out.size() == memdevs_max) return false;
    out.push_back(std::move(value));
  }
  return !out.empty();
}

bool read_flag(const std::string& text, bool& out) {
  out = text == "true";
  return out || text == "false";
}

bool set_field(RegionRecord& record, const std::string& key, const std::string& value) {
  if (key == "serial") return read_quoted(value, record.serial) && !record.serial.empty();
  if (key == "memdevs") return read_list(value, record.memdevs);
  if (key == "volatile") return read_flag(value, record.ram);
  if (key == "granularity") return read_number(value, record.granularity);
  if (key == "bytes") return read_number(value, record.bytes) && record.bytes != 0;
  if (key == "uuid") return read_quoted(value, record.uuid);
  if (key == "window") return read_quoted(value, record.root);
  if (key == "made") return read_flag(value, record.made);
  if (key == "position") return read_number(value, record.position_bytes);
  return false;
}

std::string directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash + 1);
}

Status write_all(int fd, const std::string& text, const std::string& path) {
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return os_error(errno, "RegionRecords::write", "cannot write " + path);
    done += static_cast<size_t>(wrote);
  }
  return {};
}

}  // namespace

std::string format_records(const std::vector<RegionRecord>& records) {
  std::string body;
  for (const RegionRecord& record : records) {
    std::string memdevs;
    for (const std::string& one : record.memdevs) memdevs += (memdevs.empty() ? "" : ", ") + quoted(one);
    body += "\n[[region]]\nserial = " + quoted(record.serial) + "\nmemdevs = [" + memdevs +
            "]\nvolatile = " + (record.ram ? "true" : "false") +
            "\ngranularity = " + std::to_string(record.granularity) +
            "\nbytes = " + std::to_string(record.bytes) + "\nuuid = " + quoted(record.uuid) +
            "\nwindow = " + quoted(record.root) + "\nmade = " + (record.made ? "true" : "false") + "\n";
    if (record.position_bytes != 0) body += "position = " + std::to_string(record.position_bytes) + "\n";
  }
  return "# CXL regions that Terrace makes again after a reboot. Written by terraced; change it by 'terrace "
         "region'.\n"
         "version = 1\nchecksum = " +
         std::to_string(sum_of(body)) + "\n" + body;
}

Result<std::vector<RegionRecord>> parse_records(const std::string& text) {
  std::vector<RegionRecord> records;
  std::istringstream lines(text);
  size_t number = 0;
  uint32_t version = 0;
  uint64_t checksum = UINT64_MAX;  // none yet
  const size_t begin = text.find("\n\n[[region]]");
  const std::string body = begin == std::string::npos ? "" : text.substr(begin + 1);
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty() || line.front() == '#') continue;
    if (line == "[[region]]") {
      records.emplace_back();
      continue;
    }
    const size_t equals = line.find(" = ");
    if (equals == std::string::npos) return corrupt(number, "'" + line + "' is no setting");
    const std::string key = line.substr(0, equals), value = line.substr(equals + 3);
    const bool understood = !records.empty()   ? set_field(records.back(), key, value)
                            : key == "version" ? read_number(value, version)
                                               : key == "checksum" && read_number(value, checksum);
    if (!understood) return corrupt(number, "'" + key + "' has an impossible value, or is unknown");
  }
  if (version != 1) return corrupt(1, "it is of version " + std::to_string(version) + ", and 1 is understood");
  if (checksum != sum_of(body)) return corrupt(number, "its checksum is not that of its contents");
  for (const RegionRecord& record : records)
    if (record.serial.empty() || record.memdevs.empty() || record.bytes == 0)
      return corrupt(number, "a region lacks its serial, memdevs or bytes");
  return records;
}

Result<std::vector<RegionRecord>> RegionRecords::read() const {
  if (path_.empty()) return std::vector<RegionRecord>{};
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) {
    if (errno == ENOENT) return std::vector<RegionRecord>{};
    return os_error(errno, "RegionRecords::read", "cannot open " + path_);
  }
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error(errno, "RegionRecords::read", "cannot read " + path_);
    if (got == 0) break;
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > file_bytes_max) return corrupt(1, path_ + " is far too large");
  }
  auto records = parse_records(text);
  if (records.ok()) return records;
  Error error = records.error();
  error.detail = path_ + ", " + error.detail +
                 ". No region is made or removed until it is fixed: move it away, and make the regions anew by "
                 "'terrace region create' with the same memdevs in the same order; what is on them stays";
  return error;
}

Status RegionRecords::write(const std::vector<RegionRecord>& records) const {
  if (path_.empty()) return {};
  const std::string beside = path_ + ".new";
  const UniqueFd fd(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return os_error(errno, "RegionRecords::write", "cannot create " + beside);
  TERRACE_RETURN_IF_ERROR(write_all(fd.get(), format_records(records), beside));
  if (::fsync(fd.get()) != 0)
    return os_error(errno, "RegionRecords::write", "cannot make " + beside + " durable");
  if (::rename(beside.c_str(), path_.c_str()) != 0)
    return os_error(errno, "RegionRecords::write", "cannot rename " + beside + " to " + path_);
  const UniqueFd directory(::open(directory_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory.valid() || ::fsync(directory.get()) != 0)
    return os_error(errno, "RegionRecords::write", "cannot make the rename of " + path_ + " durable");
  return {};
}

}  // namespace terrace::daemon
