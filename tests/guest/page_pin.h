// SPDX-License-Identifier: Apache-2.0
// Pages of a mapping, held beyond it in the ways that a process without privileges has: in a pipe, below a write by
// process_vm_writev that is held up, and below direct I/O.
//
// Threads   One; writing and reading in the background have a thread each.
#pragma once

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "core/base/unique_fd.h"

namespace terrace::test {

class PagePin {
 public:
  static constexpr size_t bytes = 4096;

  ~PagePin() {
    stop_ = true;
    if (writer_.joinable()) (void)finish_write(0);
    if (reader_.joinable()) reader_.join();
  }

  // As many pages in a pipe.
  std::string splice(std::byte* page, size_t count) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return std::strerror(errno);
    out_ = UniqueFd(ends[0]);
    in_ = UniqueFd(ends[1]);
    const iovec piece{page, count * bytes};
    return ::vmsplice(in_.get(), &piece, 1, 0) == static_cast<ssize_t>(count * bytes) ? "ok"
                                                                                      : std::strerror(errno);
  }
  // What the pipe has next, and lets go of: the first byte of a page, as a number.
  std::string empty_pipe() {
    std::vector<unsigned char> read(bytes);
    const ssize_t got = ::read(out_.get(), read.data(), read.size());
    return got == static_cast<ssize_t>(bytes) ? std::to_string(read[0]) : std::strerror(errno);
  }

  // A write into the page that has pinned it and waits for its own source: until finish_write().
  std::string begin_write(std::byte* page) {
    faults_ = UniqueFd(static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC)));
    uffdio_api api{};
    api.api = UFFD_API;
    if (!faults_.valid() || ::ioctl(faults_.get(), UFFDIO_API, &api) != 0) return std::strerror(errno);
    source_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    uffdio_register range{};
    range.range = {reinterpret_cast<uintptr_t>(source_), bytes};
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    if (::ioctl(faults_.get(), UFFDIO_REGISTER, &range) != 0) return std::strerror(errno);
    writer_ = std::thread([this, page] {
      const iovec from{source_, bytes}, to{page, bytes};
      written_ = ::process_vm_writev(::getpid(), &from, 1, &to, 1, 0);
    });
    uffd_msg message{};  // the fault: the page of the lease is pinned by now
    return ::read(faults_.get(), &message, sizeof message) == sizeof message ? "ok" : std::strerror(errno);
  }
  // Lets it write `value` now; how much it says it wrote.
  std::string finish_write(int value) {
    std::vector<unsigned char> content(bytes, static_cast<unsigned char>(value));
    uffdio_copy copy{};
    copy.dst = reinterpret_cast<uintptr_t>(source_);
    copy.src = reinterpret_cast<uintptr_t>(content.data());
    copy.len = bytes;
    if (::ioctl(faults_.get(), UFFDIO_COPY, &copy) != 0) return std::strerror(errno);
    writer_.join();
    return std::to_string(written_.load());
  }

  // Reads a file into the memory past the page cache, over and over, until that fails.
  std::string read_directly(const std::string& path, std::byte* memory, size_t length) {
    file_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    if (!file_.valid()) return std::strerror(errno);
    reader_ = std::thread([this, memory, length] {
      while (!stop_ && ::pread(file_.get(), memory, length, 0) == static_cast<ssize_t>(length)) ++reads_;
      read_errno_ = errno;
      ended_ = true;
    });
    return "ok";
  }
  // "reading N", or how it ended: "EFAULT after N".
  std::string reads() const {
    const std::string count = std::to_string(reads_.load());
    return ended_ ? std::string(strerrorname_np(read_errno_.load())) + " after " + count : "reading " + count;
  }

 private:
  UniqueFd out_, in_, faults_, file_;
  std::byte* source_ = nullptr;
  std::thread writer_, reader_;
  std::atomic<bool> stop_{false}, ended_{false};
  std::atomic<ssize_t> written_{0};
  std::atomic<uint64_t> reads_{0};
  std::atomic<int> read_errno_{0};
};

}  // namespace terrace::test
