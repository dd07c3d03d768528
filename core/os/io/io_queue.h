// SPDX-License-Identifier: Apache-2.0
// Reads and writes of files, many in flight at once through io_uring; one at a time through pread and pwrite where
// io_uring is not wanted or the kernel refuses it. reason() says why.
//
// Place     core/os; block_io.cc transfers whole files with it, libclient/kv/spill single blocks.
// Ownership The memory of a request is the queue's until wait() has given its tag back.
// Threads   One at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace terrace {

class IoQueue {
 public:
  struct Done {
    void* tag = nullptr;
    int64_t result = 0;  // bytes, which may be fewer than asked for; or minus the errno
  };

  // At most `depth` requests may be in flight.
  IoQueue(uint32_t depth, bool io_uring);
  ~IoQueue();  // nothing may be in flight
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  bool io_uring() const { return ring_ != nullptr; }
  const std::string& reason() const { return reason_; }  // why not io_uring; empty when it is used

  void read(int fd, std::byte* memory, uint64_t bytes, uint64_t offset, void* tag);
  void write(int fd, const std::byte* memory, uint64_t bytes, uint64_t offset, void* tag);

  // Waits until one of the requests in flight is done, and appends all that are. Returns 0, or an errno of the kernel's:
  // what it did not take then stays in the queue and is offered again by the next call.
  int wait(std::vector<Done>* done);

 private:
  struct Ring;
  std::unique_ptr<Ring> ring_;
  std::string reason_;
  std::vector<Done> finished_;  // without a ring
};

}  // namespace terrace
