// SPDX-License-Identifier: Apache-2.0
// Who may agree to be ended, that just this process is, and the record of it.
#include <doctest/doctest.h>

#include <fstream>

#include "daemon/consent/consent_file.h"
#include "tests/support/skip.h"
#include "tests/unit/consent/connected_child.h"
#include "tests/unit/io/temporary_directory.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::ConnectedChild;

namespace {

Result<Consent> consent_of(const ConnectedChild& child, pid_t told) {
  return consent_of_peer(child.socket(), child.pid(), ::geteuid(), static_cast<uint32_t>(told), "child");
}
Consent agreed(const ConnectedChild& child) {
  auto consent = consent_of(child, child.pid());
  REQUIRE_MESSAGE(consent.ok(), consent.error().to_string());
  return *consent;
}
// What a later run of the daemon knows: no descriptor.
Consent recorded(Consent consent) {
  consent.pidfd.reset();
  return consent;
}

}  // namespace

TEST_CASE("Consent: the process at the other end agrees for itself, and is ended by that") {
  ConnectedChild child;
  Consent consent = agreed(child);
  CHECK(consent.process.pid == static_cast<uint64_t>(child.pid()));
  CHECK(!has_ended(consent));
  CHECK(end_process(consent) == EndOf::killed);
  CHECK(WTERMSIG(child.wait()) == SIGKILL);
  CHECK(has_ended(consent));
  CHECK(end_process(consent) == EndOf::ended);
}

TEST_CASE("Consent: a stopped process is ended as any other") {
  ConnectedChild child;
  Consent consent = agreed(child);
  REQUIRE(::kill(child.pid(), SIGSTOP) == 0);
  CHECK(end_process(consent) == EndOf::killed);
  CHECK(WTERMSIG(child.wait()) == SIGKILL);
}

TEST_CASE("Consent: another process than the one that connected cannot agree for it, nor this one be made to") {
  ConnectedChild child;
  const auto other = consent_of(child, child.pid() + 1);
  REQUIRE(!other.ok());
  CHECK(other.error().code == ErrorCode::permission_denied);
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  const UniqueFd one(ends[0]), two(ends[1]);
  const auto own = consent_of_peer(one.get(), ::getpid(), 0, static_cast<uint32_t>(::getpid()), "self");
  REQUIRE(!own.ok());
  CHECK(own.error().code == ErrorCode::permission_denied);
}

TEST_CASE("Consent: of an earlier run it is the same process by number, start and pidfd, and no later one") {
  ConnectedChild child;
  const Consent real = agreed(child);
  SUBCASE("the number was given to a process that was started at another time") {
    Consent consent = recorded(real);
    consent.process.started += 1;
    CHECK(has_ended(consent));
    CHECK(end_process(consent) == EndOf::ended);
    CHECK(child.runs());
  }
  SUBCASE("within one clock tick, where the kernel counts pidfds") {
    if (real.number == 0) {
      TERRACE_SKIP_IN_PART(pidfds, "this kernel does not count pidfds (before 6.9)");
      return;
    }
    Consent consent = recorded(real);
    consent.number += 1;
    CHECK(has_ended(consent));
    CHECK(end_process(consent) == EndOf::ended);
    CHECK(child.runs());
  }
  SUBCASE("numbers of another pid namespace") {
    Consent consent = recorded(real);
    consent.process.space += 1;
    CHECK(!has_ended(consent));
    CHECK(end_process(consent) == EndOf::exempt);
    CHECK(child.runs());
  }
  SUBCASE("the process itself") {
    Consent consent = recorded(real);
    CHECK(end_process(consent) == EndOf::killed);
    CHECK(WTERMSIG(child.wait()) == SIGKILL);
  }
}

TEST_CASE("Consent: one that has another user's rights by now is left alone") {
  if (::geteuid() != 0) {
    TERRACE_SKIP(root, "acting as two users");
    return;
  }
  ConnectedChild child;  // root's
  auto consent =
      consent_of_peer(child.socket(), child.pid(), 12345, static_cast<uint32_t>(child.pid()), "child");
  REQUIRE(consent.ok());
  CHECK(end_process(*consent) == EndOf::exempt);
  CHECK(child.runs());
}

TEST_CASE("ConsentFile: what was agreed is read again, of the same boot and store only") {
  TemporaryDirectory folder;
  const std::string path = folder.file("consents");
  ConnectedChild child;
  const Consent consent = agreed(child);
  ConsentsByObject all{{"lease-1", {consent}}, {"devdax:lease-2", {consent}}};
  {
    ConsentFile file(path, "boot store");
    REQUIRE(file.write_anew({}).ok());
    for (const auto& [object, consents] : all) REQUIRE(file.agreed(object, consents[0], all).ok());
    Consent spared = consent;
    spared.spared = true;
    REQUIRE(file.agreed("lease-1", spared, all).ok());
    REQUIRE(file.agreed("lease-3", consent, all).ok());
    REQUIRE(file.forgotten("lease-3", all).ok());
  }
  const ConsentsByObject read = ConsentFile::read(path, "boot store");
  REQUIRE(read.size() == 2);
  const Consent& one = read.at("lease-1").at(0);
  CHECK(read.at("lease-1").size() == 1);
  CHECK(one.same_process(consent));
  CHECK(one.uid == consent.uid);
  CHECK(one.holder == "child");
  CHECK(one.spared);
  CHECK(!read.at("devdax:lease-2").at(0).spared);
  CHECK(ConsentFile::read(path, "boot other").empty());
  CHECK(ConsentFile::read(path, "").empty());
}

TEST_CASE("ConsentFile: a line that was cut short is left out, and one that cannot be written is an error") {
  TemporaryDirectory folder;
  const std::string path = folder.file("consents");
  std::ofstream(path) << "boot b\nagreed lease-1 77 5 6 0 0 0 one[77]\nagreed lease-2 78 5 6 0 0 0 tw";
  const ConsentsByObject read = ConsentFile::read(path, "b");
  CHECK(read.size() == 1);
  CHECK(read.contains("lease-1"));
  // Numbers that no holder has: the first process, and what is none.
  std::ofstream(path) << "boot b\nagreed lease-1 1 5 6 0 0 0 init\nagreed lease-2 99999999999 5 6 0 0 0 none\n"
                         "agreed lease-3 -1 5 6 0 0 0 all\n";
  for (const auto& [object, consents] : ConsentFile::read(path, "b")) CHECK_MESSAGE(consents.empty(), object);
  ConsentFile nowhere(folder.file("missing/consents"), "b");
  CHECK(!nowhere.agreed("lease-1", Consent{}, {}).ok());
}
