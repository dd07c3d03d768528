// SPDX-License-Identifier: Apache-2.0
// Generates tokens with libllama as it is released, and prints them and the times as one line of JSON:
//   generate MODEL [--prompt N] [--tokens N] [--threads N] [--context N] [--no-mmap] [--layers N] [--hold]
// --hold: waits for the end of its input before it frees the model and ends. Greedy, so that runs are comparable.
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct order {
  const char* model;
  int prompt, tokens, threads, context, layers;
  int mmap, hold;
};

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void say_errors(enum ggml_log_level level, const char* text, void* context) {
  (void)context;
  if (level >= GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_CONT) fputs(text, stderr);
}

static int read_order(int count, char** words, struct order* order) {
  if (count < 2) return 0;
  order->model = words[1];
  for (int i = 2; i < count; ++i) {
    const char* value = i + 1 < count ? words[i + 1] : "0";
    if (strcmp(words[i], "--no-mmap") == 0) order->mmap = 0;
    else if (strcmp(words[i], "--hold") == 0) order->hold = 1;
    else if (strcmp(words[i], "--prompt") == 0) order->prompt = atoi(value), ++i;
    else if (strcmp(words[i], "--tokens") == 0) order->tokens = atoi(value), ++i;
    else if (strcmp(words[i], "--threads") == 0) order->threads = atoi(value), ++i;
    else if (strcmp(words[i], "--context") == 0) order->context = atoi(value), ++i;
    else if (strcmp(words[i], "--layers") == 0) order->layers = atoi(value), ++i;
    else return 0;
  }
  return order->prompt > 0 && order->tokens > 0;
}

static llama_token best(const float* logits, int words) {
  int chosen = 0;
  for (int i = 1; i < words; ++i)
    if (logits[i] > logits[chosen]) chosen = i;
  return chosen;
}

static int generate(struct llama_context* context, int words, const struct order* order, double begin, double loaded) {
  llama_token* made = calloc((size_t)(order->prompt + order->tokens), sizeof *made);
  if (made == NULL) return 1;
  for (int i = 0; i < order->prompt; ++i) made[i] = 3 + (i * 31) % (words - 3);
  double first = 0, last = 0;
  struct llama_batch batch = llama_batch_get_one(made, order->prompt);
  for (int i = 0; i < order->tokens; ++i) {
    const int code = llama_decode(context, batch);
    if (code != 0) {
      fprintf(stderr, "generate: llama_decode: %d\n", code);
      free(made);
      return 1;
    }
    llama_token* next = &made[order->prompt + i];
    *next = best(llama_get_logits_ith(context, -1), words);
    last = now();
    if (i == 0) first = last;
    batch = llama_batch_get_one(next, 1);
  }
  printf("{\"load_s\": %.4f, \"first_token_s\": %.4f, \"prompt_per_s\": %.3f, \"tokens_per_s\": %.3f, \"tokens\": [",
         loaded - begin, first - begin, order->prompt / (first - loaded),
         order->tokens > 1 ? (order->tokens - 1) / (last - first) : 0.0);
  for (int i = 0; i < order->tokens; ++i) printf("%s%d", i > 0 ? ", " : "", made[order->prompt + i]);
  printf("]}\n");
  fflush(stdout);
  free(made);
  return 0;
}

int main(int count, char** words) {
  struct order order = {.prompt = 16, .tokens = 24, .threads = 2, .context = 256, .layers = -1, .mmap = 1};
  if (!read_order(count, words, &order)) {
    fprintf(stderr, "usage: generate MODEL [--prompt N] [--tokens N] [--threads N] [--context N] [--layers N] [--no-mmap] [--hold]\n");
    return 2;
  }
  llama_log_set(say_errors, NULL);
  const double begin = now();
  llama_backend_init();
  struct llama_model_params model_options = llama_model_default_params();
  model_options.n_gpu_layers = order.layers;
  model_options.load_mode = order.mmap ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE;
  struct llama_model* model = llama_model_load_from_file(order.model, model_options);
  if (model == NULL) {
    fprintf(stderr, "generate: no model from %s\n", order.model);
    return 1;
  }
  struct llama_context_params options = llama_context_default_params();
  options.n_ctx = (uint32_t)order.context;
  options.n_batch = options.n_ubatch = (uint32_t)order.context;
  options.n_threads = options.n_threads_batch = order.threads;
  struct llama_context* context = llama_init_from_model(model, options);
  if (context == NULL) {
    fprintf(stderr, "generate: no context of %d tokens\n", order.context);
    llama_model_free(model);
    return 1;
  }
  const int words_known = llama_vocab_n_tokens(llama_model_get_vocab(model));
  const int code = generate(context, words_known, &order, begin, now());
  while (order.hold && code == 0 && getchar() != EOF) {
  }
  llama_free(context);
  llama_model_free(model);
  llama_backend_free();
  return code;
}
