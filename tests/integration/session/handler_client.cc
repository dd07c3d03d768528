// SPDX-License-Identifier: Apache-2.0
// A program whose session is a static object and has a handler of notices, for session_test.py:
//
//   handler_client SOCKET WAY     WAY: exit (in the handler), static (at the end of main), fork (a child exits)
//
// Says the lease's id once it has one, then waits for a notice or a line.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "core/base/units.h"
#include "terrace/session.h"

using namespace terrace;

namespace {

std::unique_ptr<Session> session;
std::shared_ptr<Lease> lease;

int wait_for_a_line() {
  std::string line;
  return std::getline(std::cin, line) ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string way = argv[2];
  SessionOptions options;
  options.socket_path = argv[1];
  auto connected = Session::connect(options);
  if (!connected.ok()) return 3;
  session = std::move(*connected);
  LeaseRequest request;
  request.bytes = 2 * mib;
  auto granted = session->grant(request);
  if (!granted.ok()) return 4;
  lease = std::move(*granted);
  session->on_notice([](const LeaseNotice&) { std::exit(7); });
  std::cout << lease->id().value << std::endl;
  if (way == "fork") {
    if (const pid_t child = ::fork(); child != 0) {
      int status = -1;
      ::waitpid(child, &status, 0);
      std::cout << "child " << status << std::endl;
    } else {
      ::alarm(60);  // ends it if it hangs
      std::exit(0);
    }
  }
  return wait_for_a_line();
}
