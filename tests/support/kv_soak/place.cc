// SPDX-License-Identifier: Apache-2.0
#include "tests/support/kv_soak/place.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace terrace::kv_soak {

Result<Piece> Piece::map(const std::string& path, uint64_t offset, uint64_t bytes) {
  Piece piece;
  piece.fd_.reset(path.empty() ? ::memfd_create("kv_soak", MFD_CLOEXEC)
                               : ::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!piece.fd_.valid()) return os_error(errno, "kv_soak", "cannot open " + path);
  if (path.empty() && ::ftruncate(piece.fd_.get(), static_cast<off_t>(offset + bytes)) != 0)
    return os_error(errno, "kv_soak", "cannot make memory");
  struct stat seen {};
  if (::fstat(piece.fd_.get(), &seen) == 0 && S_ISREG(seen.st_mode) &&
      static_cast<uint64_t>(seen.st_size) < offset + bytes)
    return Error{.code = ErrorCode::invalid_argument,
                 .where = "kv_soak",
                 .detail = path + " has fewer than " + std::to_string(offset + bytes) + " bytes"};
  void* const at =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, piece.fd_.get(), static_cast<off_t>(offset));
  if (at == MAP_FAILED) return os_error(errno, "kv_soak", "cannot map " + path);
  piece.bytes_ = {static_cast<std::byte*>(at), bytes};
  return piece;
}

Piece::Piece(Piece&& other) noexcept : fd_(std::move(other.fd_)), bytes_(std::exchange(other.bytes_, {})) {}

Piece& Piece::operator=(Piece&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Piece::~Piece() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

Result<Attached> open_memory(const Setup& setup, const Piece& piece) {
  Attached attached;
  if (!setup.in_lease()) {
    attached.memory = piece.bytes();
    return attached;
  }
  SessionOptions options;
  options.socket_path = setup.socket;
  options.connect_timeout_ns = 60 * ns_per_s;
  TERRACE_ASSIGN_OR_RETURN(attached.session, Session::connect(options));
  TERRACE_ASSIGN_OR_RETURN(attached.lease,
                           attached.session->attach(LeaseId{}, setup.lease, LeaseAccess::read_write));
  TERRACE_ASSIGN_OR_RETURN(attached.mapping, Mapping::map(attached.lease));
  attached.memory = attached.mapping->bytes();
  return attached;
}

Status attach_space(const Setup& setup, const Piece& piece, uint32_t host, Attached* attached) {
  KvAttachOptions options;
  options.host = host;
  if (setup.by_manager()) {
    TERRACE_ASSIGN_OR_RETURN(options.ownership, ownership_by_manager(attached->lease));
  } else if (setup.hosts == 1 || setup.in_lease()) {
    const int fd = setup.in_lease() ? attached->lease->fd() : piece.fd();
    TERRACE_ASSIGN_OR_RETURN(options.ownership, ownership_by_locks(fd, setup.offset));
  } else {
    TERRACE_ASSIGN_OR_RETURN(options.ownership,
                             ownership_by_host_ranges(piece.fd(), {.ranges = setup.ranges(),
                                                                   .host = host,
                                                                   .space_offset = setup.offset,
                                                                   .restarted = setup.restarted}));
  }
  TERRACE_ASSIGN_OR_RETURN(attached->space, KvSpace::attach(attached->memory, options));
  return {};
}

}  // namespace terrace::kv_soak
