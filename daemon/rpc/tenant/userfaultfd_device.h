// SPDX-License-Identifier: Apache-2.0
// This machine's /dev/userfaultfd for programs that may not open it themselves: with it a program makes
// userfaultfds of its own address space that see the kernel's faults as well, which migration by unprivileged
// programs rests on (docs/operations/tiering.md). A userfaultfd belongs to the address space of who makes it,
// so the device is passed on, never one of ours.
//
// Place     Peers has one, for all sessions on this machine; a session's server has a UserfaultfdAnswer.
// Threads   The event loop's thread only.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "core/base/unique_fd.h"
#include "daemon/rpc/answers.h"

namespace terrace::daemon {

rpc::UserfaultfdDevice::Client make_userfaultfd_device(std::shared_ptr<const UniqueFd> device);

// What one session answers. The capability is made once: asking often takes neither memory nor descriptors.
class UserfaultfdAnswer {
 public:
  template <typename Context>
  void write(PeerConnection& connection, Context& context) {
    KJ_IF_MAYBE (known, known_) {
      context.getResults().setDevice(*known);
      return;
    }
    auto opened = connection.peers.userfaultfd_device(connection.peer);
    if (!opened.ok()) return refuse(context, opened.error());
    connection.peers.peer_log().info(connection.peers.now_ns(),
                                     connection.name() + ": was given /dev/userfaultfd");
    known_ = make_userfaultfd_device(std::move(*opened));
    write(connection, context);
  }

 private:
  kj::Maybe<rpc::UserfaultfdDevice::Client> known_;
};

}  // namespace terrace::daemon
