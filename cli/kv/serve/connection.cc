// SPDX-License-Identifier: Apache-2.0
#include "cli/kv/serve/connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/kernel_clock.h"
#include "core/os/fault_guard.h"

namespace terrace::kv_serve {
namespace {

constexpr size_t receive_bytes_min = 16 << 10;
constexpr size_t receive_bytes_max = 1 << 20;
constexpr size_t discard_bytes = 64 << 10;
constexpr uint64_t framing_bytes = 4 << 20;  // what MGET's 4096 keys have

RespLimits limits_for(uint64_t max_block_bytes) {
  return {.request_bytes_max = max_block_bytes + framing_bytes};
}

// What recv() said: bytes, nothing now, the end, or (EFAULT) that there is no memory to receive into.
enum class Received : uint8_t { some, none, ended, vanished };

Received receive_into(int fd, void* to, size_t bytes, size_t& got) {
  for (;;) {
    const ssize_t count = ::recv(fd, to, bytes, MSG_DONTWAIT);
    if (count > 0) {
      got = static_cast<size_t>(count);
      return Received::some;
    }
    if (count == 0) return Received::ended;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == EWOULDBLOCK) return Received::none;
    return errno == EFAULT ? Received::vanished : Received::ended;
  }
}

}  // namespace

Connection::Connection(UniqueFd socket, uint64_t id, Commands& commands, ServerFigures& figures)
    : socket_(std::move(socket)),
      commands_(commands),
      figures_(figures),
      parser_(limits_for(commands.max_block_bytes())),
      moved_ns_(monotonic_ns()) {
  client_.id = id;
}

bool Connection::wants_input() const {
  if (over_ || input_ended_) return false;
  return lingering_ || (!client_.closing && !has_work_ && replies_.bytes() <= output_bytes_max);
}

void Connection::on_readable() {
  if (over_) return;
  if (lingering_) {
    char lost[discard_bytes];
    size_t got = 0;
    over_ = receive_into(fd(), lost, sizeof(lost), got) == Received::ended;
    return;
  }
  if (!wants_input()) return;
  if (incoming_ && incoming_->received < incoming_->bytes)
    receive_value();
  else
    receive();
  work();
}

void Connection::receive() {
  if (begin_ > 0) {
    input_.erase(0, begin_);
    begin_ = 0;
    if (input_.capacity() > receive_bytes_max && input_.size() < receive_bytes_min) input_.shrink_to_fit();
  }
  // As much again as has come: who announces much and sends little gets little memory.
  const size_t before = input_.size();
  input_.resize(before + std::clamp(before, receive_bytes_min, receive_bytes_max));
  size_t got = 0;
  const Received received = receive_into(fd(), input_.data() + before, input_.size() - before, got);
  input_.resize(before + got);
  input_ended_ = received == Received::ended;
  has_work_ = true;
  if (got > 0) moved_ns_ = monotonic_ns();
}

void Connection::receive_value() {
  const uint64_t rest = incoming_->bytes - incoming_->received;
  char lost[discard_bytes];
  size_t got = 0;
  const Received received = incoming_->write
                                ? receive_into(fd(), incoming_->write->bytes().data() + incoming_->received,
                                               std::min<uint64_t>(rest, receive_bytes_max), got)
                                : receive_into(fd(), lost, std::min<uint64_t>(rest, sizeof(lost)), got);
  if (received == Received::vanished) return value_vanished();
  input_ended_ = received == Received::ended;
  if (input_ended_) over_ = true;  // nobody can be answered: half a value came
  incoming_->received += got;
  has_work_ = true;
  if (got > 0) moved_ns_ = monotonic_ns();
}

void Connection::value_vanished() {
  vanished_ = true;
  incoming_.reset();
  const Status health = commands_.health();
  replies_.failure(health.ok() ? Error{.code = ErrorCode::lease_expired,
                                       .where = "kv serve",
                                       .detail = "the memory of the space is gone"}
                               : health.error());
  client_.closing = true;
}

void Connection::work() {
  const uint64_t until_ns = monotonic_ns() + step_ns;
  while (!over_ && !client_.closing && !vanished_ && has_work_ && replies_.bytes() <= output_bytes_max &&
         monotonic_ns() < until_ns) {
    if (in_steps_) {
      execute();
      if (in_steps_) break;  // others first
      continue;
    }
    if (incoming_ && incoming_->received < incoming_->bytes) {
      has_work_ = false;
      break;
    }
    handle(parser_.advance(buffered()));
  }
  if (!has_work_ && input_ended_) client_.closing = true;
  flush();
}

void Connection::handle(RespStep step) {
  switch (step) {
    case RespStep::more: has_work_ = false; return;
    case RespStep::wrong:
      replies_.error("ERR " + parser_.problem());
      client_.closing = true;
      return;
    case RespStep::large: return begin_value();
    case RespStep::request: break;
  }
  ++figures_.commands;
  arguments_.clear();
  for (size_t index = 0; index < parser_.arguments(); ++index)
    arguments_.push_back(parser_.diverted(index) ? std::string_view() : parser_.argument(buffered(), index));
  if (arguments_.empty()) return finish_request();
  if (!incoming_) return execute();
  if (incoming_->write)
    commands_.finish(std::move(*incoming_->write), Commands::Arguments(arguments_).subspan(3), replies_);
  else
    replies_.failure(*incoming_->refused);
  incoming_.reset();
  finish_request();
}

// A long value begins. Where nothing speaks against it, it goes straight into its block; what can be no block is
// read and forgotten; all else is kept here until it is complete.
void Connection::begin_value() {
  if (parser_.arguments() != 2 || !same_word(parser_.argument(buffered(), 0), "set")) return;
  const std::string_view key = parser_.argument(buffered(), 1);
  const uint64_t bytes = parser_.large_bytes();
  Incoming incoming{.bytes = bytes};
  if (const Status taken = commands_.check_value(key, bytes); !taken.ok()) {
    incoming.refused = taken.error();
  } else if (!commands_.takes_value("set", parser_.announced())) {
    return;
  } else {
    Result<KvWrite> write = commands_.begin(key, bytes);
    if (!write.ok() && write.error().code == ErrorCode::already_exists) return;  // to be compared
    if (!write.ok() && write.error().code == ErrorCode::lease_expired) return value_vanished();
    if (write.ok())
      incoming.write.emplace(std::move(write).value());
    else
      incoming.refused = write.error();
  }
  incoming_.emplace(std::move(incoming));
  take_buffered_value();
}

// The begin of the value is in the buffer; the rest will not get there.
void Connection::take_buffered_value() {
  const size_t at = begin_ + parser_.position();
  const std::string_view part = std::string_view(input_).substr(at);
  if (incoming_->write) {
    const std::span<std::byte> block = incoming_->write->bytes();
    if (!os::guarded({block}, [&] { std::memcpy(block.data(), part.data(), part.size()); }))
      return value_vanished();
  }
  incoming_->received = part.size();
  input_.resize(at);
  parser_.divert();
}

void Connection::finish_request() {
  begin_ += parser_.request_bytes();
  parser_.restart();
  arguments_.clear();
}

void Connection::execute() {
  in_steps_ = commands_.execute(client_, arguments_, replies_) == Progress::again;
  if (!in_steps_) finish_request();
}

void Connection::flush() {
  if (over_) return;
  bool progress = false;
  const Replies::Sent sent = replies_.send(fd(), progress);
  if (progress || sent == Replies::Sent::all) moved_ns_ = monotonic_ns();
  if (sent == Replies::Sent::vanished) vanished_ = true;
  over_ = sent == Replies::Sent::closed || sent == Replies::Sent::vanished;
  if (sent == Replies::Sent::all && client_.closing) linger();
}

// Closing now, with bytes unread, would take the last reply from the other side.
void Connection::linger() {
  if (lingering_) return;
  incoming_.reset();
  over_ = input_ended_ || ::shutdown(fd(), SHUT_WR) != 0;
  lingering_ = true;
  moved_ns_ = monotonic_ns();
}

void Connection::end() {
  client_.closing = true;
  in_steps_ = false;
  incoming_.reset();
  flush();
}

void Connection::look_at_the_time(uint64_t now_ns) {
  const uint64_t still_ns = now_ns > moved_ns_ ? now_ns - moved_ns_ : 0;
  const bool holds = replies_.views() > 0 || (incoming_ && incoming_->write);
  if ((holds && still_ns > patience_ns) || (lingering_ && still_ns > linger_ns)) over_ = true;
}

}  // namespace terrace::kv_serve
