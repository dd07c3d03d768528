// The measured program of bench_malloc: prints the ns that one malloc/free pair of SIZE bytes takes, as the
// median of several stretches. Built without sanitizers, since it runs both plainly and under the preload
// library.
//   bench_malloc_child SIZE PAIRS
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  size_t size = strtoull(argv[1], nullptr, 10);
  long pairs = strtol(argv[2], nullptr, 10);
  constexpr int stretches = 9;
  double ns[stretches];
  for (double& one : ns) {
    timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < pairs; ++i) {
      auto* block = static_cast<volatile char*>(malloc(size));
      if (block == nullptr) return 1;
      *block = 1;
      free(const_cast<char*>(block));
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    one = (static_cast<double>(end.tv_sec - begin.tv_sec) * 1e9 +
           static_cast<double>(end.tv_nsec - begin.tv_nsec)) /
          static_cast<double>(pairs);
  }
  std::sort(ns, ns + stretches);
  printf("%.3f\n", ns[stretches / 2]);
  return 0;
}
