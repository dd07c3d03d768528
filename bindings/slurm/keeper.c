// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include "bindings/slurm/keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  answer_s = 65,  // terrace itself gives up after 60
  taken_label_s = 10,
  end_s = 10,
  look_ms = 5000,  // between two questions of slurmctld
  words_max = 20
};

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// All that the new process needs, made before the fork: slurmstepd has threads, so the child must not allocate.
struct start {
  const struct terrace_keeper_order* order;
  char* words[words_max];
  char* environment[4];
  char failure[PATH_MAX + 64];
  char numbers[3][24];
  char socket[PATH_MAX + 24];
};

static void prepare(const struct terrace_keeper_order* order, struct start* start) {
  char** word = start->words;
  start->order = order;
  snprintf(start->numbers[0], sizeof(start->numbers[0]), "%" PRIu64, order->bytes);
  snprintf(start->numbers[1], sizeof(start->numbers[1]), "%ld", (long)getpid());
  snprintf(start->numbers[2], sizeof(start->numbers[2]), "%us", order->site->wait_s);
  const char* const always[] = {order->site->terrace, "--json",          "lease", "hold",  order->label,
                                "--size",             start->numbers[0], "--pid", start->numbers[1], "--stdin"};
  for (size_t i = 0; i < sizeof(always) / sizeof(*always); ++i) *word++ = (char*)always[i];
  if (*order->pool != '\0') {
    *word++ = (char*)"--pool";
    *word++ = (char*)order->pool;
  }
  if (order->site->wait_s != 0) {
    *word++ = (char*)"--wait";
    *word++ = start->numbers[2];
  }
  *word = NULL;
  char** variable = start->environment;
  *variable++ = (char*)"PATH=/usr/bin:/bin";
  if (*order->site->socket != '\0') {
    snprintf(start->socket, sizeof(start->socket), "TERRACE_SOCKET=%s", order->site->socket);
    *variable++ = start->socket;
  }
  *variable = NULL;
  snprintf(start->failure, sizeof(start->failure), "{\"error\": {\"message\": \"%s cannot be started\"}}\n",
           order->site->terrace);
}

// From root with the job's effective user, as hooks run, to the job's user for good.
static int become(const struct terrace_keeper_order* order) {
  if (getuid() == order->uid && geteuid() == order->uid && order->uid != 0) return 0;
  return seteuid(0) != 0 || setgroups((size_t)order->group_count, order->groups) != 0 ||
                 setresgid(order->gid, order->gid, order->gid) != 0 ||
                 setresuid(order->uid, order->uid, order->uid) != 0
             ? -1
             : 0;
}

static void exec_keeper(const struct start* start, int input, int output) {
  sigset_t none;
  sigemptyset(&none);
  const int nothing = open("/dev/null", O_WRONLY);
  // Not slurmstepd's stderr: a step does not end while somebody has it.
  const int ready = dup2(input, 0) == 0 && dup2(output, 1) == 1 && dup2(nothing, 2) == 2 && chdir("/") == 0 &&
                    syscall(SYS_close_range, 3U, ~0U, 0U) == 0 && become(start->order) == 0;
  signal(SIGPIPE, SIG_DFL);
  sigprocmask(SIG_SETMASK, &none, NULL);
  if (ready) execve(start->words[0], start->words, start->environment);
  const ssize_t written = write(1, start->failure, strlen(start->failure));
  _exit(written > 0 ? 127 : 126);
}

static int start_process(const struct start* start, struct terrace_keeper* keeper) {
  int input[2] = {-1, -1}, output[2] = {-1, -1};
  if (pipe2(input, O_CLOEXEC) != 0) return -1;
  pid_t between = -1;
  if (pipe2(output, O_CLOEXEC) == 0) between = fork();
  if (between == 0) {
    setsid();
    const pid_t pid = fork();
    if (pid == 0) exec_keeper(start, input[0], output[1]);
    _exit(pid < 0);
  }
  const int failed = errno;
  if (between > 0)
    while (waitpid(between, NULL, 0) < 0 && errno == EINTR) {
    }
  close(input[0]);
  if (output[1] >= 0) close(output[1]);
  keeper->input = input[1];
  keeper->output = output[0];
  errno = failed;
  return between > 0 ? 0 : -1;
}

// Up to the end of a line that says {"held"}, or of all that it says. The number of bytes; -1: not in time; -2: nobody wants
// it any more.
static ssize_t read_answer(const struct terrace_keeper_order* order, int output, char* text, size_t bytes, int64_t until_ms) {
  size_t filled = 0;
  for (;;) {
    text[filled] = '\0';
    if (filled + 1 == bytes || (strncmp(text, "{\"held\"", 7) == 0 && strchr(text, '\n') != NULL))
      return (ssize_t)filled;
    struct pollfd wait = {.fd = output, .events = POLLIN};
    const int64_t left_ms = until_ms - now_ms();
    if (left_ms <= 0) return -1;
    const int ready = poll(&wait, 1, (int)(left_ms < look_ms ? left_ms : look_ms));
    if (ready == 0 && order->is_given_up(order)) return -2;
    if (ready <= 0) continue;
    const ssize_t got = read(output, text + filled, bytes - 1 - filled);
    if (got == 0) return (ssize_t)filled;
    if (got > 0) filled += (size_t)got;
  }
}

// The number behind `key`, 0 where there is none.
static uint64_t number_of(const char* document, const char* key) {
  const char* at = strstr(document, key);
  return at != NULL ? strtoull(at + strlen(key), NULL, 10) : 0;
}

// The text behind `key` of the document of an error; what JSON escapes is shown as it is written, but for quotes.
static void text_of(const char* document, const char* key, char* to, size_t bytes) {
  const char* at = strstr(document, key);
  size_t filled = 0;
  if (at != NULL) at = strchr(at + strlen(key), '"');
  for (at = at != NULL ? at + 1 : ""; *at != '\0' && *at != '"' && filled + 1 < bytes; ++at) {
    if (at[0] == '\\' && (at[1] == '"' || at[1] == '\\')) ++at;
    to[filled++] = *at;
  }
  to[filled] = '\0';
}

// 1: held; 0: the label is taken; -1: `why` says why not.
static int try_once(const struct start* start, struct terrace_keeper* keeper, int64_t until_ms, char* why,
                    size_t why_bytes) {
  char answer[8192], message[terrace_why_bytes], code[64];
  if (start_process(start, keeper) != 0) {
    snprintf(why, why_bytes, "cannot start a process: %s", strerror(errno));
    terrace_keeper_end(keeper);
    return -1;
  }
  const ssize_t got = read_answer(start->order, keeper->output, answer, sizeof(answer), until_ms);
  if (got > 0 && strncmp(answer, "{\"held\"", 7) == 0) {
    keeper->lease = number_of(answer, "\"id\":");
    keeper->bytes = number_of(answer, "\"bytes\":");
    return 1;
  }
  text_of(answer, "\"message\":", message, sizeof(message));
  text_of(answer, "\"code\":", code, sizeof(code));
  if (got == -2)
    snprintf(why, why_bytes, "the job has ended while it waited");
  else if (got < 0)
    snprintf(why, why_bytes, "%s did not answer in time", start->words[0]);
  else if (*message == '\0')
    snprintf(why, why_bytes, "%s ended without an answer", start->words[0]);
  else
    snprintf(why, why_bytes, "%s%s%s%s", message, *code != '\0' ? " [" : "", code, *code != '\0' ? "]" : "");
  close(keeper->input);
  close(keeper->output);
  keeper->input = keeper->output = -1;
  return strcmp(code, "already_exists") == 0 ? 0 : -1;
}

int terrace_keeper_start(const struct terrace_keeper_order* order, struct terrace_keeper* keeper, char* why,
                         size_t why_bytes) {
  struct start start;
  prepare(order, &start);
  const int64_t wait_ms = (int64_t)order->site->wait_s * 1000;
  const int64_t taken_until_ms = now_ms() + wait_ms + taken_label_s * 1000;
  for (;;) {
    const int done = try_once(&start, keeper, now_ms() + wait_ms + answer_s * 1000, why, why_bytes);
    if (done != 0) return done > 0 ? 0 : -1;
    if (now_ms() >= taken_until_ms) return -1;
    const struct timespec pause = {.tv_nsec = 200 * 1000 * 1000};
    nanosleep(&pause, NULL);
  }
}

int terrace_keeper_end(struct terrace_keeper* keeper) {
  const int64_t until_ms = now_ms() + end_s * 1000;
  if (keeper->input >= 0) close(keeper->input);
  keeper->input = -1;
  int ended = keeper->output < 0;
  while (!ended) {
    char notices[4096];
    struct pollfd wait = {.fd = keeper->output, .events = POLLIN};
    const int64_t left_ms = until_ms - now_ms();
    if (left_ms <= 0) break;
    if (poll(&wait, 1, (int)left_ms) > 0) ended = read(keeper->output, notices, sizeof(notices)) == 0;
  }
  if (keeper->output >= 0) close(keeper->output);
  keeper->output = -1;
  return ended ? 0 : -1;
}
