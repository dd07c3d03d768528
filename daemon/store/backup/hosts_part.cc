// SPDX-License-Identifier: Apache-2.0
#include "daemon/store/backup/hosts_part.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>

#include "core/base/crc32c.h"
#include "core/base/unique_fd.h"

namespace terrace::daemon {
namespace {

constexpr const char* where_hosts = "hosts of a backup";
constexpr uint64_t hosts_page = 4096;
// 256 hosts and as many removed ones as operators will ever type, at 64 bytes a name.
constexpr uint64_t hosts_text_max = uint64_t{16} << 20;

struct Footer {
  char magic[16];
  uint64_t text_bytes;
  uint32_t zero;
  uint32_t crc;
};
static_assert(sizeof(Footer) == 32);
constexpr char hosts_magic[16] = "terrace-hosts-1";

uint32_t crc_of(const std::string& part) {
  return crc32c(std::as_bytes(std::span(part.data(), part.size() - sizeof(uint32_t))));
}

Error damaged(const std::string& path, const char* what) {
  return Error{.code = ErrorCode::corrupt, .where = where_hosts, .detail = path + what};
}

// How long the database is by its own header; 0 where that does not say.
uint64_t database_bytes(const unsigned char (&header)[100]) {
  const auto number = [&header](size_t at) {
    return uint64_t{header[at]} << 24 | uint64_t{header[at + 1]} << 16 | uint64_t{header[at + 2]} << 8 |
           uint64_t{header[at + 3]};
  };
  const uint64_t page = uint64_t{header[16]} << 8 | uint64_t{header[17]};
  return number(24) == number(92) ? number(28) * (page == 1 ? 65536 : page) : 0;
}

}  // namespace

std::string hosts_path(const std::string& state_path) {
  return state_path + ".hosts";
}

Status append_hosts(const std::string& path, const std::string& state_path) {
  std::ifstream file(hosts_path(state_path), std::ios::binary);
  if (!file.is_open()) {
    struct stat status {};
    if (::lstat(hosts_path(state_path).c_str(), &status) != 0 && errno == ENOENT) return {};
    return os_error(EIO, where_hosts, "cannot read " + hosts_path(state_path));
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) return os_error(EIO, where_hosts, "cannot read " + hosts_path(state_path));
  if (text.size() > hosts_text_max)
    return damaged(hosts_path(state_path), " is no list of hosts: it is too large");
  const uint64_t bytes = (text.size() + sizeof(Footer) + hosts_page - 1) / hosts_page * hosts_page;
  std::string part = text;
  part.resize(bytes);
  Footer footer{};
  std::memcpy(footer.magic, hosts_magic, sizeof(footer.magic));
  footer.text_bytes = text.size();
  std::memcpy(part.data() + bytes - sizeof(footer), &footer, sizeof(footer));
  footer.crc = crc_of(part);
  std::memcpy(part.data() + bytes - sizeof(footer), &footer, sizeof(footer));
  const UniqueFd out(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW));
  if (!out.valid()) return os_error(errno, where_hosts, "cannot open " + path);
  for (size_t done = 0; done < part.size();) {
    const ssize_t n = ::write(out.get(), part.data() + done, part.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return os_error(n == 0 ? ENOSPC : errno, where_hosts, "cannot write " + path);
    done += static_cast<size_t>(n);
  }
  if (::fsync(out.get()) != 0) return os_error(errno, where_hosts, "cannot sync " + path);
  return {};
}

Result<HostsPart> read_hosts(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  unsigned char header[100] = {};
  if (!file.valid() || ::fstat(file.get(), &status) != 0 ||
      ::pread(file.get(), header, sizeof(header), 0) != static_cast<ssize_t>(sizeof(header)))
    return os_error(errno, where_hosts, "cannot read " + path);
  const uint64_t size = static_cast<uint64_t>(status.st_size), database = database_bytes(header);
  if (database == 0 || size <= database) return HostsPart{};
  const uint64_t bytes = size - database;
  if (bytes % hosts_page != 0 || bytes > hosts_text_max + 2 * hosts_page)
    return damaged(path, " goes on behind its database");
  std::string part(bytes, '\0');
  if (::pread(file.get(), part.data(), bytes, static_cast<off_t>(database)) != static_cast<ssize_t>(bytes))
    return os_error(errno, where_hosts, "cannot read " + path);
  Footer footer{};
  std::memcpy(&footer, part.data() + bytes - sizeof(footer), sizeof(footer));
  if (std::memcmp(footer.magic, hosts_magic, sizeof(footer.magic)) != 0 ||
      footer.text_bytes > bytes - sizeof(footer) || footer.crc != crc_of(part))
    return damaged(path, ": its list of further hosts does not match its checksum");
  part.resize(footer.text_bytes);
  return HostsPart{std::move(part), bytes};
}

Result<HostsPart> take_hosts(const std::string& path) {
  TERRACE_ASSIGN_OR_RETURN(HostsPart part, read_hosts(path));
  struct stat status {};
  if (part.bytes == 0) return part;
  if (::stat(path.c_str(), &status) != 0 ||
      ::truncate(path.c_str(), status.st_size - static_cast<off_t>(part.bytes)) != 0)
    return os_error(errno, where_hosts, "cannot shorten " + path);
  return part;
}

}  // namespace terrace::daemon
