// SPDX-License-Identifier: Apache-2.0
// An accepted unix socket as a stream of kj's whose bytes are read in turns. kj's own reads as soon as there is
// something, which for hundreds of connections of one uid is most of what their messages cost, before anybody can be chosen.
//
// Descriptors that a peer sends along are closed by the kernel; those that are sent to it go with the first byte.
//
// Place     RpcServer makes one for each connection that it accepts.
// Threads   The event loop's thread only. One read and one write at a time, as with kj's.
// Design    docs/design/0027-shares.md
#pragma once

#include <kj/async-io.h>
#include <kj/function.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/base/unique_fd.h"
#include "daemon/rpc/connection/ready_sockets.h"

namespace terrace::daemon {

class UnixStream final : public kj::AsyncCapabilityStream, private ReadySockets::Socket {
 public:
  // Resolves when bytes that have come may be read.
  using Turn = kj::Function<kj::Promise<void>()>;

  // `fd` does not block. `sockets` outlives this.
  UnixStream(ReadySockets& sockets, UniqueFd fd, Turn turn);
  ~UnixStream() noexcept(false);
  KJ_DISALLOW_COPY(UnixStream);

  // Whether a turn was waited for since the last call: what was read then needs no other one.
  bool had_turn() { return std::exchange(had_turn_, false); }

  kj::Promise<size_t> tryRead(void* buffer, size_t bytes_min, size_t bytes_max) override;
  kj::Promise<void> write(const void* buffer, size_t size) override;
  kj::Promise<void> write(kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> pieces) override;
  kj::Promise<void> writeWithFds(kj::ArrayPtr<const kj::byte> data,
                                 kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> more,
                                 kj::ArrayPtr<const int> fds) override;
  kj::Promise<void> whenWriteDisconnected() override;
  void shutdownWrite() override;
  void abortRead() override;
  void getsockopt(int level, int option, void* value, kj::uint* length) override;
  kj::Maybe<int> getFd() const override { return fd_.get(); }

  // Nobody asks for these.
  kj::Promise<ReadResult> tryReadWithFds(void*, size_t, size_t, kj::AutoCloseFd*, size_t) override;
  kj::Promise<ReadResult> tryReadWithStreams(void*, size_t, size_t, kj::Own<kj::AsyncCapabilityStream>*,
                                             size_t) override;
  kj::Promise<void> writeWithStreams(kj::ArrayPtr<const kj::byte>,
                                     kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>>,
                                     kj::Array<kj::Own<kj::AsyncCapabilityStream>>) override;

 private:
  using Waiting = kj::Own<kj::PromiseFulfiller<void>>;

  void ready(uint32_t events) override;
  kj::Promise<size_t> read_on(std::byte* out, size_t bytes_min, size_t bytes_max, size_t had);
  kj::Promise<void> until_readable();
  kj::Promise<void> write_on(kj::ArrayPtr<const kj::byte> first,
                             kj::ArrayPtr<const kj::ArrayPtr<const kj::byte>> more,
                             kj::ArrayPtr<const int> fds);

  ReadySockets& sockets_;
  const UniqueFd fd_;
  Turn turn_;
  bool had_turn_ = false;
  Waiting readable_, writable_, gone_;  // null: nobody waits
  bool is_gone_ = false;
  kj::Maybe<kj::ForkedPromise<void>> when_gone_;  // once somebody has asked
};

}  // namespace terrace::daemon
