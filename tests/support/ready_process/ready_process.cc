// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program by tests/support/ready_process.py: the program starts once, as far as the call of its main(),
// and forks for each command line that a test asks for. What a sanitized program does before main() is most of what a
// short run of it costs.
//
// A request is one message on the socket whose number is in TERRACE_READY_PROCESS: words that end with a NUL each, namely
// how many arguments there are, the umask, the folder, the arguments, the environment; and with it four descriptors:
// stdin, stdout, stderr, and a socket for the answers (the child's process id, then the status that wait() tells).
// The end of the socket is the end of the process; children go on.
#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);

Main program_main = nullptr;

constexpr size_t request_bytes_max = 512 << 10;

struct Child {
  pid_t pid;
  int process;  // readable once it has ended
  int answers;
};

struct Request {
  std::vector<char*> words;
  std::array<int, 4> descriptors;
};

[[noreturn]] void give_up(const char* what) {
  std::perror(what);
  _exit(125);
}

// False at the end of the socket. The words lie in a buffer that the next request overwrites.
bool receive(int socket, Request& request) {
  static char bytes[request_bytes_max];
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(request.descriptors))];
  iovec part{.iov_base = bytes, .iov_len = sizeof(bytes)};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (size == 0) return false;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (size < 0 || bytes[size - 1] != '\0' || (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
      header == nullptr || header->cmsg_len != CMSG_LEN(sizeof(request.descriptors)))
    give_up("ready process: request");
  std::memcpy(request.descriptors.data(), CMSG_DATA(header), sizeof(request.descriptors));
  request.words.clear();
  for (char* word = bytes; word < bytes + size; word += std::strlen(word) + 1) request.words.push_back(word);
  return true;
}

// In the child: what it was asked to be.
int become(Request& request) {
  for (int number = 0; number < 3; ++number)
    if (dup2(request.descriptors[number], number) < 0) give_up("ready process: dup2");
  for (const int descriptor : request.descriptors) close(descriptor);
  const int count = std::atoi(request.words[0]);
  umask(static_cast<mode_t>(std::strtol(request.words[1], nullptr, 8)));
  if (chdir(request.words[2]) != 0) give_up(request.words[2]);
  static std::vector<char*> arguments, variables;
  arguments.assign(request.words.begin() + 3, request.words.begin() + 3 + count);
  variables.assign(request.words.begin() + 3 + count, request.words.end());
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  environ = variables.data();
  return program_main(count, arguments.data(), environ);
}

// Comes back in children only, with what the program returns.
int serve(int socket) {
  std::vector<Child> children;
  std::vector<pollfd> waited;
  Request request;
  for (;;) {
    waited.assign(1, pollfd{.fd = socket, .events = POLLIN, .revents = 0});
    for (const Child& child : children)
      waited.push_back(pollfd{.fd = child.process, .events = POLLIN, .revents = 0});
    if (poll(waited.data(), waited.size(), -1) < 0) give_up("ready process: poll");
    for (size_t index = children.size(); index-- > 0;) {
      if (waited[index + 1].revents == 0) continue;
      const Child child = children[index];
      int status = 0;
      if (waitpid(child.pid, &status, 0) != child.pid) give_up("ready process: waitpid");
      (void)send(child.answers, &status, sizeof(status), MSG_NOSIGNAL);  // whoever asked may have ended
      close(child.answers);
      close(child.process);
      children.erase(children.begin() + static_cast<std::ptrdiff_t>(index));
    }
    if (waited[0].revents == 0) continue;
    if (!receive(socket, request)) _exit(0);
    const pid_t pid = fork();
    if (pid < 0) give_up("ready process: fork");
    if (pid == 0) {
      close(socket);
      for (const Child& child : children) {
        close(child.answers);
        close(child.process);
      }
      return become(request);
    }
    const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (process < 0) give_up("ready process: pidfd_open");
    const int answers = request.descriptors[3];
    for (int number = 0; number < 3; ++number) close(request.descriptors[number]);
    (void)send(answers, &pid, sizeof(pid), MSG_NOSIGNAL);
    children.push_back({.pid = pid, .process = process, .answers = answers});
  }
}

int main_or_serve(int count, char** arguments, char** variables) {
  const char* socket = std::getenv("TERRACE_READY_PROCESS");
  return socket != nullptr ? serve(std::atoi(socket)) : program_main(count, arguments, variables);
}

}  // namespace

// A program that ends takes the marks around its globals from the shadow memory, so that a library's may be another's. Here
// nothing comes after them, and a fork would copy all these pages for it.
extern "C" __attribute__((visibility("default"))) void __asan_unregister_globals(void*, unsigned long) {}

// The C library's own, which the first instructions of a program call with its main(): constructors have run once it calls
// ours.
extern "C" __attribute__((visibility("default"))) int __libc_start_main(Main main, int count, char** arguments,
                                                                        void (*init)(), void (*fini)(),
                                                                        void (*linker_fini)(),
                                                                        void* stack_end) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const Start start = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "__libc_start_main"));
  if (start == nullptr) give_up("ready process: __libc_start_main");
  program_main = main;
  return start(main_or_serve, count, arguments, init, fini, linker_fini, stack_end);
}
