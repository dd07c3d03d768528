// SPDX-License-Identifier: Apache-2.0
// Reads a stream in large pieces: several small messages cost one system call instead of two each.
//
// Threads   The event loop's thread only. One read at a time, as the stream behind it.
#pragma once

#include <kj/async-io.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace terrace::daemon {

class BufferedInput final : public kj::AsyncInputStream {
 public:
  explicit BufferedInput(kj::AsyncInputStream& inner) : inner_(inner) {}

  // Puts back what was read of the stream before this was there.
  void begin_with(std::byte first) {
    buffer_[0] = first;
    begin_ = 0;
    end_ = 1;
  }

  kj::Promise<size_t> tryRead(void* out, size_t bytes_min, size_t bytes_max) override {
    const size_t had = take(out, bytes_max);
    if (had >= bytes_min) return had;
    auto* rest = static_cast<std::byte*>(out) + had;
    if (bytes_max - had >= buffer_.size()) {  // large enough to go past the buffer
      return inner_.tryRead(rest, bytes_min - had, bytes_max - had).then([had](size_t more) {
        return had + more;
      });
    }
    return inner_.tryRead(buffer_.data(), bytes_min - had, buffer_.size())
        .then([this, rest, had, bytes_max](size_t more) {
          begin_ = 0;
          end_ = more;
          return had + take(rest, bytes_max - had);
        });
  }

 private:
  size_t take(void* out, size_t bytes_max) {
    const size_t bytes = std::min(bytes_max, end_ - begin_);
    if (bytes > 0) std::memcpy(out, buffer_.data() + begin_, bytes);
    begin_ += bytes;
    return bytes;
  }

  kj::AsyncInputStream& inner_;
  // Four thousand connections keep 16 MiB of these: a few calls fit.
  std::array<std::byte, 4096> buffer_;
  size_t begin_ = 0, end_ = 0;  // what was read and not taken yet
};

}  // namespace terrace::daemon
