// SPDX-License-Identifier: Apache-2.0
// A message stream that takes nothing in while the peer does not take what was sent: otherwise one that asks
// and never reads makes the answers pile up here, without bound. Counts what is on its way for the peer.
//
// Place     Between a connection's bytes and its network: unix sockets (server.cc), agents (agents_listen.cc).
// Threads   The event loop's thread only.
#pragma once

#include <capnp/serialize-async.h>
#include <kj/async-io.h>
#include <kj/function.h>

#include "daemon/rpc/connection/buffered_input.h"
#include "daemon/rpc/connection/turns.h"
#include "daemon/rpc/connection/unix_stream.h"
#include "daemon/rpc/handed_memory.h"
#include "daemon/rpc/peer_limits.h"

namespace terrace::daemon {

// Bounds of one message.
capnp::ReaderOptions message_bounds(uint64_t bytes_max);

class BackPressureStream final : public capnp::MessageStream {
 public:
  // A peer that takes nothing is found by this many calls of stalled(), evenly over write_stall_ns_max.
  static constexpr uint64_t sweeps_a_stall = 4;

  // `writes` and `reads` are of one stream. `key` is whom a message that is sent now counts for.
  BackPressureStream(kj::Own<capnp::MessageStream> writes, kj::AsyncInputStream& reads,
                     uint64_t message_bytes_max, Peers& peers, kj::Function<PeerKey()> key)
      : inner_(kj::mv(writes)),
        input_(reads),
        message_bytes_max_(message_bytes_max),
        peers_(peers),
        key_(kj::mv(key)) {}

  // Told of the descriptors that went out. It outlives this.
  void tell(CarriedMemory& carried) { carried_ = &carried; }

  // The first byte of the stream, where it was read already.
  void begin_with(std::byte first) { input_.begin_with(first); }
  // Has each message wait for its key's turn before it is handed on, but for one that `read` of the stream (null: nothing
  // does) has waited for already. Both outlive this.
  void wait_for(Turns& turns, UnixStream* read) {
    turns_ = &turns;
    read_in_turns_ = read;
  }

  // `fds` stays unused: descriptors that a peer sends are closed by the kernel, before they take a place here.
  kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> tryReadMessage(kj::ArrayPtr<kj::AutoCloseFd> fds,
                                                                    capnp::ReaderOptions options,
                                                                    kj::ArrayPtr<capnp::word> scratch) override;
  kj::Promise<void> writeMessage(kj::ArrayPtr<const int> fds,
                                 kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) override;
  kj::Promise<void> writeMessages(
      kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) override;
  kj::Maybe<int> getSendBufferSize() override { return inner_->getSendBufferSize(); }
  kj::Promise<void> end() override { return inner_->end(); }

  // To be called now and then. Whether the peer took nothing since `sweeps` calls ago, although it should.
  bool stalled(uint64_t sweeps);
  // Resolves when the peer took nothing for write_stall_ns_max, although it should.
  kj::Promise<void> until_stalled(kj::Timer& timer);

 private:
  kj::Promise<void> counted(kj::Promise<void> write, uint64_t bytes);
  kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> in_turn(kj::Own<capnp::MessageReader> message);

  kj::Own<capnp::MessageStream> inner_;  // writes
  BufferedInput input_;
  const uint64_t message_bytes_max_;
  Peers& peers_;
  kj::Function<PeerKey()> key_;
  CarriedMemory* carried_ = nullptr;
  Turns* turns_ = nullptr;  // null: messages are handed on as they come
  UnixStream* read_in_turns_ = nullptr;
  uint32_t writing_ = 0;
  uint64_t sweeps_without_progress_ = 0;
  kj::Own<kj::PromiseFulfiller<void>> written_;  // the read that waits
};

}  // namespace terrace::daemon
