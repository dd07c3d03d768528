// SPDX-License-Identifier: Apache-2.0
// A lease that this command holds for others: taken, kept alive, and told of while it is.
//
// Ownership A HeldLease has the session and the lease; its end gives back what it was granted, and leaves what it
//           only attached.
// Threads   The main thread; notices come on the session's.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>

#include "cli/terminal/command_line.h"
#include "cli/terminal/output.h"
#include "core/base/result.h"
#include "core/base/unique_fd.h"
#include "terrace/session.h"

namespace terrace::cli {

struct HoldArguments {
  std::string lease;  // an id or a label; with `size_bytes` the label of the new one
  bool read_only = false;
  uint64_t size_bytes = 0;  // not 0: grant it first, and give it back at the end
  std::string pool;
  uint64_t wait_ns = 0;
  std::string mode;               // of the new one: a LeaseMode's word
  std::string on_fence = "keep";  // an OnFence's word: of the new one, or what this command agrees to
};

// `arguments` has the mode that a new lease gets unless it is said.
void add_hold_options(Command verb, HoldArguments& arguments);

class HeldLease {
 public:
  // `where` is the verb's name. `told` gets each notice after people were told of it on stderr; it may be empty.
  // Errors    as Session's; invalid_argument: what is said does not go together
  static Result<std::unique_ptr<HeldLease>> take(const Context& context, const HoldArguments& arguments,
                                                 const char* where,
                                                 std::function<void(const LeaseNotice&)> told = {});
  ~HeldLease();

  Lease& lease() { return *lease_; }
  const std::string& label() const { return label_; }
  // Gives it back if it was granted here, or is being taken back and nobody else is seen to have it. Waits for the
  // manager; what fails is said, not returned: the lease then ends with its TTL.
  void give_back();
  // Why it was lost, as the manager tells it.
  Error loss();

 private:
  HeldLease(std::unique_ptr<Session> session, std::shared_ptr<Lease> lease, std::string label, bool granted)
      : session_(std::move(session)), lease_(std::move(lease)), label_(std::move(label)), granted_(granted) {}
  void tell(const LeaseNotice& notice) const;

  std::unique_ptr<Session> session_;
  std::shared_ptr<Lease> lease_;
  std::string label_;
  bool granted_;
};

// SIGINT, SIGTERM and SIGHUP as a descriptor, for a command that holds until it is told to end. Before any thread exists.
UniqueFd ending_signals();

// Whether the process has the memory, as fstat() tells of its descriptor, mapped or open. One that this user may not look into
// counts as having none.
bool has_memory(pid_t pid, const struct stat& memory);

// A line on stderr, "terrace: ...".
void say_of_lease(const std::string& text);

// "lease 7 (scratch)"
std::string shown_lease(LeaseId id, const std::string& label);

}  // namespace terrace::cli
