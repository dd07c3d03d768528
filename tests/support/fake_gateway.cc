// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_gateway.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "tests/support/fake_gateway_server.h"

#if defined(__SANITIZE_THREAD__)
// kj fills a table of address ranges as a function-local static. The guard's fast path is inside libkj, which
// is not instrumented, so that the second thread's read looks unordered. Nothing else of kj needs hiding.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:^kj::_::CidrRange::CidrRange\n";
}
#endif

namespace terrace::test {

FakeGateway::FakeGateway() : state_(std::make_shared<State>()) {
  std::string pattern = (std::filesystem::temp_directory_path() / "terrace-fake-XXXXXX").string();
  TERRACE_CHECK(::mkdtemp(pattern.data()) != nullptr, "no temporary directory");
  directory_ = pattern;
  socket_path_ = directory_ + "/terraced.sock";
}

FakeGateway::~FakeGateway() {
  stop();
  std::filesystem::remove_all(directory_);
}

void FakeGateway::start() {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, socket_path_.data(), socket_path_.size());
  ::unlink(socket_path_.c_str());
  UniqueFd listening(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  TERRACE_CHECK(::bind(listening.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0, "bind");
  TERRACE_CHECK(::listen(listening.get(), 128) == 0, "listen");
  server_ = std::make_unique<Server>(state_, std::move(listening));
}

void FakeGateway::stop() {
  server_.reset();
  ::unlink(socket_path_.c_str());
}

void FakeGateway::drop_connections() {
  server_->post([server = server_.get()] { server->drop_all(); });
}

void FakeGateway::fail_next(const std::string& method, Fault fault, int times) {
  const std::lock_guard lock(state_->mutex);
  for (int i = 0; i < times; ++i) state_->next_faults[method].push_back(fault);
}

bool FakeGateway::faults_pending() const {
  const std::lock_guard lock(state_->mutex);
  for (const auto& [method, queue] : state_->next_faults)
    if (!queue.empty()) return true;
  return false;
}

void FakeGateway::fail_always(const std::string& method, Fault fault) {
  const std::lock_guard lock(state_->mutex);
  state_->faults[method] = fault;
}

void FakeGateway::refuse_with(ErrorCode code, const std::string& detail) {
  const std::lock_guard lock(state_->mutex);
  state_->refuse_code = code;
  state_->refuse_detail = detail;
}

void FakeGateway::clear_faults() {
  const std::lock_guard lock(state_->mutex);
  state_->next_faults.clear();
  state_->faults.clear();
}

void FakeGateway::set_version(uint32_t version) {
  const std::lock_guard lock(state_->mutex);
  state_->version = version;
}

void FakeGateway::add_bare_leases(uint64_t count) {
  const std::lock_guard lock(state_->mutex);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t id = state_->next_id++;
    state_->leases[id].lease.id = id;
  }
}

int FakeGateway::calls(const std::string& method) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->calls.find(method);
  return found == state_->calls.end() ? 0 : found->second;
}

std::vector<FakeRun> FakeGateway::runs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->runs;
}

int FakeGateway::connections() const {
  const std::lock_guard lock(state_->mutex);
  return state_->connections;
}

std::string FakeGateway::last_client() const {
  const std::lock_guard lock(state_->mutex);
  return state_->last_client;
}

std::vector<FakeLease> FakeGateway::leases() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<FakeLease> leases;
  for (const auto& [id, stored] : state_->leases) leases.push_back(stored.lease);
  return leases;
}

FakeLease FakeGateway::lease(uint64_t id) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->leases.find(id);
  return found == state_->leases.end() ? FakeLease{} : found->second.lease;
}

void FakeGateway::revoke(uint64_t id, uint64_t grace_ns, const std::string& reason) {
  {
    const std::lock_guard lock(state_->mutex);
    const auto found = state_->leases.find(id);
    if (found == state_->leases.end()) return;
    found->second.lease.phase = "revoking";
    found->second.lease.reason = reason;
  }
  if (server_ == nullptr) return;
  server_->post([server = server_.get(), id, grace_ns, reason] {
    server->tell([&](rpc::LeaseListener::Client& listener) {
      auto call = listener.revokingRequest();
      call.setLease(id);
      call.setGraceNs(grace_ns);
      call.setReason(reason);
      server->add(call.send().ignoreResult());
    });
  });
}

void FakeGateway::fence(uint64_t id, const std::string& reason, LeaseCause cause) {
  lose_silently(id);
  tell_fenced(id, reason, cause);
}

void FakeGateway::tell_fenced(uint64_t id, const std::string& reason, LeaseCause cause) {
  if (server_ == nullptr) return;
  // The schema numbers the causes as the client does.
  server_->post([server = server_.get(), id, reason, cause] {
    server->tell([&](rpc::LeaseListener::Client& listener) {
      auto call = listener.fencedRequest();
      call.setLease(id);
      call.setReason(reason);
      call.setCause(static_cast<rpc::LeaseCause>(cause));
      server->add(call.send().ignoreResult());
    });
  });
}

void FakeGateway::request_move(uint64_t id, const std::string& reason) {
  server_->post([server = server_.get(), id, reason] {
    server->tell([&](rpc::LeaseListener::Client& listener) {
      auto call = listener.moveRequestedRequest();
      call.setLease(id);
      call.setReason(reason);
      server->add(call.send().ignoreResult());
    });
  });
}

void FakeGateway::set_full(bool full) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->full = full;
  }
  if (!full && server_ != nullptr) server_->post([server = server_.get()] { server->make_room(); });
}

std::vector<uint64_t> FakeGateway::waits_ns() const {
  const std::lock_guard lock(state_->mutex);
  return state_->waits_ns;
}

void FakeGateway::use_new_file_on_resize() {
  const std::lock_guard lock(state_->mutex);
  state_->new_file_on_resize = true;
}

void FakeGateway::resize_as_operator(uint64_t id, uint64_t bytes) {
  const std::lock_guard lock(state_->mutex);
  StoredLease& stored = state_->leases.at(id);
  stored.lease.bytes = bytes;
  TERRACE_CHECK(::ftruncate(stored.file.get(), static_cast<off_t>(bytes)) == 0, "resize");
}

void FakeGateway::set_holders(uint64_t id, uint32_t holders) {
  const std::lock_guard lock(state_->mutex);
  state_->leases.at(id).lease.holders = holders;
}

void FakeGateway::lose_silently(uint64_t id) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->leases.find(id);
  if (found == state_->leases.end()) return;
  fence_memory(found->second.file);
  state_->leases.erase(found);
}

void FakeGateway::change_epoch(uint64_t id) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->leases.find(id);
  if (found != state_->leases.end()) found->second.lease.epoch = state_->next_epoch++;
}

}  // namespace terrace::test
