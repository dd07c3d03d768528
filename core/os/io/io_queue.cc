// SPDX-License-Identifier: Apache-2.0
#include "core/os/io/io_queue.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/unique_fd.h"

namespace terrace {
namespace {

std::string sysctl_text(const char* path) {
  const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  char text[32] = {};
  if (!file.valid() || ::read(file.get(), text, sizeof text - 1) <= 0) return {};
  text[std::strcspn(text, "\n")] = '\0';
  return text;
}

std::string refusal_text(int os_errno) {
  const std::string disabled = sysctl_text("/proc/sys/kernel/io_uring_disabled");
  std::string text = "io_uring_setup was refused (";
  text += std::strerror(os_errno);
  text += ")";
  if (os_errno == ENOSYS) return text + ": this kernel has no io_uring, or a seccomp filter hides it";
  if (os_errno == ENOMEM) return text + ": raise the locked-memory limit (ulimit -l)";
  if (os_errno == EPERM && !disabled.empty() && disabled != "0") {
    return text + ": sysctl kernel.io_uring_disabled is " + disabled;
  }
  if (os_errno == EPERM || os_errno == EACCES) return text + ": a seccomp filter or security module forbids it";
  return text;
}

}  // namespace

struct IoQueue::Ring {
  ::io_uring ring{};

  io_uring_sqe* entry() {
    io_uring_sqe* const free = io_uring_get_sqe(&ring);
    TERRACE_CHECK(free != nullptr, "the ring has one entry for each request");
    return free;
  }
};

IoQueue::IoQueue(uint32_t depth, bool io_uring) {
  if (!io_uring) {
    reason_ = "switched off by the caller";
    return;
  }
  auto ring = std::make_unique<Ring>();
  const int result = io_uring_queue_init(depth, &ring->ring, 0);
  if (result < 0)
    reason_ = refusal_text(-result);
  else
    ring_ = std::move(ring);
}

IoQueue::~IoQueue() {
  if (ring_ != nullptr) io_uring_queue_exit(&ring_->ring);
}

void IoQueue::read(int fd, std::byte* memory, uint64_t bytes, uint64_t offset, void* tag) {
  if (ring_ == nullptr) {
    const ssize_t result = ::pread(fd, memory, bytes, static_cast<off_t>(offset));
    finished_.push_back({tag, result < 0 ? -static_cast<int64_t>(errno) : result});
    return;
  }
  io_uring_sqe* const entry = ring_->entry();
  io_uring_prep_read(entry, fd, memory, static_cast<unsigned>(bytes), offset);
  io_uring_sqe_set_data(entry, tag);
}

void IoQueue::write(int fd, const std::byte* memory, uint64_t bytes, uint64_t offset, void* tag) {
  if (ring_ == nullptr) {
    const ssize_t result = ::pwrite(fd, memory, bytes, static_cast<off_t>(offset));
    finished_.push_back({tag, result < 0 ? -static_cast<int64_t>(errno) : result});
    return;
  }
  io_uring_sqe* const entry = ring_->entry();
  io_uring_prep_write(entry, fd, memory, static_cast<unsigned>(bytes), offset);
  io_uring_sqe_set_data(entry, tag);
}

int IoQueue::wait(std::vector<Done>* done) {
  if (ring_ == nullptr) {
    done->insert(done->end(), finished_.begin(), finished_.end());
    finished_.clear();
    return 0;
  }
  const int result = io_uring_submit_and_wait(&ring_->ring, 1);
  const bool for_a_moment = result == -EINTR || result == -EAGAIN || result == -EBUSY;
  if (result < 0) ::poll(nullptr, 0, 1);
  unsigned head = 0;
  unsigned seen = 0;
  io_uring_cqe* entry = nullptr;
  io_uring_for_each_cqe(&ring_->ring, head, entry) {
    done->push_back({io_uring_cqe_get_data(entry), entry->res});
    ++seen;
  }
  io_uring_cq_advance(&ring_->ring, seen);
  return result < 0 && !for_a_moment ? -result : 0;
}

}  // namespace terrace
