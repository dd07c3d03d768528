// SPDX-License-Identifier: Apache-2.0
#include "core/os/page_nodes.h"

#include <numaif.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include "core/os/memory_map.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace terrace::os {
namespace {

// The kernel's MAX_NUMNODES is at most 2^10.
constexpr int nodes_max = 1024;
constexpr size_t word_bits = 8 * sizeof(unsigned long);

class SharedMapping {
 public:
  SharedMapping(int fd, FileRange range)
      : at_(::mmap(nullptr, range.length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
                   static_cast<off_t>(range.offset_bytes))),
        bytes_(range.length_bytes) {}
  ~SharedMapping() {
    if (valid()) ::munmap(at_, bytes_);
  }
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  bool valid() const { return at_ != MAP_FAILED; }
  std::byte* at(uint64_t offset) const { return static_cast<std::byte*>(at_) + offset; }

 private:
  void* at_;
  uint64_t bytes_;
};

std::vector<uint64_t> sample_offsets(uint64_t length_bytes, uint64_t samples_max) {
  const uint64_t page = page_bytes();
  const uint64_t pages = length_bytes / page;
  const uint64_t samples = std::min(pages, std::max<uint64_t>(samples_max, 2));
  std::vector<uint64_t> offsets;
  offsets.reserve(samples);
  const uint64_t last = pages - 1;
  const uint64_t steps = std::max<uint64_t>(samples - 1, 1);
  for (uint64_t i = 0; i < samples; ++i)
    offsets.push_back((last / steps * i + last % steps * i / steps) * page);
  return offsets;
}

Error not_mapped(const char* where) {
  return os_error(errno, where, "cannot map a memory file to look at its pages");
}

}  // namespace

uint64_t PageNodes::elsewhere(int node) const {
  uint64_t count = 0;
  for (const auto& [at, pages] : on)
    if (at != node) count += pages;
  return count;
}

std::string PageNodes::words() const {
  std::string text;
  for (const auto& [node, pages] : on)
    text += (text.empty() ? "" : ", ") + std::to_string(pages) + " on node " + std::to_string(node);
  return text.empty() ? "none" : text;
}

Status bind_file(int fd, FileRange range, int node) {
  constexpr const char* where = "bind_file";
  if (node < 0 || node >= nodes_max) {
    return Error{.code = ErrorCode::invalid_argument,
                 .where = where,
                 .detail = std::to_string(node) + " is not the number of a memory node"};
  }
  const SharedMapping mapping(fd, range);
  if (!mapping.valid()) return not_mapped(where);
  std::array<unsigned long, nodes_max / word_bits> nodes{};
  nodes[static_cast<size_t>(node) / word_bits] = 1ul << (static_cast<size_t>(node) % word_bits);
  // One more than there are: the kernel reads one bit less than it is told.
  if (::mbind(mapping.at(0), range.length_bytes, MPOL_BIND, nodes.data(), nodes_max + 1, 0) != 0)
    return os_error(errno, where, "cannot bind memory to node " + std::to_string(node));
  return {};
}

Result<PageNodes> nodes_of_file(int fd, FileRange range, uint64_t samples_max) {
  constexpr const char* where = "nodes_of_file";
  PageNodes found;
  if (range.length_bytes == 0) return found;
  const SharedMapping mapping(fd, range);
  if (!mapping.valid()) return not_mapped(where);
  const uint64_t page = page_bytes();
  std::vector<void*> pages;
  for (const uint64_t offset : sample_offsets(range.length_bytes, samples_max)) {
    pages.push_back(mapping.at(offset));
    // Only what this process has in its page tables can be asked for. Unlike a load this cannot raise SIGBUS.
    if (::madvise(pages.back(), page, MADV_POPULATE_READ) == 0) continue;
    const int code = errno;
    if (code == EINVAL) {
      return Error{.code = ErrorCode::unsupported,
                   .os_errno = code,
                   .where = where,
                   .detail = "where memory lies cannot be checked: the kernel is older than 5.14"};
    }
    Error error =
        os_error(code, where, "a page of a memory file cannot be read: it was cut off, or has gone bad");
    error.code = ErrorCode::io_error;
    return error;
  }
  std::vector<int> status(pages.size(), -EINVAL);
  if (::move_pages(0, pages.size(), pages.data(), nullptr, status.data(), 0) != 0) {
    Error error = os_error(errno, where, "the kernel does not tell on which node memory lies");
    error.code = ErrorCode::unsupported;
    return error;
  }
  for (const int node : status) {
    if (node < 0) return os_error(-node, where, "the kernel does not tell on which node a page lies");
    ++found.on[node];
  }
  return found;
}

}  // namespace terrace::os
