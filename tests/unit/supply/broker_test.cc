// SPDX-License-Identifier: Apache-2.0
#include "allocator/supply/broker.h"

#include <doctest/doctest.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/support/fake_session.h"

namespace terrace::supply {
namespace {

using test::eventually;
using test::FakeSession;

// What the preload library does, step by step.
class Client {
 public:
  explicit Client(const std::string& path) : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    REQUIRE(::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  bool send(const void* bytes, size_t length) { return ::send(socket_.get(), bytes, length, MSG_NOSIGNAL) > 0; }
  // False: the connection ended.
  bool receive(Reply* reply) {
    iovec part{.iov_base = reply, .iov_len = sizeof(*reply)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC) != sizeof(*reply)) return false;
    if (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
      fd_.reset(fd);
    }
    return true;
  }
  Reply ask(RequestKind kind, uint64_t bytes = 0, uint64_t key = 0) {
    Request request{.magic = magic,
                    .version = version,
                    .kind = static_cast<uint16_t>(kind),
                    .segment_index = 0,
                    .at_once = 0,
                    .bytes = bytes,
                    .segment_key = key};
    REQUIRE(send(&request, sizeof(request)));
    Reply reply{};
    REQUIRE(receive(&reply));
    return reply;
  }
  int fd() const { return fd_.get(); }
  void drop_fd() { fd_.reset(); }

 private:
  UniqueFd socket_, fd_;
};

struct Fixture {
  explicit Fixture(uint64_t pool_bytes, uint64_t cxl_bytes, const Migration& migration = {})
      : session(pool_bytes) {
    BrokerOptions options;
    options.migration = migration;
    options.ddr_bytes = 16 * mib;
    options.cxl_bytes = cxl_bytes;
    options.label = "run:test";
    options.tick_ns = 20 * ns_per_ms;
    options.grant_patience_ns = 300 * ns_per_ms;
    options.warn = [this](const std::string& text) {
      std::lock_guard lock(mutex);
      warnings += text + "\n";
    };
    auto started = Broker::start(session, options);
    REQUIRE(started.ok());
    broker = std::move(*started);
  }
  std::mutex mutex;
  std::string warnings;
  FakeSession session;
  std::unique_ptr<Broker> broker;
};

constexpr auto ok = static_cast<uint16_t>(ReplyStatus::ok);
constexpr auto exhausted = static_cast<uint16_t>(ReplyStatus::exhausted);
constexpr auto refused = static_cast<uint16_t>(ReplyStatus::refused);

TEST_CASE("Broker: its socket is in a directory that nobody else can enter, and goes with it") {
  std::string path;
  {
    Fixture f(gib, gib);
    path = f.broker->socket_path();
    struct stat status {};
    REQUIRE(::stat(path.substr(0, path.rfind('/')).c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0700);
  }
  struct stat status {};
  CHECK(::stat(path.substr(0, path.rfind('/')).c_str(), &status) != 0);
}

TEST_CASE("Broker: leases grow with the process, are at least the request, and never more than is left") {
  Fixture f(8 * gib, 768 * mib);
  Client client(f.broker->socket_path());
  CHECK(client.ask(RequestKind::segment, 5 * mib).bytes == 64 * mib);
  CHECK(client.ask(RequestKind::segment, 5 * mib).bytes == 128 * mib);
  CHECK(client.ask(RequestKind::segment, 300 * mib).bytes == 300 * mib);
  CHECK(client.ask(RequestKind::segment, 1).bytes == 192 * mib);  // a quarter of the budget is the most
  CHECK(client.ask(RequestKind::segment, 1).bytes == 84 * mib);
  CHECK(client.ask(RequestKind::segment, 1).status == exhausted);
  CHECK(f.session.grants() == std::vector<uint64_t>{64 * mib, 128 * mib, 300 * mib, 192 * mib, 84 * mib});
}

TEST_CASE("Broker: where several processes run, each finds some of the budget left") {
  Fixture f(gib, 256 * mib);
  // Two slots: this process's, and a child's that stays until told.
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  Client client(f.broker->socket_path());
  CHECK(client.ask(RequestKind::hello).status == ok);
  pid_t other = ::fork();
  if (other == 0) {
    ::close(ends[1]);
    Client second(f.broker->socket_path());
    bool served = second.ask(RequestKind::hello).status == ok;
    char byte;
    ::_exit(served && ::read(ends[0], &byte, 1) == 1 ? 0 : 1);
  }
  ::close(ends[0]);
  REQUIRE(eventually([&] { return f.broker->processes().size() == 2; }));
  for (uint64_t expected : {4, 8, 16, 32, 64, 64, 34})  // small at first, in the end half of what is left
    CHECK(client.ask(RequestKind::segment, 1).bytes == expected * mib);
  CHECK(client.ask(RequestKind::segment, 20 * mib).bytes == 20 * mib);  // what is needed is given all the same
  CHECK(client.ask(RequestKind::segment, 1).bytes == 6 * mib);
  CHECK(::write(ends[1], "x", 1) == 1);
  int status = -1;
  ::waitpid(other, &status, 0);
  CHECK(status == 0);
  ::close(ends[1]);
}

TEST_CASE("Broker: asks for less when the pool is short, down to what is needed") {
  Fixture f(90 * mib, 4 * gib);
  Client client(f.broker->socket_path());
  CHECK(client.ask(RequestKind::segment, 4 * mib).bytes == 64 * mib);
  CHECK(client.ask(RequestKind::segment, 20 * mib).bytes == 20 * mib);
  CHECK(client.ask(RequestKind::segment, 8 * mib).status == exhausted);
}

TEST_CASE("Broker: wild requests are refused, and the next one is served") {
  Fixture f(gib, 256 * mib);
  {
    Client client(f.broker->socket_path());
    CHECK(client.ask(RequestKind::segment, 0).status == refused);
    CHECK(client.ask(RequestKind::segment, UINT64_MAX).status == refused);
    CHECK(client.ask(RequestKind::segment, 300 * mib).status == refused);
    CHECK(client.ask(RequestKind::reopen, 0, 12345).status == refused);
    CHECK(client.ask(static_cast<RequestKind>(99)).status == refused);
  }
  for (size_t length : {size_t{1}, size_t{31}, size_t{33}, size_t{4000}}) {
    Client client(f.broker->socket_path());
    std::string bytes(length, 'x');
    client.send(bytes.data(), bytes.size());
    Reply reply{};
    CHECK_FALSE(client.receive(&reply));
  }
  Client other_version(f.broker->socket_path());
  Request request{};
  request.magic = magic;
  request.version = version + 1;
  other_version.send(&request, sizeof(request));
  Reply reply{};
  CHECK_FALSE(other_version.receive(&reply));
  CHECK(Client(f.broker->socket_path()).ask(RequestKind::hello).status == ok);
}

TEST_CASE(
    "Broker: a program that migrates gets one memory file, again for the asking, until it is another program") {
  UniqueFd device(::memfd_create("stands-for-userfaultfd", MFD_CLOEXEC));
  Fixture f(gib, 64 * mib,
            {.policy = "some", .copy_bytes_per_s = 5, .round_ns = 7, .userfault_device = device.get()});
  Client client(f.broker->socket_path());
  REQUIRE(client.ask(RequestKind::hello).status == ok);
  auto* header =
      static_cast<ControlHeader*>(::mmap(nullptr, control_bytes, PROT_READ, MAP_SHARED, client.fd(), 0));
  REQUIRE(header != MAP_FAILED);
  CHECK(std::string(header->policy) == "some");
  CHECK(header->copy_bytes_per_s == 5);
  CHECK(header->round_ns == 7);
  CHECK(header->userfault_from_device == 1);
  ::munmap(header, control_bytes);

  const uint64_t window = 80 * mib;  // both budgets
  Reply front = client.ask(RequestKind::front, window);
  REQUIRE(front.status == ok);
  struct stat made {
  }, again{};
  REQUIRE(::fstat(client.fd(), &made) == 0);
  CHECK(made.st_size == static_cast<off_t>(window));
  CHECK(made.st_blocks == 0);
  CHECK(client.ask(RequestKind::reopen, 0, front.segment_key).status == ok);
  REQUIRE(::fstat(client.fd(), &again) == 0);
  CHECK(again.st_ino == made.st_ino);
  CHECK(again.st_dev == made.st_dev);
  CHECK(client.ask(RequestKind::userfault_device).status == ok);
  REQUIRE(::fstat(client.fd(), &again) == 0);
  struct stat given {};
  REQUIRE(::fstat(device.get(), &given) == 0);
  CHECK(again.st_ino == given.st_ino);

  for (uint64_t wild : {uint64_t{0}, window + 2 * mib, uint64_t{4096}, UINT64_MAX})
    CHECK(client.ask(RequestKind::front, wild).status == refused);
  REQUIRE(client.ask(RequestKind::hello).status == ok);  // as after exec
  CHECK(client.ask(RequestKind::reopen, 0, front.segment_key).status == refused);
}

TEST_CASE("Broker: the lock of a token is free when the last mapping of it is gone, a child's too") {
  Fixture f(gib, 64 * mib, {.policy = "some", .copy_bytes_per_s = 0, .round_ns = 0, .userfault_device = -1});
  Client client(f.broker->socket_path());
  REQUIRE(client.ask(RequestKind::hello).status == ok);
  const Reply token = client.ask(RequestKind::token);
  REQUIRE(token.status == ok);
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, client.fd(), 0);
  REQUIRE(page != MAP_FAILED);
  REQUIRE(client.ask(RequestKind::reopen, 0, token.segment_key).status == ok);
  UniqueFd other(::dup(client.fd()));
  CHECK(::flock(other.get(), LOCK_EX | LOCK_NB) != 0);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte;
    ::close(ends[1]);
    ::_exit(::read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  ::munmap(page, 4096);
  CHECK(::flock(other.get(), LOCK_EX | LOCK_NB) != 0);  // the child has it
  ::close(ends[0]);
  ::close(ends[1]);
  REQUIRE(::waitpid(child, nullptr, 0) == child);
  CHECK(eventually([&] { return ::flock(other.get(), LOCK_EX | LOCK_NB) == 0; }));
  REQUIRE(client.ask(RequestKind::hello).status == ok);  // as after exec
  CHECK(client.ask(RequestKind::reopen, 0, token.segment_key).status == refused);
}

TEST_CASE("Broker: without a policy there is neither file nor device") {
  Fixture f(gib, 64 * mib);
  Client client(f.broker->socket_path());
  REQUIRE(client.ask(RequestKind::hello).status == ok);
  CHECK(client.ask(RequestKind::front, 80 * mib).status == refused);
  CHECK(client.ask(RequestKind::token).status == refused);
  CHECK(client.ask(RequestKind::userfault_device).status == refused);
}

TEST_CASE("Broker: why a program's memory does not move is said once") {
  Fixture f(gib, 64 * mib, {.policy = "some", .copy_bytes_per_s = 0, .round_ns = 0, .userfault_device = -1});
  Client client(f.broker->socket_path());
  const uint32_t index = client.ask(RequestKind::hello).slot;
  auto* header = static_cast<ControlHeader*>(
      ::mmap(nullptr, control_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, client.fd(), 0));
  REQUIRE(header != MAP_FAILED);
  slots_of(header)[index].migration_state =
      uint64_t{EPERM} << 32 | static_cast<uint64_t>(MigrationState::stopped);
  for (int i = 0; i < 3; ++i) f.broker->scan();
  {
    std::lock_guard lock(f.mutex);
    const size_t first = f.warnings.find("its memory stays where it is");
    CHECK(first != std::string::npos);
    CHECK(f.warnings.find("its memory stays where it is", first + 1) == std::string::npos);
    CHECK(f.warnings.find("userfaultfd") != std::string::npos);
  }
  slots_of(header)[index].migration_state = UINT64_MAX;  // wild numbers say nothing
  f.broker->scan();
  ::munmap(header, control_bytes);
}

TEST_CASE("Broker: a lease stays while its descriptor is on the way, and goes when nobody maps it") {
  Fixture f(gib, gib);
  auto client = std::make_unique<Client>(f.broker->socket_path());
  CHECK(client->ask(RequestKind::segment, mib).status == ok);
  for (int i = 0; i < 10; ++i) f.broker->scan();
  CHECK(f.broker->stats().leases_released == 0);
  CHECK(f.broker->in_use());
  client.reset();
  CHECK(eventually([&] { return f.broker->stats().leases_released == 1; }));
  CHECK(f.session.free_bytes() == gib);
  CHECK(eventually([&] { return !f.broker->in_use(); }));
}

TEST_CASE("Broker: a lease stays while any process maps it, whoever asked for it") {
  Fixture f(gib, gib);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  // The process that asks ends at once; one that it forked keeps the mapping until told.
  pid_t asker = ::fork();
  if (asker == 0) {
    Client client(f.broker->socket_path());
    Reply reply = client.ask(RequestKind::segment, mib);
    void* at = ::mmap(nullptr, reply.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, client.fd(), 0);
    pid_t keeper = ::fork();
    if (keeper == 0) {
      char byte;
      ::close(ends[1]);
      std::memset(at, 7, 4 * mib);
      if (::read(ends[0], &byte, 1) < 0) ::_exit(1);
      ::_exit(0);
    }
    ::_exit(0);
  }
  ::close(ends[0]);
  ::waitpid(asker, nullptr, 0);
  for (int i = 0; i < 10; ++i) {
    f.broker->scan();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(f.broker->stats().leases_granted == 1);
  CHECK(f.broker->stats().leases_released == 0);
  ::close(ends[1]);
  CHECK(eventually([&] { return f.broker->stats().leases_released == 1; }));
}

int wait_on = -1;

// Waits for one byte and ends the process. Uninstrumented and by system calls alone: it runs in the child of a
// fork, on a thread that neither glibc nor the sanitizer's runtime knows.
__attribute__((no_sanitize("address", "undefined", "thread"))) int wait_for_byte(void*) {
  char byte;
  const long n = ::syscall(SYS_read, wait_on, &byte, 1);
  ::syscall(SYS_exit_group, n == 1 ? 0 : 1);
  return 0;
}

// A process of the run that maps a lease and cannot be looked at as usual: `hide` runs in it, last.
void check_lease_is_kept_for(const std::function<void()>& hide) {
  Fixture f(gib, gib);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  pid_t pid = ::fork();
  if (pid == 0) {
    ::close(ends[1]);
    wait_on = ends[0];
    {
      Client client(f.broker->socket_path());
      if (client.ask(RequestKind::hello).status != ok) ::_exit(1);
      Reply reply = client.ask(RequestKind::segment, mib);
      if (::mmap(nullptr, reply.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, client.fd(), 0) == MAP_FAILED)
        ::_exit(1);
    }
    alignas(16) static char stack[64 * 1024];
    if (::clone(wait_for_byte, stack + sizeof(stack),
                CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM, nullptr) < 0)
      ::_exit(1);
    hide();
    for (;;) ::pause();
  }
  ::close(ends[0]);
  REQUIRE(eventually([&] { return f.broker->stats().leases_granted == 1; }));
  for (int i = 0; i < 30; ++i) {
    f.broker->scan();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  CHECK(f.broker->stats().leases_released == 0);
  CHECK(f.broker->in_use());
  CHECK(::write(ends[1], "x", 1) == 1);
  int status = -1;
  ::waitpid(pid, &status, 0);
  CHECK(status == 0);
  ::close(ends[1]);
  CHECK(eventually([&] { return f.broker->stats().leases_released == 1; }));
  CHECK(eventually([&] { return !f.broker->in_use(); }));
}

TEST_CASE("Broker: a lease stays while threads go on after their process's first one") {
  check_lease_is_kept_for([] { ::syscall(SYS_exit, 0); });
}

TEST_CASE("Broker: a lease stays while its process hides its mappings") {
  // Only root may look at such a process; as root this is the ordinary case.
  check_lease_is_kept_for([] { ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); });
}

TEST_CASE("Broker: no descriptor for a process's end is not that end") {
  Fixture f(gib, gib);
  Client client(f.broker->socket_path());
  CHECK(client.ask(RequestKind::hello).status == ok);
  auto second = std::make_unique<Client>(f.broker->socket_path());
  CHECK(second->ask(RequestKind::segment, mib).status == ok);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  // The control page stays mapped by this process itself, which has a slot.
  void* control = ::mmap(nullptr, control_bytes, PROT_READ, MAP_SHARED, client.fd(), 0);
  REQUIRE(control != MAP_FAILED);
  rlimit none = before;
  none.rlim_cur = 3;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  for (int i = 0; i < 5; ++i) f.broker->scan();
  CHECK(f.broker->processes() == std::vector<pid_t>{::getpid()});
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  for (int i = 0; i < 5; ++i) f.broker->scan();
  CHECK(f.broker->processes() == std::vector<pid_t>{::getpid()});
  ::munmap(control, control_bytes);
}

TEST_CASE("Broker: a budget in use by an ended process is waited for, not refused") {
  Fixture f(64 * mib, 64 * mib);
  auto first = std::make_unique<Client>(f.broker->socket_path());
  CHECK(first->ask(RequestKind::segment, 60 * mib).status == ok);
  Client second(f.broker->socket_path());
  CHECK(second.ask(RequestKind::segment, 60 * mib).status == exhausted);  // still held
  first.reset();
  CHECK(second.ask(RequestKind::segment, 60 * mib).status == ok);
}

TEST_CASE("Broker: a manager that is away is told apart from a full one, and its leases are not given up") {
  Fixture f(gib, gib);
  auto client = std::make_unique<Client>(f.broker->socket_path());
  CHECK(client->ask(RequestKind::segment, mib).status == ok);
  f.session.go_away(true);
  for (int i = 0; i < 3; ++i)
    CHECK(client->ask(RequestKind::segment, mib).status == static_cast<uint16_t>(ReplyStatus::unavailable));
  CHECK(f.warnings.find("no lease for") == f.warnings.rfind("no lease for"));  // said once in an outage
  CHECK(f.warnings.find("no lease for") != std::string::npos);
  CHECK(f.broker->stats().leased_bytes == 64 * mib);
  f.session.go_away(false);
  CHECK(client->ask(RequestKind::segment, mib).status == ok);
  f.session.go_away(true);
  client.reset();
  for (int i = 0; i < 5; ++i) f.broker->scan();
  CHECK(f.broker->stats().leases_released == 0);
  CHECK(eventually([&] { return !f.broker->in_use(); }));  // nobody has to wait for the manager
  f.session.go_away(false);
  CHECK(eventually([&] { return f.broker->stats().leases_released == 2; }));
}

TEST_CASE("Broker: a notice names program and lease, one for a lease given back says nothing") {
  Fixture f(gib, gib);
  Client client(f.broker->socket_path());
  CHECK(client.ask(RequestKind::segment, mib).status == ok);
  f.session.notify({.lease = LeaseId{99}, .state = LeaseState::lost, .grace_ns = 0, .reason = ""});
  CHECK(f.warnings.empty());
  f.session.notify(
      {.lease = LeaseId{1}, .state = LeaseState::revoking, .grace_ns = 5 * ns_per_s, .reason = "drain"});
  CHECK(f.warnings.find("lease 1 (run:test)") != std::string::npos);
  CHECK(f.warnings.find("[" + std::to_string(::getpid()) + "]") != std::string::npos);
  CHECK(f.warnings.find("5 s") != std::string::npos);
  CHECK(f.warnings.find("drain") != std::string::npos);
}

TEST_CASE("Broker: many clients at once get different slots and leases") {
  Fixture f(4 * gib, 4 * gib);
  std::mutex mutex;
  std::set<uint64_t> keys;
  std::vector<std::thread> threads;
  for (int i = 0; i < 24; ++i)
    threads.emplace_back([&] {
      Client client(f.broker->socket_path());
      Reply reply = client.ask(RequestKind::segment, 100 * mib);
      std::lock_guard lock(mutex);
      if (reply.status == ok) keys.insert(reply.segment_key);
      CHECK(f.broker->stats().leased_bytes <= 4 * gib);
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(keys.size() >= 4);
  CHECK(f.broker->stats().leased_bytes_peak <= 4 * gib);
  CHECK(eventually([&] { return f.session.free_bytes() == 4 * gib; }));
}

}  // namespace
}  // namespace terrace::supply
