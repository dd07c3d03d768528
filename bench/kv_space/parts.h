// SPDX-License-Identifier: Apache-2.0
// The questions of bench_kv_space, and what the processes do that are started for them.
#pragma once

#include "bench/kv_space/processes.h"
#include "bench/kv_space/support.h"

namespace terrace::bench::kv {

void measure_copies(const Sizes& sizes, Figures& figures);    // copies.cc: get and put over memcpy
void measure_lookups(const Sizes& sizes, Figures& figures);   // lookups.cc: exists, view
void measure_members(const Sizes& sizes, Figures& figures);   // members.cc: look-ups with four members
void measure_scaling(const Sizes& sizes, Figures& figures);   // scaling.cc: gets of four processes over one's
void measure_recovery(const Sizes& sizes, Figures& figures);  // recovery.cc: after kill -9 of a writer
void measure_others(const Sizes& sizes, Figures& figures);    // others.cc: beside redis, files, memcached
void measure_spill(const Sizes& sizes,
                   Figures& figures);  // spill.cc: a spill folder over plain reads and writes
void measure_local(const Sizes& sizes, Figures& figures);  // local.cc: local copies beside the space's memory
void measure_hit_rate(const Sizes& sizes,
                      Figures& figures);  // hit_rate.cc: of a trace, with and without a spill
// Whether no block was wrong.
bool check_blocks(const Sizes& sizes, Figures& figures);  // checked.cc

int copy_role(const Worker& me);
int fill_role(const Worker& me);  // lookups.cc
int scale_role(const Worker& me);
int read_role(const Worker& me);     // recovery.cc
int succeed_role(const Worker& me);  // the same
int check_role(const Worker& me);

}  // namespace terrace::bench::kv
