// SPDX-License-Identifier: Apache-2.0
#include "cli/vm/vm_keeper.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "cli/hold/held_lease.h"
#include "cli/terminal/manager_place.h"
#include "cli/vm/vm_socket.h"
#include "core/base/clock.h"
#include "core/base/units.h"

namespace terrace::cli {
namespace {

constexpr size_t request_bytes_max = 4096;
constexpr size_t clients_max = 32;
constexpr uint64_t request_ns = 10 * ns_per_s;  // for a client to say what it wants
constexpr int quiet_wait_ms = 1000;
constexpr const char* what_helps =
    " Memory that is put online as movable (memhp_default_state=online_movable) can be given up; a longer "
    "--timeout "
    "gives the guest more time; 'terrace vm detach' and 'resize' take what it keeps with --force, and the "
    "machine "
    "gets SIGBUS where it uses that";

uint64_t vm_now_ns() {
  return SystemClock().now_ns();
}

std::string guest_has(const GuestMemory& memory) {
  return "the guest has " + format_size(memory.plugged_bytes()) + " of the " +
         format_size(memory.wanted_bytes()) + " that it should";
}

}  // namespace

Result<std::unique_ptr<VmKeeper>> VmKeeper::make(const Context& context, KeeperOptions options) {
  TERRACE_RETURN_IF_ERROR(on_this_machine(context, options.where));
  TERRACE_ASSIGN_OR_RETURN(const std::string folder, vm_folder(options.where));
  TERRACE_ASSIGN_OR_RETURN(UniqueFd lock, lock_vm(folder, options.guest.label, options.where));
  SessionOptions wanted;
  wanted.socket_path = context.socket_path;
  wanted.client_name = options.where;
  wanted.call_timeout_ns = context.call_timeout_ns;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::connect(wanted));
  std::string path = vm_socket_path(folder, options.guest.label);
  TERRACE_ASSIGN_OR_RETURN(UniqueFd listening, listen_at(path, options.where));
  UniqueFd woken(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!woken.valid()) return os_error(errno, options.where, "cannot wait");
  return std::unique_ptr<VmKeeper>(new VmKeeper(std::move(session), std::move(options), std::move(path),
                                                std::move(lock), std::move(listening), std::move(woken)));
}

VmKeeper::VmKeeper(std::unique_ptr<Session> session, KeeperOptions options, std::string socket_path,
                   UniqueFd lock, UniqueFd listening, UniqueFd woken)
    : session_(std::move(session)),
      options_(std::move(options)),
      socket_path_(std::move(socket_path)),
      lock_(std::move(lock)),
      listening_(std::move(listening)),
      woken_(std::move(woken)) {
  session_->on_notice([this](const LeaseNotice& notice) {
    const MutexLock held(mutex_);
    told_.push_back({notice, vm_now_ns()});
    const uint64_t one = 1;
    (void)!::write(woken_.get(), &one, sizeof(one));
  });
}

VmKeeper::~VmKeeper() {
  session_->on_notice({});
  ::unlink(socket_path_.c_str());
}

Status VmKeeper::start(std::unique_ptr<Monitor> monitor) {
  monitor_ = std::move(monitor);
  memory_ = std::make_unique<GuestMemory>(*session_, *monitor_, options_.guest,
                                          [](const std::string& line) { say_of_lease(line); });
  TERRACE_RETURN_IF_ERROR(memory_->adopt());
  if (options_.bytes != 0)
    memory_->want(options_.bytes);
  else if (memory_->empty())
    return Error{.code = ErrorCode::not_found,
                 .where = options_.where,
                 .detail = "the machine has no memory under the label '" + options_.guest.label +
                           "' that could be taken over; --size says how much it shall get"};
  TERRACE_RETURN_IF_ERROR(memory_->step());
  if (memory_->empty() && memory_->refusal().has_value()) return *memory_->refusal();
  return {};
}

void VmKeeper::end_within(uint64_t ns) {
  end_by_ns_ = vm_now_ns() + ns;
  const uint64_t one = 1;
  (void)!::write(woken_.get(), &one, sizeof(one));
}

void VmKeeper::take_notices() {
  std::vector<Told> told;
  {
    const MutexLock lock(mutex_);
    told.swap(told_);
  }
  for (const Told& one : told) {
    const std::string lease = shown_lease(one.notice.lease, "");
    const std::string why = one.notice.reason.empty() ? "" : ": " + one.notice.reason;
    if (one.notice.state == LeaseState::revoking) {
      say_of_lease(lease + " is being taken back in " + format_duration(one.notice.grace_ns) + why +
                   "; other memory is put in its place, or the guest is asked to give it up");
      memory_->take_away(one.notice.lease, one.at_ns + one.notice.grace_ns);
    } else if (one.notice.state == LeaseState::lost) {
      say_of_lease(lease + " is lost" + why + "; the machine gets SIGBUS where it still uses it");
      memory_->lost(one.notice.lease);
    }
  }
}

void VmKeeper::answer(Client& client, const nlohmann::json& document) {
  const std::string line = document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  (void)!::send(client.socket.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  client.socket.reset();
}

void VmKeeper::refuse(Client& client, const Error& error) {
  answer(client, {{"error", {{"code", static_cast<uint16_t>(error.code)}, {"detail", error.detail}}}});
}

void VmKeeper::obey(Client& client, const nlohmann::json& request) {
  const std::string act = request.value("act", std::string());
  if (act == "show") return answer(client, memory_->describe());
  const bool one_waits = detaching_ || std::any_of(clients_.begin(), clients_.end(),
                                                   [](const Client& other) { return other.waits; });
  if (one_waits)
    return refuse(client,
                  Error{ErrorCode::busy, 0, options_.where, "another change of this machine is under way"});
  const uint64_t until_ns = vm_now_ns() + request.value("timeout_ns", 60 * ns_per_s);
  before_bytes_ = memory_->wanted_bytes();
  if (act == "resize") {
    memory_->want(request.value("bytes", before_bytes_));
  } else if (act == "move") {
    const Status replaced = memory_->replace_all();
    if (!replaced.ok()) return refuse(client, replaced.error());
  } else if (act == "detach") {
    detach_within(until_ns);
  } else {
    return refuse(client, Error{ErrorCode::invalid_argument, 0, options_.where, "unknown request"});
  }
  client.waits = true;
  client.until_ns = until_ns;
  client.force = act != "move" && request.value("force", false);
}

void VmKeeper::detach_within(uint64_t until_ns) {
  detaching_ = true;
  detach_until_ns_ = until_ns;
  memory_->want(0);
}

void VmKeeper::serve(Client& client) {
  char bytes[1024];
  const ssize_t count = ::recv(client.socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  const bool nothing_yet = count < 0 && (errno == EAGAIN || errno == EINTR);
  const bool too_late = !client.waits && vm_now_ns() >= client.until_ns;
  if (too_late || (count <= 0 && !nothing_yet) || client.received.size() > request_bytes_max)
    return client.socket.reset();
  if (nothing_yet) return;
  client.received.append(bytes, static_cast<size_t>(count));
  const size_t end = client.received.find('\n');
  if (end == std::string::npos || client.waits) return;
  try {
    obey(client,
         nlohmann::json::parse(client.received.begin(), client.received.begin() + static_cast<ptrdiff_t>(end)));
  } catch (const nlohmann::json::exception&) {
    refuse(client, Error{ErrorCode::invalid_argument, 0, options_.where, "no such request"});
  }
}

bool VmKeeper::settled() const {
  return detaching_ ? memory_->empty() : memory_->settled();
}

void VmKeeper::take_what_is_due() {
  for (Client& client : clients_) {
    if (!client.waits || !client.force || vm_now_ns() < client.until_ns || settled()) continue;
    client.force = false;
    memory_->take_by_force();
  }
}

// Answers those who wait for what has come about, or will not.
void VmKeeper::answer_settled() {
  take_what_is_due();
  const bool settled = this->settled();
  for (Client& client : clients_) {
    if (!client.waits || !client.socket.valid()) continue;
    const std::optional<Error> refused = memory_->refusal();
    if (settled && refused.has_value() && memory_->plugged_bytes() < memory_->wanted_bytes()) {
      memory_->want(before_bytes_);
      refuse(client, *refused);
    } else if (settled) {
      answer(client, memory_->describe());
    } else if (vm_now_ns() >= client.until_ns) {
      refuse(client, Error{ErrorCode::busy, 0, options_.where,
                           guest_has(*memory_) + ", and did not follow in time" + memory_->reluctance() +
                               (detaching_ ? "; it keeps that" : "; it is asked on") + "." + what_helps});
    }
  }
  std::erase_if(clients_, [](const Client& client) { return !client.socket.valid(); });
}

void VmKeeper::look_at_signals(int signals) {
  signalfd_siginfo info;
  while (signals >= 0 && ::read(signals, &info, sizeof(info)) == sizeof(info)) {
    ++signals_seen_;
    if (signals_seen_ == 1 && !detaching_) detach_within(vm_now_ns() + options_.detach_ns);
  }
}

void VmKeeper::accept_clients() {
  while (clients_.size() < clients_max) {
    UniqueFd socket(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) return;
    clients_.push_back(
        {.socket = std::move(socket), .received = {}, .waits = false, .until_ns = vm_now_ns() + request_ns});
  }
}

void VmKeeper::wait(int signals) {
  const int listening = clients_.size() < clients_max ? listening_.get() : -1;
  std::vector<pollfd> waits = {{.fd = listening, .events = POLLIN, .revents = 0},
                               {.fd = woken_.get(), .events = POLLIN, .revents = 0},
                               {.fd = monitor_->descriptor(), .events = POLLIN, .revents = 0},
                               {.fd = signals, .events = POLLIN, .revents = 0}};
  for (const Client& client : clients_)
    waits.push_back({.fd = client.socket.get(), .events = POLLIN, .revents = 0});
  ::poll(waits.data(), waits.size(), memory_->settled() && !detaching_ ? quiet_wait_ms : monitor_->pause_ms());
  uint64_t times = 0;
  (void)!::read(woken_.get(), &times, sizeof(times));
  accept_clients();
  for (size_t index = 0; index < clients_.size(); ++index) serve(clients_[index]);
  std::erase_if(clients_, [](const Client& client) { return !client.socket.valid(); });
}

// Each trouble once, however often it is met.
void VmKeeper::note_trouble(const Error& error) {
  std::string trouble = error.to_string();
  if (trouble != last_trouble_) say_of_lease(trouble);
  last_trouble_ = std::move(trouble);
}

Status VmKeeper::run(int signals) {
  for (;;) {
    wait(signals);
    take_notices();
    look_at_signals(signals);
    if (monitor_->has_ended()) return {};
    if (signals_seen_ > 1)
      return Error{ErrorCode::busy, 0, options_.where,
                   guest_has(*memory_) +
                       ". Nobody renews its leases now: the machine gets SIGBUS when they expire. "
                       "The same command without --size takes over"};
    if (end_by_ns_ != 0 && vm_now_ns() >= end_by_ns_) {
      say_of_lease("the program has ended, its machine runs on: nobody renews its leases any more");
      return {};
    }
    const Status stepped = memory_->step();
    if (!stepped.ok() && (monitor_->has_ended() || memory_->machine_is_another())) return {};
    if (!stepped.ok()) note_trouble(stepped.error());
    answer_settled();
    if (!detaching_) continue;
    if (memory_->empty()) {
      if (options_.ends_when_detached) return {};
      detaching_ = false;
    } else if (vm_now_ns() >= detach_until_ns_) {
      detaching_ = false;
      say_of_lease("the guest keeps " + format_size(memory_->plugged_bytes()) + ", so its leases are held on" +
                   (signals_seen_ != 0 ? "; a further signal ends this command all the same" : ""));
      memory_->keep_what_is_there();
    }
  }
}

}  // namespace terrace::cli
