#include "allocator/preload/message.h"

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
  char text_[400];
  size_t length_ = 0;
};

void print(const char* text, uint64_t number) {
  Line line;
  line.add("terrace: ");
  line.add(program_invocation_short_name != nullptr ? program_invocation_short_name : "program");
  line.add("[");
  line.add(static_cast<uint64_t>(::getpid()));
  line.add("]: ");
  const char* hole = strstr(text, "%u");
  if (hole == nullptr) {
    line.add(text);
  } else {
    for (char one[2] = {}; text != hole; ++text) {
      one[0] = *text;
      line.add(one);
    }
    line.add(number);
    line.add(hole + 2);
  }
  line.write_out();
}

}  // namespace

void remember_stderr() {
  stderr_known = ::fstat(STDERR_FILENO, &stderr_at_start) == 0;
}

void say(const char* text, uint64_t number) {
  int saved = errno;
  struct stat now;
  if (stderr_known && ::fstat(STDERR_FILENO, &now) == 0 && now.st_dev == stderr_at_start.st_dev &&
      now.st_ino == stderr_at_start.st_ino)
    print(text, number);
  errno = saved;
}

void fatal(const char* text, uint64_t number) {
  print(text, number);
  abort();
}

}  // namespace terrace::preload
