// SPDX-License-Identifier: Apache-2.0
// What a job asks for (--terrace and its like), and what the site says in plugstack.conf.
//
// Errors    a sentence in `why` of the caller, and -1
// Threads   none: Slurm calls hooks one after the other
#pragma once

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

enum { terrace_name_bytes_max = 120, terrace_why_bytes = 1024 };

// The words behind the plug-in's name in plugstack.conf.
struct terrace_site {
  char terrace[PATH_MAX];             // terrace=PATH
  char socket[PATH_MAX];              // socket=PATH; empty: terrace's own default
  char pool[terrace_name_bytes_max];  // pool=NAME; empty: the only one
  unsigned wait_s;                    // wait=SECONDS (or 5m, 1h)
};

enum terrace_mode { terrace_mode_run, terrace_mode_env };

// What is asked for on each host; bytes == 0: nothing.
struct terrace_request {
  uint64_t bytes;
  uint64_t ddr_bytes;  // 0: what terrace run takes by itself
  enum terrace_mode mode;
  char pool[terrace_name_bytes_max];
};

int terrace_read_site_word(const char* word, struct terrace_site* site, char* why, size_t why_bytes);

// Each takes the text behind its option.
int terrace_read_size(const char* text, uint64_t* bytes, char* why, size_t why_bytes);
int terrace_read_pool(const char* text, char* pool, char* why, size_t why_bytes);
int terrace_read_mode(const char* text, enum terrace_mode* mode, char* why, size_t why_bytes);
