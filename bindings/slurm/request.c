// SPDX-License-Identifier: Apache-2.0
#include "bindings/slurm/request.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refused(char* why, size_t why_bytes, const char* text, const char* hint) {
  snprintf(why, why_bytes, "'%s' is not %s", text, hint);
  return -1;
}

static int copied(const char* text, char* to, size_t bytes, char* why, size_t why_bytes) {
  if (*text == '\0' || strlen(text) >= bytes) return refused(why, why_bytes, text, "of a length that can be");
  strcpy(to, text);
  return 0;
}

// As the command line reads sizes (core/base/units.cc): 4096, 64M, 2GiB, 1.5G; powers of 1024.
int terrace_read_size(const char* text, uint64_t* bytes, char* why, size_t why_bytes) {
  static const char letters[] = "kmgt";
  static const char hint[] = "a size; write it as 4096, 64M, 2GiB or 1.5G";
  size_t digits = strspn(text, "0123456789");
  const int fraction = text[digits] == '.';
  if (fraction) digits += 1 + strspn(text + digits + 1, "0123456789");
  if (digits == 0 || digits > 30 || (fraction && digits == 1)) return refused(why, why_bytes, text, hint);
  const char* suffix = text + digits;
  uint64_t factor = 1;
  const char* letter = *suffix != '\0' ? strchr(letters, tolower((unsigned char)*suffix)) : NULL;
  if (letter != NULL) {
    factor <<= 10 * (letter - letters + 1);
    ++suffix;
    if (tolower((unsigned char)*suffix) == 'i' && suffix[1] != '\0') ++suffix;  // only before a b
  }
  if (tolower((unsigned char)*suffix) == 'b') ++suffix;
  if (*suffix != '\0') return refused(why, why_bytes, text, hint);
  const double scaled = strtod(text, NULL) * (double)factor;
  if (!(scaled < 9.2e18)) return refused(why, why_bytes, text, hint);
  *bytes = fraction ? (uint64_t)(scaled + 0.5) : strtoull(text, NULL, 10) * factor;
  return 0;
}

// The manager decides which names there are; here only what would break the words that are handed on.
int terrace_read_pool(const char* text, char* pool, char* why, size_t why_bytes) {
  for (const char* at = text; *at != '\0'; ++at)
    if (iscntrl((unsigned char)*at)) return refused(why, why_bytes, "(control characters)", "a pool's name");
  if (*text == '-') return refused(why, why_bytes, text, "a pool's name");
  return copied(text, pool, terrace_name_bytes_max, why, why_bytes);
}

int terrace_read_mode(const char* text, enum terrace_mode* mode, char* why, size_t why_bytes) {
  if (strcmp(text, "run") == 0)
    *mode = terrace_mode_run;
  else if (strcmp(text, "env") == 0)
    *mode = terrace_mode_env;
  else
    return refused(why, why_bytes, text, "a mode: run (programs as they are) or env (programs that take a lease)");
  return 0;
}

// As long as the manager lets a grant wait.
enum { wait_s_max = 3600 };

static int read_wait(const char* text, unsigned* seconds, char* why, size_t why_bytes) {
  char* end = NULL;
  const unsigned long number = strtoul(text, &end, 10);
  const unsigned long factor = strcmp(end, "h") == 0   ? 3600
                               : strcmp(end, "m") == 0 ? 60
                               : strcmp(end, "s") == 0 ? 1
                                                       : 0;
  if (!isdigit((unsigned char)*text) || factor == 0 || number > wait_s_max / factor)
    return refused(why, why_bytes, text, "a wait of at most an hour; write it as 30s, 5m or 1h");
  *seconds = (unsigned)(number * factor);
  return 0;
}

int terrace_read_site_word(const char* word, struct terrace_site* site, char* why, size_t why_bytes) {
  const char* value = strchr(word, '=');
  const size_t name = value != NULL ? (size_t)(value - word) : 0;
  if (value != NULL) ++value;
  if (name == 7 && strncmp(word, "terrace", name) == 0)
    return copied(value, site->terrace, sizeof(site->terrace), why, why_bytes);
  if (name == 6 && strncmp(word, "socket", name) == 0)
    return copied(value, site->socket, sizeof(site->socket), why, why_bytes);
  if (name == 4 && strncmp(word, "pool", name) == 0) return terrace_read_pool(value, site->pool, why, why_bytes);
  if (name == 4 && strncmp(word, "wait", name) == 0) return read_wait(value, &site->wait_s, why, why_bytes);
  return refused(why, why_bytes, word, "known in plugstack.conf: terrace=PATH socket=PATH pool=NAME wait=30s");
}
