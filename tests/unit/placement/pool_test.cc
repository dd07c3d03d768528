// SPDX-License-Identifier: Apache-2.0
// Tensors of a pool: names, views, tiers, and what is asked of them that cannot be.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "tests/unit/placement/pools.h"

using namespace terrace;
using namespace terrace::test;

TEST_CASE("TensorPool: a tensor is found by its name while somebody has it, and no longer") {
  Pools pools(8 * mib, 8 * mib);
  auto tensor = pools.tensor("layer.0", 3 * mib);
  CHECK(take(pools.pool->find("layer.0"))->data() == tensor->data());
  auto twice = pools.pool->create({.name = "layer.0", .shape = {1}});
  REQUIRE_FALSE(twice.ok());
  CHECK(twice.error().code == ErrorCode::already_exists);
  CHECK(twice.error().detail.find("'layer.0'") != std::string::npos);
  auto view = take(tensor->slice(0, 0, 10));
  tensor.reset();
  CHECK(pools.pool->find("layer.0").ok());  // the view keeps it
  view.reset();
  CHECK(pools.pool->find("layer.0").error().code == ErrorCode::not_found);
  CHECK(pools.pool->statistics().tensors == 0);
  CHECK(pools.pool->statistics().free_bytes == pools.pool->statistics().capacity_bytes);
  pools.tensor("layer.0", 1);
  CHECK(pools.pool->find("").error().code == ErrorCode::not_found);
}

TEST_CASE("Tensor: a view without elements may have any strides, and is sliced") {
  Pools pools(8 * mib, 0);
  auto tensor = pools.tensor("t", 64);
  auto empty = take(tensor->as_strided({0, 10}, Strides{INT64_MAX, INT64_MAX}, 0));
  CHECK(take(empty->slice(1, 0, 2, 3))->bytes().empty());
}

TEST_CASE("TensorPool: every dtype has its bytes, 64-byte aligned, and none are shared") {
  Pools pools(16 * mib, 16 * mib);
  std::vector<std::shared_ptr<Tensor>> tensors;
  for (uint8_t number = 1; number <= 20; ++number) {
    const DType dtype = *dtype_from_number(number);
    auto tensor = take(pools.pool->create({.dtype = dtype, .shape = {3, 40}, .hint = TensorHint::activations}));
    CHECK(tensor->bytes().size() == *tensor_bytes(dtype, {3, 40}));
    CHECK(reinterpret_cast<uintptr_t>(tensor->data()) % 64 == 0);
    CHECK(tensor->strides()[0] == 40);
    std::memset(tensor->data(), number, tensor->bytes().size());
    tensors.push_back(std::move(tensor));
  }
  for (const auto& tensor : tensors)
    for (const std::byte byte : tensor->bytes())
      REQUIRE(static_cast<uint8_t>(byte) == static_cast<uint8_t>(tensor->dtype()));
  CHECK(tensors[0]->name().empty());
}

TEST_CASE("Tensor: views reach their elements and nothing else") {
  Pools pools(8 * mib, 0);
  auto tensor = take(pools.pool->create({.dtype = DType::i32, .shape = {4, 6}}));
  auto* values = reinterpret_cast<int32_t*>(tensor->data());
  for (int i = 0; i < 24; ++i) values[i] = i;
  auto column = take(tensor->slice(1, 2, 2, 3));  // columns 2 and 5
  CHECK(column->shape() == Shape{4, 2});
  CHECK(column->strides()[1] == 3);
  CHECK(*reinterpret_cast<int32_t*>(column->data()) == 2);
  CHECK(column->bytes().size() == (3 * 6 + 3 + 1) * 4);
  auto last = take(column->slice(0, 3, 1));
  CHECK(*reinterpret_cast<int32_t*>(last->data()) == 20);
  CHECK(last->is_view());
  auto reversed = take(tensor->as_strided({24}, {-1}, 23));
  CHECK(*reinterpret_cast<int32_t*>(reversed->data()) == 23);
  CHECK(reversed->bytes().data() == tensor->data());
  auto turned = take(tensor->as_strided({6, 4}, {1, 6}, 0));
  CHECK(turned->bytes().size() == tensor->bytes().size());
  auto nothing = take(tensor->slice(0, 4, 0));
  CHECK(nothing->data() == nullptr);
  CHECK(nothing->read().ok());
  CHECK(take(tensor->as_strided({1000}, {0}, 5))->bytes().size() == 4);  // one element, often
}

TEST_CASE("Tensor: views that reach outside are refused, with any numbers") {
  Pools pools(8 * mib, 0);
  auto tensor = take(pools.pool->create({.name = "t", .dtype = DType::f32, .shape = {4, 6}}));
  CHECK_FALSE(tensor->slice(2, 0, 1).ok());
  CHECK_FALSE(tensor->slice(0, 0, 1, 0).ok());
  CHECK_FALSE(tensor->slice(0, 5, 0).ok());
  CHECK_FALSE(tensor->slice(0, 0, 5).ok());
  CHECK_FALSE(tensor->slice(0, 3, 2).ok());
  CHECK_FALSE(tensor->slice(0, 0, UINT64_MAX, UINT64_MAX).ok());
  CHECK_FALSE(tensor->slice(1, 0, 2, UINT64_MAX / 2).ok());
  CHECK_FALSE(tensor->as_strided({2}, {24}, 0).ok());
  CHECK_FALSE(tensor->as_strided({2}, {-1}, 0).ok());
  CHECK_FALSE(tensor->as_strided({1}, {1}, 24).ok());
  CHECK_FALSE(tensor->as_strided({UINT64_MAX, UINT64_MAX}, {INT64_MAX, INT64_MAX}, 0).ok());
  CHECK_FALSE(tensor->as_strided({3}, {INT64_MIN}, 0).ok());
  CHECK_FALSE(tensor->as_strided({1}, {1}, UINT64_MAX).ok());
  CHECK(tensor->as_strided({1}, {1}, 24).error().detail.find("'t'") != std::string::npos);
  auto packed = take(pools.pool->create({.dtype = DType::f4, .shape = {64}}));
  CHECK_FALSE(packed->slice(0, 0, 2).ok());
}

TEST_CASE("TensorPool: tensors of no bytes work and take no room") {
  Pools pools(8 * mib, 8 * mib);
  auto tensor = take(pools.pool->create({.name = "none", .dtype = DType::f32, .shape = {0, 5}}));
  CHECK(tensor->bytes().empty());
  CHECK(tensor->data() == nullptr);
  CHECK(take(tensor->read()).bytes().empty());
  CHECK(take(tensor->write({.hold = true})).bytes().empty());
  CHECK(take(tensor->pin(Tier::ddr))->wait(patience_ns).ok());
  CHECK(tensor->unpin().ok());
  CHECK(take(tensor->move_to(Tier::cxl))->done());
  CHECK(take(tensor->slice(0, 0, 0))->bytes().empty());
  CHECK(tensor->residency().ddr_bytes + tensor->residency().cxl_bytes == 0);
  CHECK(pools.pool->statistics().free_bytes == pools.pool->statistics().capacity_bytes);
}

TEST_CASE("TensorPool: wrong options and specs are refused in words") {
  FakeSession session(gib);
  CHECK(TensorPool::make({.session = &session}, {}).error().code == ErrorCode::capacity_exhausted);
  CHECK(TensorPool::make({.session = &session}, {nullptr}).error().code == ErrorCode::invalid_argument);
  CHECK(TensorPool::make({.session = &session, .ddr_bytes = 4 * mib, .policy = "fastest"}, {}).error().code ==
        ErrorCode::not_found);
  Pools pools(8 * mib, 8 * mib);
  CHECK(pools.pool->create({.name = std::string(2000, 'x'), .shape = {1}}).error().code ==
        ErrorCode::invalid_argument);
  CHECK(pools.pool->create({.name = "\xff", .shape = {1}}).error().code == ErrorCode::invalid_argument);
  CHECK(pools.pool->create({.shape = {1}, .flags = 0x80}).error().code == ErrorCode::invalid_argument);
  CHECK_FALSE(pools.pool->create({.dtype = DType::f64, .shape = {UINT64_MAX, 2}}).ok());
  auto big = pools.pool->create({.name = "big", .dtype = DType::u8, .shape = {100 * mib}});
  REQUIRE_FALSE(big.ok());
  CHECK(big.error().code == ErrorCode::capacity_exhausted);
  CHECK(big.error().detail.find("'big'") != std::string::npos);
  CHECK(big.error().detail.find("short") != std::string::npos);
}

TEST_CASE("TensorPool: weights begin in DDR, what is streamed in CXL") {
  Pools pools(16 * mib, 32 * mib);
  auto streamed =
      take(pools.pool->create({.dtype = DType::u8, .shape = {6 * mib}, .flags = TensorFlags::streaming}));
  auto weight = pools.tensor("w", 6 * mib);
  CHECK(streamed->residency().cxl_bytes == 6 * mib);
  CHECK(weight->residency().ddr_bytes == 6 * mib);
  auto state = pools.tensor("m", 8 * mib, TensorHint::optimizer_state);  // leaves the last of DDR to weights
  CHECK(state->residency().cxl_bytes == 8 * mib);
}

TEST_CASE("Tensor: moves and pins as told, with its bytes, and others make room") {
  Pools pools(16 * mib, 48 * mib);
  if (!pools.moves()) return;
  auto a = pools.tensor("a", 12 * mib), b = pools.tensor("b", 12 * mib);
  fill(a->bytes(), 1);
  fill(b->bytes(), 2);
  CHECK(take(a->move_to(Tier::cxl))->wait(patience_ns).ok());
  CHECK(a->residency().cxl_bytes == 12 * mib);
  auto raised = take(b->pin(Tier::ddr));
  CHECK(raised->wait(patience_ns).ok());
  CHECK(raised->done());
  CHECK(raised->bytes_there() == 12 * mib);
  CHECK(b->residency().ddr_bytes == 12 * mib);
  // 4 MiB are left.
  auto no_room = a->pin(Tier::ddr);
  REQUIRE_FALSE(no_room.ok());
  CHECK(no_room.error().code == ErrorCode::capacity_exhausted);
  CHECK(no_room.error().detail.find("8 MiB short") != std::string::npos);
  auto refused = take(a->prefetch())->wait(patience_ns);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::capacity_exhausted);
  CHECK(refused.error().detail.find("8 MiB short") != std::string::npos);
  CHECK(b->residency().ddr_bytes == 12 * mib);
  CHECK(b->move_to(Tier::cxl).error().code == ErrorCode::busy);
  CHECK(b->pin(Tier::cxl).error().code == ErrorCode::busy);
  CHECK(take(b->pin(Tier::ddr))->wait(patience_ns).ok());  // nests
  CHECK(b->statistics().pins == 2);
  CHECK(b->unpin().ok());
  CHECK(b->move_to(Tier::cxl).error().code == ErrorCode::busy);
  CHECK(b->unpin().ok());
  CHECK(b->unpin().error().code == ErrorCode::invalid_argument);
  CHECK(take(a->prefetch())->wait(patience_ns).ok());
  CHECK(a->residency().ddr_bytes == 12 * mib);
  CHECK(whole(a->bytes(), 1));
  CHECK(whole(b->bytes(), 2));
  CHECK(pools.pool->statistics().pinned_bytes == 0);
}

TEST_CASE("Tensor: where CXL is full what sinks trades places with what rises") {
  Pools pools(16 * mib, 8 * mib, {.copy_batch_bytes = 2 * mib});
  if (!pools.moves()) return;
  REQUIRE(pools.pool->statistics().capacity_bytes == 22 * mib);
  auto a = pools.tensor("a", 6 * mib);
  auto b = pools.tensor("b", 16 * mib);
  fill(a->bytes(), 1);
  fill(b->bytes(), 2);
  CHECK(take(a->move_to(Tier::cxl))->wait(patience_ns).ok());
  CHECK(a->residency().cxl_bytes == 6 * mib);
  CHECK(take(a->move_to(Tier::ddr))->wait(patience_ns).ok());
  CHECK(take(a->move_to(Tier::cxl))->wait(patience_ns).ok());
  CHECK(whole(a->bytes(), 1));
  CHECK(whole(b->bytes(), 2));
}

TEST_CASE("Tensor: a part moves alone; a tensor bigger than DDR says how much is short") {
  Pools pools(8 * mib, 32 * mib);
  if (!pools.moves()) return;
  auto tensor = pools.tensor("t", 24 * mib);
  fill(tensor->bytes(), 5);
  auto part = take(tensor->slice(0, 16 * mib, 4 * mib));
  CHECK(take(part->prefetch())->wait(patience_ns).ok());
  CHECK(part->residency().ddr_bytes == 4 * mib);
  auto all = take(tensor->prefetch())->wait(patience_ns);
  REQUIRE_FALSE(all.ok());
  CHECK(all.error().code == ErrorCode::capacity_exhausted);
  CHECK(all.error().detail.find("16 MiB short") != std::string::npos);
  CHECK(tensor->pin(Tier::ddr).error().detail.find("16 MiB short") != std::string::npos);
  CHECK(whole(tensor->bytes(), 5));
}

TEST_CASE("Tensor: the pinned flag pins where it was placed") {
  Pools pools(8 * mib, 8 * mib);
  auto tensor = take(pools.pool->create({.name = "p",
                                         .dtype = DType::u8,
                                         .shape = {4 * mib},
                                         .hint = TensorHint::weights,
                                         .flags = TensorFlags::pinned}));
  CHECK(tensor->statistics().pins == 1);
  CHECK(pools.pool->statistics().pinned_bytes == 4 * mib);
  tensor.reset();
  CHECK(pools.pool->statistics().pinned_bytes == 0);
}

TEST_CASE("Tensor: small ones that share a granule are not pinned in two tiers at once") {
  Pools pools(16 * mib, 16 * mib);
  auto a = pools.tensor("a", 1000), b = pools.tensor("b", 1000);
  CHECK(a->pin(Tier::ddr).ok());
  if (!pools.moves()) return;
  CHECK(b->pin(Tier::cxl).error().code == ErrorCode::busy);
  CHECK(b->pin(Tier::ddr).ok());
  CHECK(pools.pool->statistics().pinned_bytes == 2 * mib);
  CHECK(a->unpin().ok());
  CHECK(pools.pool->statistics().pinned_bytes == 2 * mib);
}

TEST_CASE("TensorPool: tensors outlive their pool, and a move that it was making is cancelled or whole") {
  Pools pools(16 * mib, 32 * mib, {.copy_bytes_per_s_max = 64 * mib});
  auto tensor = pools.tensor("t", 16 * mib);
  fill(tensor->bytes(), 9);
  std::shared_ptr<MoveHandle> move;
  if (pools.moves()) move = take(tensor->move_to(Tier::cxl));
  pools.pool.reset();
  if (move != nullptr) {
    CHECK(move->done());
    const Status ended = move->wait(0);
    if (!ended.ok()) CHECK(ended.error().code == ErrorCode::cancelled);
    const Tier elsewhere = tensor->residency().cxl_bytes == 0 ? Tier::cxl : Tier::ddr;
    const auto refused = tensor->move_to(elsewhere);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code == ErrorCode::unsupported);
    CHECK(refused.error().detail.find("the pool is gone") != std::string::npos);
  }
  CHECK(whole(tensor->bytes(), 9));
  CHECK(take(tensor->read()).bytes().size() == 16 * mib);
}

TEST_CASE("TensorPool: a tensor that goes while it is moved cancels the move; its place is used again") {
  Pools pools(16 * mib, 32 * mib, {.copy_bytes_per_s_max = 128 * mib});
  if (!pools.moves()) return;
  for (int i = 0; i < 10; ++i) {
    auto tensor = pools.tensor("t", 14 * mib);
    fill(tensor->bytes(), static_cast<uint64_t>(i));
    auto move = take(tensor->move_to(tensor->residency().ddr_bytes > 0 ? Tier::cxl : Tier::ddr));
    CHECK(move->wait(0).error().code == ErrorCode::busy);
    CHECK(whole(tensor->bytes(), static_cast<uint64_t>(i)));
    tensor.reset();
    CHECK(move->done());
    CHECK(move->wait(0).error().code == ErrorCode::cancelled);
  }
}

TEST_CASE("TensorPool: a lost lease is said by guards, and what waits is answered") {
  Pools pools(8 * mib, 16 * mib);
  auto tensor = pools.tensor("t", 2 * mib);
  REQUIRE(pools.lease->release().ok());
  CHECK(tensor->read().error().code == ErrorCode::lease_expired);
  CHECK(pools.pool->create({.shape = {1}}).error().code == ErrorCode::lease_expired);
  // Whether there is anything to move or not: of what is there already the bytes are gone.
  for (const Tier tier : {Tier::ddr, Tier::cxl}) {
    CHECK(tensor->move_to(tier).error().code == ErrorCode::lease_expired);
    CHECK(tensor->prefetch(tier).error().code == ErrorCode::lease_expired);
    CHECK(tensor->pin(tier).error().code == ErrorCode::lease_expired);
  }
}

// Nobody but the pool touches the memory. The fence comes at any moment of its copies, and the pool hears of it
// some time after that.
TEST_CASE(
    "TensorPool: a lease that is fenced while the pool moves tensors ends the moves and not the process") {
  for (uint32_t round = 0; round < 12; ++round) {
    Pools pools(48 * mib, 32 * mib, {.copy_bytes_per_s_max = 0});
    if (!pools.moves()) return;
    const std::vector<std::shared_ptr<Tensor>> tensors = {pools.tensor("a", 16 * mib),
                                                          pools.tensor("b", 16 * mib)};
    for (const auto& tensor : tensors) std::memset(tensor->bytes().data(), 7, tensor->bytes().size());
    std::thread fence([&] {
      ::usleep(10'000 + round * 3'100);
      CHECK(::ftruncate(pools.lease->fd(), 0) == 0);
      ::usleep(round % 4 * 5'000);
      CHECK(pools.lease->release().ok());
    });
    Status last;
    for (uint64_t turn = 0; last.ok(); ++turn) {
      const auto move = tensors[turn % 2]->move_to(turn / 2 % 2 == 0 ? Tier::cxl : Tier::ddr);
      last = move.ok() ? (*move)->wait(patience_ns) : move.error();
    }
    fence.join();
    CHECK_MESSAGE(last.error().code == ErrorCode::lease_expired, last.error().to_string());
    CHECK(tensors[0]->move_to(Tier::cxl).error().code == ErrorCode::lease_expired);
  }
}

TEST_CASE("TensorPool: a child of fork may close guards, whatever a thread of its parent was doing") {
  Pools pools(8 * mib, 16 * mib);
  auto tensor = pools.tensor("t", 2 * mib), other = pools.tensor("u", 2 * mib);
  std::atomic<bool> over{false};
  std::vector<std::thread> busy;  // one of them has the lock, most of the time
  for (int i = 0; i < 2; ++i)
    busy.emplace_back([&] {
      while (!over) (void)other->read({.hold = true});
    });
  for (int i = 0; i < 40; ++i) {
    ReadGuard guard = take(tensor->read({.hold = true}));
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      guard.close();
      ::_exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
  }
  over = true;
  for (std::thread& thread : busy) thread.join();
}

TEST_CASE("TensorPool: a child of fork may let go of everything; the parent goes on") {
  Pools pools(8 * mib, 16 * mib);
  auto tensor = pools.tensor("t", 6 * mib);
  fill(tensor->bytes(), 3);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    tensor.reset();
    pools.pool.reset();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  if (pools.moves()) CHECK(take(tensor->move_to(Tier::cxl))->wait(patience_ns).ok());
  CHECK(whole(tensor->bytes(), 3));
}
