// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/pins/count_program.h"

#include <cstddef>
#include <cstring>

namespace terrace::daemon {
namespace {

enum Register : uint8_t { r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, stack };
enum class Label : uint8_t { out, counter, got, next, done, stop, count };

constexpr int32_t most_steps = 1 << 23;  // bpf_loop's own bound: 16 TiB of 2 MiB blocks
constexpr int16_t key_slot = -8, value_slot = -24;

class Assembler {
 public:
  void move(Register to, Register from) { add(BPF_ALU64 | BPF_MOV | BPF_X, to, from); }
  void set(Register to, int32_t value) { add(BPF_ALU64 | BPF_MOV | BPF_K, to, r0, 0, value); }
  void add_value(Register to, int32_t value) { add(BPF_ALU64 | BPF_ADD | BPF_K, to, r0, 0, value); }
  void add_register(Register to, Register from) { add(BPF_ALU64 | BPF_ADD | BPF_X, to, from); }
  void subtract(Register to, Register from) { add(BPF_ALU64 | BPF_SUB | BPF_X, to, from); }
  void low_half(Register of) {
    add(BPF_ALU64 | BPF_LSH | BPF_K, of, r0, 0, 32);
    add(BPF_ALU64 | BPF_RSH | BPF_K, of, r0, 0, 32);
  }
  // A counter is 32 bits wide, and may be below idle.
  void extend_sign(Register of) {
    add(BPF_ALU64 | BPF_LSH | BPF_K, of, r0, 0, 32);
    add(BPF_ALU64 | BPF_ARSH | BPF_K, of, r0, 0, 32);
  }
  void load(Register to, Register from, size_t offset) {
    add(BPF_LDX | BPF_MEM | BPF_DW, to, from, static_cast<int16_t>(offset));
  }
  void load_half(Register to, int16_t slot) { add(BPF_LDX | BPF_MEM | BPF_W, to, stack, slot); }
  void store(Register at, size_t offset, Register from) {
    add(BPF_STX | BPF_MEM | BPF_DW, at, from, static_cast<int16_t>(offset));
  }
  void store_key(Register from) { add(BPF_STX | BPF_MEM | BPF_W, stack, from, key_slot); }
  void load_wide(Register to, uint8_t kind, int32_t value) {
    add(BPF_LD | BPF_DW | BPF_IMM, to, static_cast<Register>(kind), 0, value);
    add(0, r0, r0);
  }
  void call(int32_t helper) { add(BPF_JMP | BPF_CALL, r0, r0, 0, helper); }
  void leave() { add(BPF_JMP | BPF_EXIT, r0, r0); }
  void jump(Label to) { branch(BPF_JMP | BPF_JA, r0, r0, 0, to); }
  void jump_if_zero(Register one, Label to) { branch(BPF_JMP | BPF_JEQ | BPF_K, one, r0, 0, to); }
  void jump_unless_zero(Register one, Label to) { branch(BPF_JMP | BPF_JNE | BPF_K, one, r0, 0, to); }
  void jump_if_same(Register one, Register other, Label to) {
    branch(BPF_JMP | BPF_JEQ | BPF_X, one, other, 0, to);
  }
  void jump_unless_same(Register one, Register other, Label to) {
    branch(BPF_JMP | BPF_JNE | BPF_X, one, other, 0, to);
  }
  void here(Label label) { labels_[static_cast<size_t>(label)] = code_.size(); }
  size_t size() const { return code_.size(); }

  // The element of the key in its slot, in r0; jumps to `none` where there is none.
  void look_up(int map, Label none) {
    move(r2, stack);
    add_value(r2, key_slot);
    load_wide(r1, BPF_PSEUDO_MAP_FD, map);
    call(BPF_FUNC_map_lookup_elem);
    jump_if_zero(r0, none);
  }
  // The work, in r6.
  void find_work(int map, Label none) {
    set(r1, 0);
    store(stack, static_cast<size_t>(key_slot), r1);
    look_up(map, none);
    move(r6, r0);
  }
  void count_up(size_t field) {
    load(r1, r6, field);
    add_value(r1, 1);
    store(r6, field, r1);
  }

  std::vector<bpf_insn> linked() {
    for (const Jump& jump : jumps_) {
      const auto from = static_cast<ptrdiff_t>(jump.at) + 1;
      code_[jump.at].off =
          static_cast<int16_t>(static_cast<ptrdiff_t>(labels_[static_cast<size_t>(jump.to)]) - from);
    }
    return std::move(code_);
  }

 private:
  struct Jump {
    size_t at;
    Label to;
  };

  void add(int code, Register to, Register from, int16_t offset = 0, int32_t value = 0) {
    bpf_insn one{};
    one.code = static_cast<uint8_t>(code);
    one.dst_reg = to & 15;
    one.src_reg = from & 15;
    one.off = offset;
    one.imm = value;
    code_.push_back(one);
  }
  void branch(int code, Register one, Register other, int32_t value, Label to) {
    jumps_.push_back({code_.size(), to});
    add(code, one, other, 0, value);
  }

  std::vector<bpf_insn> code_;
  std::vector<Jump> jumps_;
  size_t labels_[static_cast<size_t>(Label::count)] = {};
};

// The next segment, in r8 and r9.
void next_segment(Assembler& to, int segments) {
  to.load(r1, r6, offsetof(CountWork, segment));
  to.store_key(r1);
  to.add_value(r1, 1);
  to.store(r6, offsetof(CountWork, segment), r1);
  to.look_up(segments, Label::done);
  to.load(r8, r0, offsetof(CountSegment, address));
  to.load(r9, r0, offsetof(CountSegment, count));
  to.jump_if_zero(r9, Label::done);
}

// Reads the counter at r8 and adds it up.
void count_one(Assembler& to) {
  to.move(r1, stack);
  to.add_value(r1, value_slot);
  to.set(r2, sizeof(uint32_t));
  to.move(r3, r8);
  to.call(BPF_FUNC_probe_read_kernel);
  to.jump_if_zero(r0, Label::got);
  to.count_up(offsetof(CountWork, failed));
  to.jump(Label::next);
  to.here(Label::got);
  to.load_half(r1, value_slot);
  to.load(r2, r6, offsetof(CountWork, idle));
  to.jump_if_same(r1, r2, Label::next);
  to.subtract(r1, r2);
  to.extend_sign(r1);
  to.load(r2, r6, offsetof(CountWork, difference));
  to.add_register(r2, r1);
  to.store(r6, offsetof(CountWork, difference), r2);
  to.count_up(offsetof(CountWork, blocks));
  to.here(Label::next);
  to.count_up(offsetof(CountWork, read));
}

}  // namespace

CountProgram count_program(int work, int segments) {
  Assembler to;
  to.find_work(work, Label::out);
  to.call(BPF_FUNC_get_current_pid_tgid);
  to.low_half(r0);
  to.load(r1, r6, offsetof(CountWork, thread));
  to.jump_unless_same(r0, r1, Label::out);
  to.load(r1, r6, offsetof(CountWork, finished));
  to.jump_unless_zero(r1, Label::out);
  to.count_up(offsetof(CountWork, runs));
  to.set(r1, most_steps);
  const size_t at = to.size();
  to.load_wide(r2, BPF_PSEUDO_FUNC, 0);  // the step function; where it is is filled in below
  to.set(r3, 0);
  to.set(r4, 0);
  to.call(BPF_FUNC_loop);
  to.here(Label::out);
  to.set(r0, 0);
  to.leave();

  const size_t step = to.size();
  to.find_work(work, Label::stop);
  to.load(r8, r6, offsetof(CountWork, address));
  to.load(r9, r6, offsetof(CountWork, left));
  to.jump_unless_zero(r9, Label::counter);
  next_segment(to, segments);
  to.here(Label::counter);
  count_one(to);
  to.load(r1, r6, offsetof(CountWork, stride));
  to.add_register(r8, r1);
  to.add_value(r9, -1);
  to.store(r6, offsetof(CountWork, address), r8);
  to.store(r6, offsetof(CountWork, left), r9);
  to.set(r0, 0);
  to.leave();
  to.here(Label::done);
  to.set(r1, 1);
  to.store(r6, offsetof(CountWork, finished), r1);
  to.here(Label::stop);
  to.set(r0, 1);
  to.leave();

  CountProgram program{to.linked(), static_cast<uint32_t>(step)};
  program.code[at].imm = static_cast<int32_t>(step - at - 1);
  return program;
}

// Layout: Documentation/bpf/btf.rst of the kernel. Type 1 is int, 2 a function that returns it, 3 and 4 the two.
std::vector<char> count_program_types() {
  constexpr uint32_t kind_int = 1u << 24, kind_function = 12u << 24, kind_prototype = 13u << 24;
  constexpr char names[] = "\0int\0count\0step";
  const uint32_t types[] = {1,  kind_int,       4, (1u << 24) | 32,  // signed, 32 bits
                            0,  kind_prototype, 1,                   //
                            5,  kind_function,  2,                   //
                            11, kind_function,  2};
  const uint32_t header[] = {0xeb9fu | (1u << 16), 24, 0, sizeof types, sizeof types, sizeof names};
  std::vector<char> all(sizeof header + sizeof types + sizeof names);
  std::memcpy(all.data(), header, sizeof header);
  std::memcpy(all.data() + sizeof header, types, sizeof types);
  std::memcpy(all.data() + sizeof header + sizeof types, names, sizeof names);
  return all;
}

}  // namespace terrace::daemon
