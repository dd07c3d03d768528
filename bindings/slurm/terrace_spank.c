// SPDX-License-Identifier: Apache-2.0
// The SPANK plug-in: options of srun, sbatch and salloc, and what slurmstepd does for them on each host.
//
//   submitting   options are read, and refused with a sentence
//   slurmstepd   user_init: mode env, a keeper takes the lease (keeper.h)
//                task_init: mode run, the task will be started under `terrace run` (task_run.c)
//                exit:      the keeper ends, the lease goes back
//
// A hook that fails in slurmstepd makes Slurm take the node out of service for batch jobs. So none does: where there is
// no memory, the tasks exit with 125, and the manager's sentence stands in slurmd's log and on the step's stderr.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bindings/slurm/keeper.h"
#include "bindings/slurm/request.h"

SPANK_PLUGIN(terrace, 1)

enum { no_memory = 125 };  // as terrace run and lease exec say it
enum { option_size, option_pool, option_mode, option_ddr };

static struct terrace_site site = {.terrace = TERRACE_PROGRAM};
static struct terrace_request request;
static int other_options;  // without --terrace they mean nothing
static int size_given;
static int failed;
static struct terrace_keeper keeper = {.input = -1, .output = -1};

static int read_option(int which, const char* text, int remote) {
  (void)remote;
  static const char* const names[] = {"--terrace", "--terrace-pool", "--terrace-mode", "--terrace-ddr"};
  char why[terrace_why_bytes] = "";
  int status = -1;
  if (text == NULL) text = "";
  if (which == option_size) {
    size_given = 1;
    status = terrace_read_size(text, &request.bytes, why, sizeof(why));
  } else {
    other_options = 1;
    if (which == option_pool) status = terrace_read_pool(text, request.pool, why, sizeof(why));
    if (which == option_mode) status = terrace_read_mode(text, &request.mode, why, sizeof(why));
    if (which == option_ddr) status = terrace_read_size(text, &request.ddr_bytes, why, sizeof(why));
  }
  if (status != 0) slurm_error("%s: %s", names[which], why);
  return status;
}

static struct spank_option options[] = {
    {(char*)"terrace", (char*)"size", (char*)"memory of Terrace on each host, as 16G; 0: none", 1, option_size,
     read_option},
    {(char*)"terrace-pool", (char*)"name", (char*)"the pool that it comes from", 1, option_pool, read_option},
    {(char*)"terrace-mode", (char*)"run|env",
     (char*)"run: tasks under 'terrace run'; env: a lease, named in TERRACE_LEASE_LABEL", 1, option_mode,
     read_option},
    {(char*)"terrace-ddr", (char*)"size", (char*)"mode run: the tasks' DDR on each host", 1, option_ddr,
     read_option}};

static int is_submitting(void) {
  return spank_context() == S_CTX_LOCAL || spank_context() == S_CTX_ALLOCATOR;
}

// A word that is wrong stops no job: it is said, and left out.
int slurm_spank_init(spank_t spank, int count, char* words[]) {
  char why[terrace_why_bytes];
  for (int i = 0; i < count; ++i)
    if (terrace_read_site_word(words[i], &site, why, sizeof(why)) != 0) slurm_error("terrace: %s", why);
  if (!is_submitting() && spank_context() != S_CTX_REMOTE) return 0;
  for (size_t i = 0; i < sizeof(options) / sizeof(*options); ++i)
    if (spank_option_register(spank, &options[i]) != ESPANK_SUCCESS) return -1;
  return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char* words[]) {
  (void)spank, (void)count, (void)words;
  if (!is_submitting() || size_given || !other_options) return 0;
  slurm_error("--terrace-pool, --terrace-mode and --terrace-ddr need --terrace=SIZE");
  return -1;
}

// Slurm's name of this node, which is no other node's: several may be on one machine. Where Slurm does not say it (a list of
// very many nodes), the machine's.
static void name_node(spank_t spank, uint32_t step, char* name, size_t bytes) {
  char list[8192];
  uint32_t index = 0;
  *name = '\0';
  const char* variable = step == SLURM_BATCH_SCRIPT ? "SLURM_JOB_NODELIST" : "SLURM_STEP_NODELIST";
  if (spank_get_item(spank, S_JOB_NODEID, &index) == ESPANK_SUCCESS &&
      spank_getenv(spank, variable, list, sizeof(list)) == ESPANK_SUCCESS) {
    hostlist_t nodes = slurm_hostlist_create(list);
    for (char* one; nodes != NULL && *name == '\0' && (one = slurm_hostlist_shift(nodes)) != NULL; free(one))
      if (index-- == 0) snprintf(name, bytes, "%s", one);
    if (nodes != NULL) slurm_hostlist_destroy(nodes);
  }
  if (*name != '\0') return;
  gethostname(name, bytes - 1);
  name[strcspn(name, ".")] = '\0';
}

// slurm-JOB.STEP-HOST
static int make_label(spank_t spank, char* label, size_t bytes) {
  uint32_t job = 0, step = 0;
  char host[64] = "", step_text[16];
  if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS)
    return -1;
  name_node(spank, step, host, sizeof(host));
  snprintf(step_text, sizeof(step_text), "%" PRIu32, step);
  const char* name = step == SLURM_BATCH_SCRIPT       ? "batch"
                     : step == SLURM_INTERACTIVE_STEP ? "interactive"
                                                      : step_text;
  snprintf(label, bytes, "slurm-%" PRIu32 ".%s-%s", job, name, host);
  return 0;
}

// The step that only stands for what comes to a node from elsewhere (ssh) has no tasks.
static int has_tasks(spank_t spank) {
  uint32_t step = 0;
  return spank_remote(spank) == 1 && spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
         step != SLURM_EXTERN_CONT;
}

static const char* chosen_pool(void) { return *request.pool != '\0' ? request.pool : site.pool; }

// A step that is started from a script under `terrace run` has inherited what concerns only that run's own processes.
static void leave_other_run(spank_t spank) {
  static const char* const names[] = {"TERRACE_SUPPLY",   "TERRACE_MIN_SIZE",         "TERRACE_MMAP",
                                      "TERRACE_FALLBACK", "TERRACE_SECCOMP_FILTERS", "TERRACE_MALLOC_LIBRARY"};
  char preload[PATH_MAX], kept[PATH_MAX] = "", *rest = preload;
  if (spank_getenv(spank, "TERRACE_SUPPLY", preload, sizeof(preload)) == ESPANK_ENV_NOEXIST) return;
  for (size_t i = 0; i < sizeof(names) / sizeof(*names); ++i) spank_unsetenv(spank, names[i]);
  if (spank_getenv(spank, "LD_PRELOAD", preload, sizeof(preload)) != ESPANK_SUCCESS) return;
  for (char* one = strsep(&rest, ": "); one != NULL; one = strsep(&rest, ": ")) {
    const char* slash = strrchr(one, '/');
    if (*one == '\0' || strncmp(slash != NULL ? slash + 1 : one, "libterrace_", 11) == 0) continue;
    if (*kept != '\0') strcat(kept, ":");
    strcat(kept, one);
  }
  if (*kept != '\0')
    spank_setenv(spank, "LD_PRELOAD", kept, 1);
  else
    spank_unsetenv(spank, "LD_PRELOAD");
}

static void set_number(spank_t spank, const char* name, uint64_t value) {
  char text[24];
  snprintf(text, sizeof(text), "%" PRIu64, value);
  spank_setenv(spank, name, text, 1);
}

// slurmd cannot end a step that has not begun: while it waits for memory, scancel reaches only the job's record.
static int is_given_up(const struct terrace_keeper_order* order) {
  job_info_msg_t* jobs = NULL;
  if (slurm_load_job(&jobs, order->job, 0) != SLURM_SUCCESS) return slurm_get_errno() == ESLURM_INVALID_JOB_ID;
  int wanted = 0;
  for (uint32_t i = 0; i < jobs->record_count; ++i) {
    const uint32_t state = jobs->job_array[i].job_state & JOB_STATE_BASE;
    if (jobs->job_array[i].job_id == order->job) wanted = state == JOB_RUNNING || state == JOB_SUSPENDED;
  }
  slurm_free_job_info_msg(jobs);
  return !wanted;
}

static int take_lease(spank_t spank, char* why, size_t why_bytes) {
  char label[terrace_name_bytes_max];
  struct terrace_keeper_order order = {.site = &site,
                                       .label = label,
                                       .pool = chosen_pool(),
                                       .bytes = request.bytes,
                                       .is_given_up = is_given_up};
  gid_t* groups = NULL;
  snprintf(why, why_bytes, "Slurm does not say whose step this is");
  if (make_label(spank, label, sizeof(label)) != 0 ||
      spank_get_item(spank, S_JOB_ID, &order.job) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_UID, &order.uid) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_GID, &order.gid) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &groups, &order.group_count) != ESPANK_SUCCESS)
    return -1;
  order.groups = groups;
  if (terrace_keeper_start(&order, &keeper, why, why_bytes) != 0) return -1;
  spank_setenv(spank, "TERRACE_LEASE_LABEL", label, 1);
  set_number(spank, "TERRACE_LEASE_ID", keeper.lease);
  set_number(spank, "TERRACE_LEASE_BYTES", keeper.bytes);
  return 0;
}

// By now errors go to the step's stderr, too.
int slurm_spank_user_init(spank_t spank, int count, char* words[]) {
  (void)count, (void)words;
  char why[terrace_why_bytes];
  if (!has_tasks(spank)) return 0;
  leave_other_run(spank);
  if (request.bytes == 0) return 0;
  if (*site.socket != '\0') spank_setenv(spank, "TERRACE_SOCKET", site.socket, 1);
  if (request.mode != terrace_mode_env || take_lease(spank, why, sizeof(why)) == 0) return 0;
  failed = 1;
  slurm_error("terrace: no lease of %" PRIu64 " bytes: %s", request.bytes, why);
  return 0;
}

// What stands before the program: terrace run --label L --cxl BYTES ... --, one word a line.
static int make_run_words(spank_t spank, char* words, size_t bytes) {
  char label[terrace_name_bytes_max], ddr[64] = "", pool[terrace_name_bytes_max + 16] = "";
  uint32_t tasks = 1;
  int task = 0;
  if (make_label(spank, label, sizeof(label)) != 0 || spank_get_item(spank, S_TASK_ID, &task) != ESPANK_SUCCESS ||
      spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks) != ESPANK_SUCCESS || tasks == 0)
    return -1;
  if (request.ddr_bytes != 0) snprintf(ddr, sizeof(ddr), "--ddr\n%" PRIu64 "\n", request.ddr_bytes / tasks);
  if (*chosen_pool() != '\0') snprintf(pool, sizeof(pool), "--pool\n%s\n", chosen_pool());
  const int length = snprintf(words, bytes, "%s\nrun\n--label\n%s.%d\n--cxl\n%" PRIu64 "\n%s%s--", site.terrace,
                              label, task, request.bytes / tasks, ddr, pool);
  return length > 0 && (size_t)length < bytes ? 0 : -1;
}

// The library lies beside this one.
static int make_preload(spank_t spank, char* preload, size_t bytes) {
  Dl_info self;
  char others[PATH_MAX] = "";
  if (dladdr(&site, &self) == 0 || strrchr(self.dli_fname, '/') == NULL) return -1;
  const int folder = (int)(strrchr(self.dli_fname, '/') - self.dli_fname);
  const spank_err_t found = spank_getenv(spank, "LD_PRELOAD", others, sizeof(others));
  if (found != ESPANK_SUCCESS && found != ESPANK_ENV_NOEXIST) return -1;
  if (found != ESPANK_SUCCESS) *others = '\0';
  const int length = snprintf(preload, bytes, "%.*s/libterrace_slurm_task.so%s%s", folder, self.dli_fname,
                              *others != '\0' ? ":" : "", others);
  return length > 0 && (size_t)length < bytes ? 0 : -1;
}

int slurm_spank_task_init(spank_t spank, int count, char* words[]) {
  (void)count, (void)words;
  char run[2 * PATH_MAX], preload[3 * PATH_MAX];
  if (!has_tasks(spank) || request.bytes == 0) return 0;
  if (failed) _exit(no_memory);
  if (request.mode != terrace_mode_run) return 0;
  if (make_run_words(spank, run, sizeof(run)) != 0 || make_preload(spank, preload, sizeof(preload)) != 0) {
    slurm_error("terrace: the task cannot be started under 'terrace run': a path or LD_PRELOAD is too long");
    _exit(no_memory);
  }
  spank_setenv(spank, "TERRACE_SLURM_RUN", run, 1);
  spank_setenv(spank, "LD_PRELOAD", preload, 1);
  return 0;
}

int slurm_spank_exit(spank_t spank, int count, char* words[]) {
  (void)spank, (void)count, (void)words;
  if (terrace_keeper_end(&keeper) != 0)
    slurm_error("terrace: the step's lease was not given back in time; the manager takes it when its keeper ends");
  return 0;
}
