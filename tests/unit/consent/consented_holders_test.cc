// SPDX-License-Identifier: Apache-2.0
// Holders of an object are ended, waited for, spared, and known again by the next run.
#include <doctest/doctest.h>

#include <kj/async-io.h>
#include <sys/stat.h>

#include "core/base/units.h"
#include "daemon/consent/consented_holders.h"
#include "tests/unit/consent/connected_child.h"
#include "tests/unit/io/temporary_directory.h"

using namespace terrace;
using namespace terrace::daemon;
using terrace::test::ConnectedChild;

namespace {

struct HoldersFixture {
  TemporaryDirectory folder;
  const std::string path = folder.file("consents");
  kj::AsyncIoContext io = kj::setupAsyncIo();
  std::unique_ptr<ConsentedHolders> holders = make();

  std::unique_ptr<ConsentedHolders> make() {
    return std::make_unique<ConsentedHolders>(io.provider->getTimer(), path, "boot");
  }
  ProcessId agree(const std::string& object, const ConnectedChild& child, const std::string& name) {
    auto consent =
        consent_of_peer(child.socket(), child.pid(), ::geteuid(), static_cast<uint32_t>(child.pid()), name);
    REQUIRE(consent.ok());
    const ProcessId process = consent->process;
    REQUIRE(holders->agreed(object, std::move(*consent)).ok());
    return process;
  }
  std::vector<std::string> end(const std::string& object) {
    const HoldersEnded ended = holders->end_holders(object).wait(io.waitScope);
    REQUIRE_MESSAGE(ended.status.ok(), ended.status.error().to_string());
    return ended.ended;
  }
};

}  // namespace

TEST_CASE("ConsentedHolders: all who agreed for the object are ended and named, and nobody else") {
  HoldersFixture fixture;
  ConnectedChild one, two, other;
  fixture.agree("lease-1", one, "one");
  fixture.agree("lease-1", two, "two");
  fixture.agree("lease-2", other, "other");
  CHECK(fixture.end("lease-1").size() == 2);
  CHECK(WTERMSIG(one.wait()) == SIGKILL);
  CHECK(WTERMSIG(two.wait()) == SIGKILL);
  CHECK(other.runs());
  CHECK(fixture.end("lease-1").empty());  // again: it is done
  CHECK(fixture.end("lease-9").empty());
}

TEST_CASE("ConsentedHolders: one that gives the memory back by itself is spared, until it takes it again") {
  HoldersFixture fixture;
  ConnectedChild one, two;
  const ProcessId process = fixture.agree("lease-1", one, "one");
  fixture.agree("lease-1", two, "two");
  fixture.holders->spare("lease-1", process, true);
  CHECK(fixture.end("lease-1") == std::vector<std::string>{"two"});
  CHECK(one.runs());
  fixture.holders = fixture.make();  // also in the next run
  CHECK(fixture.end("lease-1").empty());
  CHECK(one.runs());
  SUBCASE("it takes the lease again") {
    fixture.agree("lease-1", one, "one");
  }
  SUBCASE("it could not give it back") {
    fixture.holders->spare("lease-1", process, false);
  }
  CHECK(fixture.end("lease-1") == std::vector<std::string>{"one"});
}

TEST_CASE("ConsentedHolders: the next run ends whom this one was told of, once, and forgets what is gone") {
  HoldersFixture fixture;
  ConnectedChild one, two;
  fixture.agree("lease-1", one, "one");
  fixture.agree("lease-2", two, "two");
  fixture.agree("lease-2", two, "two");
  fixture.holders = fixture.make();
  fixture.holders->keep_only({"lease-1"});
  CHECK(fixture.end("lease-2").empty());
  CHECK(two.runs());
  CHECK(fixture.end("lease-1") == std::vector<std::string>{"one"});
  fixture.holders->forget("lease-1");
  CHECK(ConsentFile::read(fixture.path, "boot").empty());
}

TEST_CASE("ConsentedHolders: what cannot be recorded is not agreed to") {
  HoldersFixture fixture;
  ConnectedChild one;
  auto holders = std::make_unique<ConsentedHolders>(fixture.io.provider->getTimer(),
                                                    fixture.folder.file("missing/consents"), "boot");
  auto consent = consent_of_peer(one.socket(), one.pid(), 0, static_cast<uint32_t>(one.pid()), "one");
  REQUIRE(consent.ok());
  CHECK(!holders->agreed("lease-1", *consent).ok());
  CHECK(!holders->has_agreed("lease-1", consent->process));
}

TEST_CASE("ConsentedHolders: a host's guard ends all that its record names") {
  HoldersFixture fixture;
  ConnectedChild one, two;
  fixture.agree("lease-1", one, "one");
  fixture.agree("lease-2", two, "two");
  end_all_consented(fixture.path, "another boot", ns_per_s);
  CHECK(one.runs());
  end_all_consented(fixture.path, "boot", 30 * ns_per_s);
  CHECK(WTERMSIG(one.wait()) == SIGKILL);
  CHECK(WTERMSIG(two.wait()) == SIGKILL);
}
