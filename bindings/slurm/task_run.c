// SPDX-License-Identifier: Apache-2.0
// libterrace_slurm_task.so, preloaded into a task: starts it anew under `terrace run`, and is gone.
//
// A plug-in cannot change what Slurm executes. It could execute something itself, but only before TaskProlog, TMPDIR and
// the user's limits, which come after the last hook. This comes after all of them. Only the task's own process does it:
// a prolog or a child that inherited the environment has another pid than SLURM_TASK_PID says.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { words_max = 32, failed_to_start = 125 };

// LD_PRELOAD as it was before this library was put in front.
static void leave_preload(void) {
  Dl_info self;
  const char* all = getenv("LD_PRELOAD");
  if (all == NULL || dladdr((void*)(size_t)&leave_preload, &self) == 0) return;
  const size_t own = strlen(self.dli_fname);
  if (strncmp(all, self.dli_fname, own) != 0 || (all[own] != '\0' && all[own] != ':')) return;
  char* rest = strdup(all[own] == ':' ? all + own + 1 : "");
  if (rest != NULL && *rest != '\0')
    setenv("LD_PRELOAD", rest, 1);
  else
    unsetenv("LD_PRELOAD");
  free(rest);
}

// TERRACE_SLURM_RUN: the words of `terrace run` up to `--`, one a line.
__attribute__((constructor)) static void run_under_terrace(int argc, char** argv) {
  const char* given = getenv("TERRACE_SLURM_RUN");
  const char* task = getenv("SLURM_TASK_PID");
  if (given == NULL || task == NULL || strtol(task, NULL, 10) != getpid() || argc < 1) return;
  char* words = strdup(given);
  char** command = calloc(words_max + (size_t)argc + 1, sizeof(*command));
  size_t count = 0;
  if (words == NULL || command == NULL) return;
  char* rest = words;
  for (char* word = strsep(&rest, "\n"); word != NULL && count < words_max; word = strsep(&rest, "\n"))
    command[count++] = word;
  memcpy(command + count, argv, (size_t)argc * sizeof(*argv));
  // Slurm gives a path, and the kernel that of a script's interpreter.
  if (strchr(argv[0], '/') == NULL) command[count] = (char*)"/proc/self/exe";
  unsetenv("TERRACE_SLURM_RUN");
  leave_preload();
  // When slurmstepd is killed nobody ends its tasks: `terrace run` then ends, and with it the program and the leases.
  prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
  execv(command[0], command);
  fprintf(stderr, "terrace: %s cannot be started: %s\n", command[0], strerror(errno));
  _exit(failed_to_start);
}
