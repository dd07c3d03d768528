// SPDX-License-Identifier: Apache-2.0
// Life of the broker, and its conversation with programs. Watching processes is in watch_processes.cc.
#include "allocator/supply/broker.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <system_error>

#include "allocator/supply/huge_file.h"
#include "core/base/kernel_clock.h"
#include "core/base/limits.h"

namespace terrace::supply {
namespace {

constexpr uint64_t segment_bytes_min = 64 * mib;
constexpr uint64_t segment_bytes_max = 4 * gib;
constexpr size_t connections_max = 256;  // further programs wait in the listen queue
constexpr int label_tries = 8;
constexpr const char* still_away = "Broker: still away";

// Sends the reply with at most one descriptor.
bool send_reply(int socket, const Reply& reply, int fd) {
  iovec part{.iov_base = const_cast<Reply*>(&reply), .iov_len = sizeof(reply)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == sizeof(reply);
}

// A supervisor that was killed leaves its directory. Nobody listens there any more; one that is just being made
// is younger than a minute.
void sweep_dead(const std::string& base) {
  DIR* folder = ::opendir(base.c_str());
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder)) {
    if (std::strncmp(entry->d_name, "terrace-run-", 12) != 0) continue;
    std::string directory = base + "/" + entry->d_name;
    std::string path = directory + "/supply";
    struct stat status {};
    sockaddr_un address{};
    if (::lstat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() ||
        ::time(nullptr) - status.st_mtime < 60 || path.size() >= sizeof(address.sun_path))
      continue;
    UniqueFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
    if (!probe.valid() || ::connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ||
        errno != ECONNREFUSED)
      continue;
    ::unlink(path.c_str());
    ::rmdir(directory.c_str());
  }
  ::closedir(folder);
}

// A private place for the socket: $XDG_RUNTIME_DIR or /tmp.
Result<std::string> make_private_directory() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  for (const char* base : {runtime, "/tmp"}) {
    if (base == nullptr || *base == 0) continue;
    std::string name = std::string(base) + "/terrace-run-XXXXXX";
    if (name.size() + 16 >= sizeof(sockaddr_un::sun_path)) continue;
    sweep_dead(base);
    if (::mkdtemp(name.data()) != nullptr) return name;  // 0700
  }
  return os_error(errno, "Broker::listen", "cannot make a directory for the supervisor's socket");
}

}  // namespace

Result<std::unique_ptr<Broker>> Broker::start(Session& session, BrokerOptions options) {
  std::unique_ptr<Broker> broker(new Broker(session, std::move(options)));
  TERRACE_ASSIGN_OR_RETURN(broker->control_, ControlPage::create({.ddr_bytes = broker->options_.ddr_bytes,
                                                                  .cxl_bytes = broker->options_.cxl_bytes,
                                                                  .fallback = broker->options_.fallback,
                                                                  .migration = &broker->options_.migration}));
  TERRACE_RETURN_IF_ERROR(broker->listen());
  Broker* self = broker.get();
  broker->control_->on_end([self](const Slot& slot, const ProcessStatistics& page)
                               TERRACE_REQUIRES(self->mutex_) { self->note_end(slot, page); });
  broker->control_->ask_for_statistics();
  session.on_notice([self](const LeaseNotice& notice) { self->on_notice(notice); });
  try {
    broker->accept_thread_ = std::thread([self] { self->accept_loop(); });
    broker->watch_thread_ = std::thread([self] { self->watch_loop(); });
  } catch (const std::system_error& failed) {
    return os_error(failed.code().value(), "Broker::start", "cannot start a thread (ulimit -u?)");
  }
  return broker;
}

// A lease that is taken back is left by whoever can move: its bytes go to DDR or other leases of the process.
void Broker::on_notice(const LeaseNotice& notice) {
  const bool revoked = notice.state == LeaseState::revoking;
  const uint64_t spare = revoked && options_.spare_bytes ? options_.spare_bytes() : 0;
  std::string who;
  bool leaves = false;
  {
    MutexLock lock(mutex_);
    for (Segment& segment : segments_) {
      if (segment.lease->id() != notice.lease) continue;
      who = segment.owner_name + "[" + std::to_string(segment.owner) + "]: lease " +
            std::to_string(notice.lease.value) + (segment.label.empty() ? "" : " (" + segment.label + ")");
      segment.taken_back = revoked;
      segment.spare_bytes = spare;
      if (revoked) segment.leaving = leaves = control_->ask_to_leave(segment.owner, segment.index, spare);
    }
  }
  if (who.empty()) return;  // given back already
  const std::string why = notice.reason.empty() ? "" : ": " + notice.reason;
  if (leaves)
    warn(who + " is being taken back in " + format_duration(notice.grace_ns) + why +
         "; what lies in it moves to DDR, also beyond the budget, and to other leases now");
  else if (revoked)
    warn(
        who + " is being taken back in " + format_duration(notice.grace_ns) + why +
        "; memory of this process does not move now ('terrace top --processes' says why): if it still uses the "
        "lease then it gets SIGBUS");
  else if (notice.state == LeaseState::lost)
    warn(who + " is lost" + why + "; the program gets SIGBUS where it touches that memory");
}

Status Broker::listen() {
  TERRACE_ASSIGN_OR_RETURN(directory_, make_private_directory());
  socket_path_ = directory_ + "/supply";
  listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  stop_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_path_.c_str(), sizeof(address.sun_path) - 1);
  if (!listener_.valid() || !wake_.valid() || !stop_.valid() ||
      ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      ::listen(listener_.get(), SOMAXCONN) != 0)
    return os_error(errno, "Broker::listen", "cannot listen at " + socket_path_);
  return {};
}

Broker::~Broker() {
  stopping_ = true;
  session_.on_notice({});
  uint64_t one = 1;
  if (stop_.valid() && ::write(stop_.get(), &one, sizeof(one)) != sizeof(one))
    warn("cannot stop the broker's threads");
  if (accept_thread_.joinable()) accept_thread_.join();
  if (watch_thread_.joinable()) watch_thread_.join();
  for (Connection& connection : connections_) {
    ::shutdown(connection.socket.get(), SHUT_RDWR);
    connection.thread.join();
  }
  if (control_ != nullptr)
    for (int round = 0; round < 2; ++round) scan();
  if (!segments_.empty())
    warn(std::to_string(segments_.size()) + " lease(s) could not be given back now; they end with their TTL");
  if (!socket_path_.empty()) ::unlink(socket_path_.c_str());
  if (!directory_.empty()) ::rmdir(directory_.c_str());
}

void Broker::warn(const std::string& text) {
  if (options_.warn) options_.warn(text);
}

void Broker::wake_watcher() {
  uint64_t one = 1;
  // Full already: it is about to wake.
  if (::write(wake_.get(), &one, sizeof(one)) != sizeof(one)) return;
}

void Broker::accept_loop() {
  pollfd waits[2] = {{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                     {.fd = stop_.get(), .events = POLLIN, .revents = 0}};
  while (!stopping_) {
    if (::poll(waits, 2, -1) < 0 && errno != EINTR)
      return warn("the broker's socket failed; no more memory is handed out");
    if (waits[1].revents != 0) return;
    {
      MutexLock lock(mutex_);
      for (auto at = connections_.begin(); at != connections_.end();) {
        if (!at->done) {
          ++at;
          continue;
        }
        at->thread.join();
        at = connections_.erase(at);
      }
      if (connections_.size() < connections_max) {
        UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (socket.valid()) {
          Connection& connection = connections_.emplace_back();
          connection.id = next_connection_++;
          connection.socket = std::move(socket);
          try {
            connection.thread = std::thread([this, &connection] { serve(connection); });
            continue;
          } catch (const std::system_error& failed) {
            connections_.pop_back();  // closes it: that program goes on with plain malloc
            warn(std::string("a program cannot be served, no thread can be started (ulimit -u?): ") +
                 failed.what());
          }
        }
      }
    }
    // Out of descriptors, or connections: those that are open end soon.
    if (waits[0].revents != 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void Broker::serve(Connection& connection) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  bool same_user = ::getsockopt(connection.socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 &&
                   peer.uid == ::geteuid();
  while (same_user) {
    Request request{};
    ssize_t got = ::recv(connection.socket.get(), &request, sizeof(request), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof(request) || request.magic != magic || request.version != version) break;
    Reply reply{.magic = magic,
                .version = version,
                .status = 0,
                .slot = no_slot,
                .reserved = 0,
                .bytes = 0,
                .segment_key = 0};
    int fd = -1;
    UniqueFd token;  // closed once it was sent: the lock on it is the program's mapping's alone
    if (request.kind == static_cast<uint16_t>(RequestKind::token)) {
      token = make_token(peer.pid, &reply);
      fd = token.get();
    } else {
      answer(connection, request, peer.pid, &reply, &fd);
    }
    if (!send_reply(connection.socket.get(), reply, fd)) break;
  }
  {
    MutexLock lock(mutex_);
    for (Segment& segment : segments_)
      if (segment.connection == connection.id) segment.connection = 0;
    greeting_.erase(peer.pid);
  }
  // The other side sees the end now, not when the next connection comes and this one is cleared away.
  ::shutdown(connection.socket.get(), SHUT_RDWR);
  connection.done = true;
}

void Broker::answer(Connection& connection, const Request& request, pid_t peer, Reply* reply, int* fd) {
  auto status = ReplyStatus::refused;
  switch (static_cast<RequestKind>(request.kind)) {
    case RequestKind::hello: {
      MutexLock lock(mutex_);
      reply->slot = control_->claim(peer);
      if (reply->slot == no_slot) break;
      slot_misses_.erase(reply->slot);
      greeting_.insert(peer);
      *fd = control_->fd();
      status = ReplyStatus::ok;
      // Another image of the same process: what it had is nobody's now.
      for (Segment& segment : segments_)
        if (segment.owner == peer) segment.index = segments_max;
      fronts_.remove_if([&](const Front& front) { return front.owner == peer; });
      tokens_.remove_if([&](const Token& token) { return token.owner == peer; });
      break;
    }
    case RequestKind::front: return make_front(request, peer, reply, fd);
    case RequestKind::userfault_device:
      *fd = options_.migration.userfault_device;
      if (*fd >= 0) status = ReplyStatus::ok;
      break;
    case RequestKind::segment: return grant(connection, request, peer, reply, fd);
    case RequestKind::token: break;  // serve() has it
    case RequestKind::reopen: {
      MutexLock lock(mutex_);
      for (const Segment& segment : segments_) {
        if (segment.key != request.segment_key || segment.owner != peer) continue;
        *fd = segment.lease->fd();
        status = *fd >= 0 ? ReplyStatus::ok : ReplyStatus::unavailable;
      }
      for (const Front& front : fronts_) {
        if (front.key != request.segment_key || front.owner != peer) continue;
        *fd = front.fd.get();
        status = ReplyStatus::ok;
      }
      for (const Token& token : tokens_) {
        if (token.key != request.segment_key || token.owner != peer) continue;
        *fd = token.fd.get();
        status = ReplyStatus::ok;
      }
      break;
    }
  }
  reply->status = static_cast<uint16_t>(status);
  if (status == ReplyStatus::ok && request.kind == static_cast<uint16_t>(RequestKind::hello)) wake_watcher();
}

void Broker::grant(Connection& connection, const Request& request, pid_t peer, Reply* reply, int* fd) {
  reply->status = static_cast<uint16_t>(ReplyStatus::refused);
  if (request.bytes == 0 || request.bytes > options_.cxl_bytes || request.segment_index >= segments_max) return;
  std::string label;
  auto granted =
      grant_lease(peer, round_up(request.bytes, limits::granule_bytes), request.at_once != 0, &label);
  if (!granted.ok()) {
    // A quota that is used up is as a pool that is full: other leases of the tenant may end.
    bool full = granted.error().code == ErrorCode::capacity_exhausted ||
                granted.error().code == ErrorCode::limit_exceeded;
    reply->status = static_cast<uint16_t>(full ? ReplyStatus::exhausted : ReplyStatus::unavailable);
    // Once in an outage, not for each request.
    if (!full && granted.error().where != still_away)
      warn("no lease for " + process_name(peer) + ": " + granted.error().to_string());
    return;
  }
  std::shared_ptr<Lease> lease = *granted;
  struct stat status {};
  bool usable = lease->fd() >= 0 && ::fstat(lease->fd(), &status) == 0;
  ReleasableMutexLock lock(mutex_);
  if (!usable) {
    leased_bytes_ -= lease->bytes();
    lock.unlock();  // a notice handler may want it while the session works
    reply->status = static_cast<uint16_t>(ReplyStatus::unavailable);
    if (!lease->release().ok()) warn("an unusable lease could not be given back; it ends with its TTL");
    return;
  }
  Segment segment{.key = next_key_++,
                  .lease = lease,
                  .label = label,
                  .device = status.st_dev,
                  .inode = status.st_ino,
                  .owner = peer,
                  .owner_name = process_name(peer),
                  .index = request.segment_index,
                  .connection = connection.id,
                  .scans_unmapped = 0,
                  .taken_back = false,
                  .spare_bytes = 0,
                  .leaving = false};
  control_->stay(peer, request.segment_index);
  reply->status = static_cast<uint16_t>(ReplyStatus::ok);
  reply->bytes = lease->bytes();
  reply->segment_key = segment.key;
  *fd = lease->fd();
  segments_.push_back(std::move(segment));
  ++stats_.leases_granted;
  stats_.leased_bytes_peak = std::max(stats_.leased_bytes_peak, leased_bytes_);
}

// A sparse file as long as the process's window. In huge pages where this process may mount (so that a granule
// is one translation), else as the kernel gives them to memfds.
void Broker::make_front(const Request& request, pid_t peer, Reply* reply, int* fd) {
  reply->status = static_cast<uint16_t>(ReplyStatus::refused);
  // At most what a window can be: both budgets, rounded up.
  const uint64_t bytes_max =
      round_up(options_.ddr_bytes, limits::granule_bytes) + round_up(options_.cxl_bytes, limits::granule_bytes);
  rlimit file_size{};
  if (options_.migration.policy.empty() || request.bytes == 0 || request.bytes > bytes_max ||
      request.bytes % limits::granule_bytes != 0 || ::getrlimit(RLIMIT_FSIZE, &file_size) != 0 ||
      (file_size.rlim_cur != RLIM_INFINITY && request.bytes > file_size.rlim_cur))
    return;
  Front front{.key = 0, .owner = peer, .fd = make_huge_file(request.bytes)};
  if (!front.fd.valid()) {
    front.fd.reset(::memfd_create("terrace-front", MFD_CLOEXEC));
    if (!front.fd.valid() || ::ftruncate(front.fd.get(), static_cast<off_t>(request.bytes)) != 0) return;
  }
  MutexLock lock(mutex_);
  fronts_.remove_if([&](const Front& old) { return old.owner == peer; });
  front.key = next_key_++;
  reply->status = static_cast<uint16_t>(ReplyStatus::ok);
  reply->bytes = request.bytes;
  reply->segment_key = front.key;
  *fd = front.fd.get();
  fronts_.push_back(std::move(front));
}

// One a process.
UniqueFd Broker::make_token(pid_t peer, Reply* reply) {
  reply->status = static_cast<uint16_t>(ReplyStatus::refused);
  if (options_.migration.policy.empty()) return {};
  Token token{.key = 0, .owner = peer, .fd = UniqueFd(::memfd_create("terrace-fork", MFD_CLOEXEC))};
  if (!token.fd.valid() || ::ftruncate(token.fd.get(), 4096) != 0) return {};
  const std::string path = "/proc/self/fd/" + std::to_string(token.fd.get());
  UniqueFd holder(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!holder.valid() || ::flock(holder.get(), LOCK_EX | LOCK_NB) != 0) return {};
  MutexLock lock(mutex_);
  tokens_.remove_if([&](const Token& old) { return old.owner == peer; });
  token.key = next_key_++;
  reply->status = static_cast<uint16_t>(ReplyStatus::ok);
  reply->segment_key = token.key;
  tokens_.push_back(std::move(token));
  return holder;
}

// The session waits for a manager that is away. Once in an outage that is worth its time: most restarts are
// short. After that, programs that need more memory are told at once.
bool Broker::manager_stays_away() {
  bool connected = session_.connected();
  MutexLock lock(mutex_);
  if (connected) outage_waited_ = false;
  return outage_waited_;
}

std::string Broker::next_label() {
  MutexLock lock(mutex_);
  uint64_t serial = ++label_serial_;
  if (options_.label.empty()) return {};
  return serial == 1 ? options_.label : options_.label + "#" + std::to_string(serial);
}

// 64 MiB for a process's first lease, twice that for its second, ... up to a quarter of the budget: a program
// of one process shall not hold many small leases. Where several run, the first is a 64th of the budget, if
// that is less: twenty processes of 2 MB each had used up 256 MiB.
uint64_t Broker::preferred_bytes(pid_t peer) {
  MutexLock lock(mutex_);
  uint64_t budget = options_.cxl_bytes;
  bool several = control_->processes() > 1;
  uint64_t least = several ? std::clamp(budget / 64, limits::granule_bytes, segment_bytes_min)
                           : std::max(segment_bytes_min, budget / 32);
  // With a budget in the terabytes: a process can map segments_max of them.
  uint64_t largest = std::max(std::clamp(budget / 4, segment_bytes_min, segment_bytes_max), budget / 32);
  uint64_t bytes = least;
  for (const Segment& segment : segments_)
    if (segment.owner == peer && segment.index < segments_max && bytes < largest) bytes *= 2;
  return round_up(std::min(bytes, largest), limits::granule_bytes);
}

bool Broker::is_connection_ending() {
  MutexLock lock(mutex_);
  return std::any_of(connections_.begin(), connections_.end(), [](const Connection& connection) {
    pollfd end{.fd = connection.socket.get(), .events = POLLRDHUP, .revents = 0};
    return !connection.done && ::poll(&end, 1, 0) > 0 && (end.revents & (POLLRDHUP | POLLHUP)) != 0;
  });
}

// Asks for what is preferred, or less where less is left, but for `needed` at least. On success the lease's
// bytes are in leased_bytes_.
Result<std::shared_ptr<Lease>> Broker::grant_lease(pid_t peer, uint64_t needed, bool at_once,
                                                   std::string* label) {
  uint64_t budget = options_.cxl_bytes;
  uint64_t preferred = std::max(needed, preferred_bytes(peer));
  uint64_t patience_end_ns = at_once ? 0 : boot_ns() + options_.grant_patience_ns;
  int label_tries_left = label_tries;
  for (;;) {
    uint64_t size = 0;
    {
      MutexLock lock(mutex_);
      // What is being taken back is on its way out, and its bytes may need another lease.
      uint64_t held = leased_bytes_;
      for (const Segment& segment : segments_)
        if (segment.leaving) held -= std::min(held, segment.lease->bytes());
      uint64_t left = budget - std::min(budget, held);
      // Where others may want some too, the last lease of the budget is not handed out whole.
      uint64_t share = control_->processes() > 1 ? left / 2 : left;
      size = std::max(needed, std::min(preferred, share) & ~(limits::granule_bytes - 1));
      if (size <= left)
        leased_bytes_ += size;
      else
        size = 0;
    }
    bool own_budget_full = size == 0;
    if (!own_budget_full && manager_stays_away()) {
      MutexLock lock(mutex_);
      leased_bytes_ -= size;
      return Error{.code = ErrorCode::unavailable, .where = still_away, .detail = "the pool manager is away"};
    }
    if (!own_budget_full) {
      *label = next_label();
      LeaseRequest request{.pool = options_.pool,
                           .bytes = size,
                           .mode = LeaseMode::exclusive,
                           .ttl_ns = options_.ttl_ns,
                           .persistent = false,
                           .label = *label};
      auto granted = session_.grant(request);
      MutexLock lock(mutex_);
      leased_bytes_ -= size;
      if (granted.ok()) {
        leased_bytes_ += (*granted)->bytes();
        return granted;
      }
      if (granted.error().code == ErrorCode::unavailable) outage_waited_ = true;
      if (granted.error().code == ErrorCode::already_exists && label_tries_left-- > 0) continue;
      const bool over_quota = granted.error().code == ErrorCode::limit_exceeded;
      if (granted.error().code != ErrorCode::capacity_exhausted && !over_quota) return granted;
      if (size > needed) {
        preferred = std::max(needed, round_up(size / 2, limits::granule_bytes));
        continue;
      }
    }
    // Full. What ended processes held comes back when they are looked at and the manager has scrubbed it. A
    // connection whose end its thread has yet to see is asked for before the look, which may come too early.
    bool coming_back = is_connection_ending();
    scan();
    {
      MutexLock lock(mutex_);
      for (const Segment& segment : segments_) coming_back = coming_back || segment.scans_unmapped > 0;
      coming_back = coming_back || (released_ns_ != 0 && boot_ns() - released_ns_ < options_.grant_patience_ns);
    }
    if (!coming_back || stopping_ || boot_ns() > patience_end_ns)
      return Error{.code = ErrorCode::capacity_exhausted,
                   .where = "Broker::grant_lease",
                   .detail = own_budget_full ? "the run's CXL budget is used up" : "the pool is full"};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace terrace::supply
