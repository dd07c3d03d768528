// SPDX-License-Identifier: Apache-2.0
#include "cli/kv/serve/replies.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace terrace::kv_serve {
namespace {

constexpr size_t pieces_per_call = 64;
constexpr size_t piece_bytes_max = 1 << 20;  // of text: a piece that is sent is freed

const char* word_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::capacity_exhausted: return "OOM ";
    case ErrorCode::busy: return "BUSY ";
    case ErrorCode::permission_denied: return "NOPERM ";
    default: return "ERR ";
  }
}

}  // namespace

std::string_view Replies::Piece::rest() const {
  const std::span<const std::byte> bytes = view.bytes();
  const std::string_view all =
      is_view ? std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()) : text;
  return all.substr(sent);
}

void Replies::append(std::string_view text) {
  if (pieces_.empty() || pieces_.back().is_view || pieces_.back().text.size() + text.size() > piece_bytes_max)
    pieces_.emplace_back();
  pieces_.back().text += text;
  bytes_ += text.size();
}

void Replies::append_all(Replies other) {
  bytes_ += other.bytes_;
  views_ += other.views_;
  for (Piece& piece : other.pieces_) pieces_.push_back(std::move(piece));
}

void Replies::simple(std::string_view word) {
  append("+" + std::string(word) + "\r\n");
}

void Replies::error(std::string_view text) {
  std::string line = "-" + std::string(text);
  std::replace_if(
      line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  append(line + "\r\n");
}

void Replies::failure(const Error& error) {
  this->error(word_of(error.code) + error.to_string());
}

void Replies::integer(int64_t number) {
  append(":" + std::to_string(number) + "\r\n");
}

void Replies::nil() {
  append(resp3_ ? "_\r\n" : "$-1\r\n");
}

void Replies::bulk(std::string_view bytes) {
  append("$" + std::to_string(bytes.size()) + "\r\n");
  append(bytes);
  append("\r\n");
}

void Replies::bulk(std::span<const std::byte> bytes) {
  bulk(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void Replies::bulk(KvView view) {
  const size_t length = view.bytes().size();
  append("$" + std::to_string(length) + "\r\n");
  Piece& piece = pieces_.emplace_back();
  piece.view = std::move(view);
  piece.is_view = true;
  bytes_ += length;
  ++views_;
  append("\r\n");
}

void Replies::array(uint64_t members) {
  append("*" + std::to_string(members) + "\r\n");
}

void Replies::map(uint64_t pairs) {
  if (!resp3_) return array(2 * pairs);
  append("%" + std::to_string(pairs) + "\r\n");
}

void Replies::text_for_people(std::string_view text) {
  constexpr std::string_view format = "txt:";
  if (!resp3_) return bulk(text);
  append("=" + std::to_string(format.size() + text.size()) + "\r\n");
  append(format);
  append(text);
  append("\r\n");
}

void Replies::drop(size_t bytes) {
  bytes_ -= bytes;
  while (!pieces_.empty()) {
    Piece& first = pieces_.front();
    const size_t part = std::min(bytes, first.rest().size());
    first.sent += part;
    bytes -= part;
    if (!first.rest().empty()) return;
    views_ -= first.is_view ? 1 : 0;
    pieces_.pop_front();
  }
}

Replies::Sent Replies::send(int fd, bool& progress) {
  while (!pieces_.empty()) {
    iovec parts[pieces_per_call];
    size_t count = 0;
    for (size_t at = 0; at < pieces_.size() && count < pieces_per_call; ++at) {
      const std::string_view rest = pieces_[at].rest();
      if (!rest.empty()) parts[count++] = {const_cast<char*>(rest.data()), rest.size()};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Sent::blocked;
      return errno == EFAULT ? Sent::vanished : Sent::closed;
    }
    progress = progress || sent > 0;
    drop(static_cast<size_t>(sent));
  }
  return Sent::all;
}

}  // namespace terrace::kv_serve
