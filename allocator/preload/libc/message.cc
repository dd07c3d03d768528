// SPDX-License-Identifier: Apache-2.0
#include "allocator/preload/libc/message.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace terrace::preload {
namespace {

struct stat stderr_at_start;
bool stderr_known = false;

class Line {
 public:
  void add(const char* text) {
    while (*text != 0 && length_ < sizeof(text_) - 1) text_[length_++] = *text++;
  }
  void add(uint64_t number) {
    char digits[24];
    char* at = digits + sizeof(digits) - 1;
    *at = 0;
    do *--at = static_cast<char>('0' + number % 10);
    while (number /= 10);
    add(at);
  }
  void write_out() {
    text_[length_++] = '\n';
    // One write: lines of several processes do not mix. Raw: no cancellation point under a lock.
    if (::syscall(SYS_write, STDERR_FILENO, text_, length_) < 0) return;
  }

 private:
  char text_[440];
  size_t length_ = 0;
};

void print(const char* text, std::span<const uint64_t> numbers, const char* word = nullptr) {
  Line line;
  line.add("terrace: ");
  line.add(program_invocation_short_name != nullptr ? program_invocation_short_name : "program");
  line.add("[");
  line.add(static_cast<uint64_t>(::getpid()));
  line.add("]: ");
  for (; *text != 0; ++text) {
    if (text[0] == '%' && text[1] == 'u' && !numbers.empty()) {
      line.add(numbers.front());
      numbers = numbers.subspan(1);
      ++text;
    } else if (text[0] == '%' && text[1] == 's' && word != nullptr) {
      line.add(word);
      ++text;
    } else {
      const char one[2] = {*text, 0};
      line.add(one);
    }
  }
  line.write_out();
}

}  // namespace

void remember_stderr() {
  stderr_known = ::fstat(STDERR_FILENO, &stderr_at_start) == 0;
}

namespace {

void say_all(const char* text, std::span<const uint64_t> numbers, const char* word) {
  int saved = errno;
  struct stat now;
  if (stderr_known && ::fstat(STDERR_FILENO, &now) == 0 && now.st_dev == stderr_at_start.st_dev &&
      now.st_ino == stderr_at_start.st_ino)
    print(text, numbers, word);
  errno = saved;
}

}  // namespace

void say_numbers(const char* text, std::span<const uint64_t> numbers) {
  say_all(text, numbers, nullptr);
}

void say(const char* text, const char* word) {
  say_all(text, {}, word);
}

void say(const char* text, uint64_t number) {
  say_numbers(text, {&number, 1});
}

void fatal(const char* text, uint64_t number) {
  print(text, {&number, 1});
  abort();
}

}  // namespace terrace::preload
