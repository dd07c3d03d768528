// SPDX-License-Identifier: Apache-2.0
#include "bench/lease/client.h"

#include <kj/debug.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "bench/lease/manager.h"

namespace terrace::bench {
namespace {

kj::Own<kj::AsyncCapabilityStream> connect(Loop& loop, const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) die("the path of socket " + path + " is too long");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) KJ_FAIL_SYSCALL("socket", errno);
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int code = errno;
    ::close(fd);
    KJ_FAIL_SYSCALL("connect", code, path.c_str());
  }
  return loop.io.lowLevelProvider->wrapUnixSocketFd(fd, kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP |
                                                            kj::LowLevelAsyncIoProvider::ALREADY_CLOEXEC |
                                                            kj::LowLevelAsyncIoProvider::ALREADY_NONBLOCK);
}

void require(rpc::Error::Reader error, const char* what) {
  if (error.getCode() != 0) die(std::string(what) + ": " + error.getDetail().cStr());
}

class SilentListener final : public rpc::LeaseListener::Server {
  kj::Promise<void> revoking(RevokingContext) override { return kj::READY_NOW; }
  kj::Promise<void> fenced(FencedContext) override { return kj::READY_NOW; }
};

void use_memory(int fd, uint64_t bytes, bool touch) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) die(std::string("a lease cannot be mapped: ") + std::strerror(errno));
  if (touch) *static_cast<volatile char*>(memory) = 1;
  ::munmap(memory, bytes);
}

}  // namespace

Client::Client(Loop& loop, const std::string& socket)
    : loop_(loop),
      stream_(connect(loop, socket)),
      rpc_(*stream_, 4),
      gateway_(rpc_.bootstrap().castAs<rpc::Gateway>()) {
  static uint64_t serial = 0;
  key_high_ = (static_cast<uint64_t>(::getpid()) << 32) + ++serial;
  auto request = gateway_.helloRequest();
  request.setOldest(1);
  request.setNewest(1);
  request.setClient("bench");
  request.send().wait(loop_.io.waitScope);
}

void Client::compose_pool(const std::string& serial, const std::string& pool) {
  auto& scope = loop_.io.waitScope;
  auto opened = gateway_.openAdminRequest().send().wait(scope);
  require(opened.getError(), "openAdmin");
  auto admin = opened.getAdmin();
  auto adopt = admin.adoptRequest();
  adopt.setSerial(serial);
  require(adopt.send().wait(scope).getError(), "adopt");
  auto create = admin.createPoolRequest();
  create.setName(pool);
  create.initDevices(1).set(0, serial);
  require(create.send().wait(scope).getError(), "createPool");
}

void Client::open_session() {
  auto request = gateway_.openSessionRequest();
  request.setHost("here");
  request.setListener(kj::heap<SilentListener>());
  auto opened = request.send().wait(loop_.io.waitScope);
  require(opened.getError(), "openSession");
  session_ = opened.getSession();
}

kj::Promise<void> Client::echo() {
  auto request = gateway_.helloRequest();
  request.setOldest(1);
  request.setNewest(1);
  return request.send().ignoreResult();
}

kj::Promise<Client::Granted> Client::grant(uint64_t ttl_ns, bool map, bool touch, uint64_t bytes) {
  auto call = session_.grantRequest();
  auto request = call.initRequest();
  request.setPool("p");
  request.setBytes(bytes);
  request.setTtlNs(ttl_ns);
  request.setRequestHigh(key_high_);
  request.setRequestLow(next_key_++);
  return call.send().then([map, touch, bytes](auto response) -> kj::Promise<Granted> {
    require(response.getError(), "grant");
    auto lease = response.getLease();
    const uint64_t id = response.getInfo().getId();
    auto fd = lease.getFd();
    return fd.then([map, touch, bytes, id, lease = kj::mv(lease)](kj::Maybe<int> descriptor) mutable {
      KJ_IF_MAYBE (number, descriptor) {
        if (map) use_memory(*number, bytes, touch);
      } else {
        die("a lease came without its descriptor");
      }
      return Granted{id, kj::mv(lease)};
    });
  });
}

kj::Promise<void> Client::release(Granted granted) {
  return granted.lease.releaseRequest().send().then(
      [](auto response) { require(response.getError(), "release"); });
}

kj::Promise<void> Client::renew(const std::vector<uint64_t>& leases) {
  auto request = session_.renewManyRequest();
  auto list = request.initLeases(static_cast<uint32_t>(leases.size()));
  for (uint32_t i = 0; i < leases.size(); ++i) list.set(i, leases[i]);
  return request.send().then([](auto response) {
    require(response.getError(), "renewMany");
    if (response.getFailed().size() != 0) die("a lease could not be renewed");
  });
}

uint64_t Client::free_bytes() {
  auto response = session_.poolsRequest().send().wait(loop_.io.waitScope);
  require(response.getError(), "pools");
  return response.getPools()[0].getFreeBytes();
}

}  // namespace terrace::bench
