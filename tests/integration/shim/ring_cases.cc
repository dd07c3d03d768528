// SPDX-License-Identifier: Apache-2.0
// Buffers of the heap that are registered with an io_uring, over forks: what the ring writes the parent reads, what
// the parent stores the ring writes, and a child has what was there at its fork. One case a run: ring_cases NAME.
// liburing is linked in, so that its system calls come by no function of the preload library.
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <thread>
#include <vector>

namespace {

constexpr size_t page = 4096;
// Pages, parts of a granule, and more than one; of the longest only a few.
constexpr size_t sizes[] = {5 * page, 64u << 10, 300u << 10, 3u << 20,
                            5 * page, 64u << 10, 300u << 10, 600u << 10};
constexpr unsigned buffer_count = 6 * std::size(sizes);

[[noreturn]] void wrong(const char* what) {
  fprintf(stderr, "ring_cases[%d]: %s (errno %d)\n", static_cast<int>(getpid()), what, errno);
  _exit(1);
}

unsigned char value(unsigned buffer, size_t at, unsigned round) {
  return static_cast<unsigned char>(buffer * 31 + at / page * 7 + round * 101 + 1);
}

struct Buffers {
  std::vector<iovec> all;
  void fill(unsigned round) {
    for (unsigned i = 0; i < all.size(); ++i)
      for (size_t at = 0; at < all[i].iov_len; at += page)
        memset(static_cast<char*>(all[i].iov_base) + at, value(i, at, round), page);
  }
  void check(unsigned round, const char* what) const {
    for (unsigned i = 0; i < all.size(); ++i)
      for (size_t at = 0; at < all[i].iov_len; at += 512)
        if (static_cast<unsigned char*>(all[i].iov_base)[at] != value(i, at, round)) wrong(what);
  }
};

Buffers make_buffers() {
  Buffers made;
  for (unsigned i = 0; i < buffer_count; ++i) {
    const size_t bytes = sizes[i % std::size(sizes)];
    void* at = aligned_alloc(page, bytes);
    if (at == nullptr) wrong("no memory");
    made.all.push_back({at, bytes});
  }
  return made;
}

class Ring {
 public:
  explicit Ring(Buffers& buffers) : buffers_(buffers) {
    const int failed = io_uring_queue_init(8, &ring_, 0);
    if (failed != 0) {
      puts("no io_uring here");
      _exit(0);
    }
    char name[] = "/tmp/ring_cases.XXXXXX";
    fd_ = mkstemp(name);
    unlink(name);
    size_t bytes = 0;
    for (const iovec& one : buffers_.all) bytes += one.iov_len;
    if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(bytes)) != 0) wrong("a file");
  }
  void enter() {
    if (io_uring_register_buffers(&ring_, buffers_.all.data(), buffer_count) != 0) wrong("register");
  }
  // Behind places without a buffer.
  void enter_sparse() {
    constexpr unsigned places = 5;
    const std::vector<__u64> tags(buffer_count);
    if (io_uring_register_buffers_sparse(&ring_, buffer_count + 2 * places) != 0 ||
        io_uring_register_buffers_update_tag(&ring_, places, buffers_.all.data(), tags.data(), buffer_count) <
            0)
      wrong("register_buffers_sparse");
    first_ = places;
  }
  void leave() {
    if (io_uring_unregister_buffers(&ring_) != 0) wrong("unregister");
  }
  void transfer(bool writes) {
    off_t offset = 0;
    for (unsigned i = 0; i < buffer_count; ++i) {
      const iovec& one = buffers_.all[i];
      io_uring_sqe* request = io_uring_get_sqe(&ring_);
      const auto bytes = static_cast<unsigned>(one.iov_len);
      if (writes)
        io_uring_prep_write_fixed(request, fd_, one.iov_base, bytes, offset, first_ + static_cast<int>(i));
      else
        io_uring_prep_read_fixed(request, fd_, one.iov_base, bytes, offset, first_ + static_cast<int>(i));
      if (io_uring_submit(&ring_) != 1) wrong("submit");
      io_uring_cqe* answer = nullptr;
      while (io_uring_wait_cqe(&ring_, &answer) == -EINTR) continue;
      if (answer == nullptr || answer->res != static_cast<int>(bytes)) wrong("a transfer");
      io_uring_cqe_seen(&ring_, answer);
      offset += static_cast<off_t>(bytes);
    }
  }
  // The file, past the ring.
  void fill_file(unsigned round) {
    each([&](off_t offset, unsigned i, size_t at, std::vector<unsigned char>& bytes) {
      std::fill(bytes.begin(), bytes.end(), value(i, at, round));
      if (pwrite(fd_, bytes.data(), bytes.size(), offset) != static_cast<ssize_t>(bytes.size()))
        wrong("pwrite");
    });
  }
  void check_file(unsigned round) {
    each([&](off_t offset, unsigned i, size_t at, std::vector<unsigned char>& bytes) {
      if (pread(fd_, bytes.data(), bytes.size(), offset) != static_cast<ssize_t>(bytes.size())) wrong("pread");
      for (unsigned char byte : bytes)
        if (byte != value(i, at, round)) wrong("the ring wrote other bytes than the parent had stored");
    });
  }

 private:
  template <typename Visit>
  void each(Visit visit) {
    std::vector<unsigned char> bytes(page);
    off_t offset = 0;
    for (unsigned i = 0; i < buffer_count; ++i)
      for (size_t at = 0; at < buffers_.all[i].iov_len; at += page, offset += page) visit(offset, i, at, bytes);
  }

  Buffers& buffers_;
  io_uring ring_;
  int fd_;
  int first_ = 0;  // number of the first buffer
};

void wait_for(pid_t child) {
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) wrong("a child did not end well");
}

// `round`: what the child finds.
pid_t child_that_checks(Buffers& buffers, unsigned round, const int (&go)[2]) {
  const pid_t child = fork();
  if (child < 0) wrong("fork");
  if (child != 0) return child;
  char byte = 0;
  close(go[1]);                                                  // a parent that found something wrong ends
  while (read(go[0], &byte, 1) < 0 && errno == EINTR) continue;  // the parent's doing is over then
  buffers.check(round, "a child has other bytes than at its fork");
  buffers.fill(round + 50);
  buffers.check(round + 50, "a child's stores");
  // Its own heap, and a child of its own.
  const pid_t grandchild = fork();
  if (grandchild == 0) {
    buffers.check(round + 50, "a grandchild");
    for (iovec& one : buffers.all) free(one.iov_base);
    free(calloc(1, 4u << 20));
    _exit(0);
  }
  wait_for(grandchild);
  _exit(0);
}

void over_a_fork(Ring& ring, Buffers& buffers, unsigned round) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) wrong("pipe");
  buffers.fill(round);
  const pid_t child = child_that_checks(buffers, round, pipe_ends);
  buffers.check(round, "the parent, after its fork");
  buffers.fill(round + 1);
  ring.transfer(true);
  ring.check_file(round + 1);
  ring.fill_file(round + 2);
  ring.transfer(false);
  buffers.check(round + 2, "the parent reads other bytes than the ring has written");
  if (write(pipe_ends[1], "x", 1) != 1) wrong("write");
  wait_for(child);
  buffers.check(round + 2, "a child's stores are seen");
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

void registered() {
  Buffers buffers = make_buffers();
  Ring ring(buffers);
  ring.enter();
  for (unsigned round = 0; round < 4; ++round) over_a_fork(ring, buffers, round * 3);
  ring.leave();
  buffers.fill(40);
  const pid_t child = fork();
  if (child == 0) {
    buffers.check(40, "a child, once nothing is registered");
    _exit(0);
  }
  wait_for(child);
}

void sparse() {
  Buffers buffers = make_buffers();
  Ring ring(buffers);
  ring.enter_sparse();
  for (unsigned round = 0; round < 2; ++round) over_a_fork(ring, buffers, round * 3);
}

// What was registered is freed and comes into use again: for other things, and registered again.
void freed_and_again() {
  for (unsigned round = 0; round < 3; ++round) {
    Buffers buffers = make_buffers();
    Ring ring(buffers);
    ring.enter();
    over_a_fork(ring, buffers, round);
    // Freed while the ring knows them still: its business.
    if (round != 1) ring.leave();
    for (iovec& one : buffers.all) free(one.iov_base);
    Buffers others = make_buffers();
    others.fill(round + 7);
    const pid_t child = fork();
    if (child == 0) {
      others.check(round + 7, "a child has other bytes where something was registered");
      _exit(0);
    }
    wait_for(child);
    for (iovec& one : others.all) free(one.iov_base);
  }
}

// A ring that a thread is in all the time tells of its buffers only now and then.
void busy_ring() {
  Buffers buffers = make_buffers(), other_buffers = make_buffers();
  Ring ring(buffers), other(other_buffers);
  ring.enter();
  other.enter();
  other_buffers.fill(90);
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    while (!stop) other.transfer(true);
  });
  for (unsigned round = 0; round < 3; ++round) over_a_fork(ring, buffers, round * 3);
  stop = true;
  thread.join();
  other.check_file(90);
}

}  // namespace

int main(int argc, char** argv) {
  struct Case {
    const char* name;
    void (*run)();
  };
  constexpr Case cases[] = {{"registered", registered},
                            {"sparse", sparse},
                            {"freed_and_again", freed_and_again},
                            {"busy_ring", busy_ring}};
  for (const Case& one : cases)
    if (argc == 2 && strcmp(argv[1], one.name) == 0) {
      one.run();
      return 0;
    }
  for (const Case& one : cases) puts(one.name);
  return argc == 1 ? 0 : 2;
}
