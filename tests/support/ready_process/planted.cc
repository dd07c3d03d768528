// SPDX-License-Identifier: Apache-2.0
// A program with mistakes to find, for tests/unit/scripts/ready_process_test.py. Its words are what it does, one after the
// other; it says on stdout what it was given.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

namespace {

int numbers[4] = {1, 2, 3, 4};

int do_what(const std::string& word) {
  const volatile size_t four = 4;
  if (word == "behind_a_global") {
    const volatile int* const behind = numbers + four;
    return *behind;
  }
  if (word == "after_free") {
    int* const block = new int[4];
    delete[] block;
    const volatile int* const gone = block;
    return gone[1];
  }
  if (word == "overflow") {
    volatile int large = 0x7fffffff;
    large = large + 1;
    return 0;
  }
  if (word == "abort") std::abort();
  if (word == "wait") {
    std::puts("waiting");
    std::fflush(stdout);
    ::pause();
  }
  if (word == "echo") {
    std::string line;
    while (std::getline(std::cin, line)) std::cerr << line << "\n";
  }
  if (word == "descriptors")
    for (int number = 3; number < 64; ++number)
      if (::write(number, "", 0) == 0) std::printf("%d is open\n", number);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<char> folder(4096);
  if (::getcwd(folder.data(), folder.size()) == nullptr) return 99;
  const char* const variable = std::getenv("READY_TEST");
  std::printf("%s in %s with %s\n", arguments[0], folder.data(), variable == nullptr ? "nothing" : variable);
  for (int index = 1; index < count; ++index) {
    std::printf("%s\n", arguments[index]);
    if (const int code = do_what(arguments[index]); code != 0) return code;
  }
  return count;
}
