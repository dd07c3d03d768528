// SPDX-License-Identifier: Apache-2.0
#include "daemon/event_loop/worker.h"

#include <doctest/doctest.h>
#include <kj/async-io.h>
#include <kj/vector.h>

#include <algorithm>
#include <future>
#include <string>

using namespace terrace::daemon;

TEST_CASE(
    "Worker: a hundred jobs of one tenant do not delay another's first, and what is urgent comes before both") {
  auto io = kj::setupAsyncIo();
  Worker worker;
  std::string order;
  kj::Vector<kj::Promise<void>> done;
  std::promise<void> all_asked;
  const std::shared_future<void> asked = all_asked.get_future().share();
  const auto ask = [&](char who, ShareKey share, bool urgent) {
    const auto work = [asked, &order, who] {
      asked.wait();
      order += who;
      return 0;
    };
    done.add(worker.run(work, urgent, share).ignoreResult());
  };
  for (int i = 0; i < 100; ++i) ask('a', 1, false);
  ask('b', 2, false);
  ask('u', 1, true);
  all_asked.set_value();
  kj::joinPromises(done.releaseAsArray()).wait(io.waitScope);
  REQUIRE(order.size() == 102);
  // The thread may have begun one before it heard of the others.
  CHECK(order.find('u') <= 1);
  CHECK(order.find('b') <= 2);
}

TEST_CASE("Worker: jobs of one share are done in the order asked") {
  auto io = kj::setupAsyncIo();
  Worker worker;
  std::string order;
  kj::Vector<kj::Promise<void>> done;
  for (char who = 'a'; who <= 'z'; ++who)
    done.add(worker
                 .run(
                     [&order, who] {
                       order += who;
                       return 0;
                     },
                     false, 5)
                 .ignoreResult());
  kj::joinPromises(done.releaseAsArray()).wait(io.waitScope);
  CHECK(std::is_sorted(order.begin(), order.end()));
}
