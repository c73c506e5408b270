/* Reads a handwritten digit: et_cffi from a C program, without Python.
 *
 *   digits MODEL IMAGE
 *
 * IMAGE is the 8x8 pixels as raw float32. Prints the scores, one a line, and the digit. Built by build.sh.
 */
#include <et_cffi.h>
#include <stdio.h>
#include <stdlib.h>

static void check(etcffi_status status, const char *what) {
  if (status != 0) {
    fprintf(stderr, "%s: %s\n", what, etcffi_last_message());
    exit(1);
  }
}

static void read_image(const char *path, float *pixels, size_t nbytes) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    perror(path);
    exit(1);
  }
  if (fread(pixels, 1, nbytes, file) != nbytes || fgetc(file) != EOF) {
    fprintf(stderr, "%s does not hold %zu bytes\n", path, nbytes);
    exit(1);
  }
  fclose(file);
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s MODEL IMAGE\n", argv[0]);
    return 2;
  }
  check(etcffi_initialize(), "initialize");

  etcffi_program *program = NULL;
  check(etcffi_program_load_file(argv[1], ETCFFI_Verification_InternalConsistency, &program), argv[1]);
  etcffi_tensor_info info;
  check(etcffi_program_tensor_info(program, 0, ETCFFI_INPUT, 0, &info), "what the first input is");
  float pixels[64];
  if (info.scalar_type != ETCFFI_ScalarType_Float || info.nbytes != sizeof(pixels)) {
    fprintf(stderr, "%s does not take 64 pixels of float32\n", argv[1]);
    return 1;
  }
  read_image(argv[2], pixels, sizeof(pixels));

  etcffi_method *method = NULL;
  check(etcffi_method_load(program, "forward", &method), "forward");
  /* The method holds the program, and an output its memory: each is released once nobody here needs it. */
  etcffi_program_release(program);

  etcffi_value input = {.tag = ETCFFI_Tag_Tensor};
  input.memory.data = pixels;
  input.memory.nbytes = sizeof(pixels);
  input.memory.scalar_type = info.scalar_type;
  input.memory.ndim = info.ndim;
  for (int i = 0; i < info.ndim; ++i) {
    input.memory.sizes[i] = info.sizes[i];
  }
  /* Without ETCFFI_PINNED the pixels are read in this call only. */
  etcffi_value output = {0};
  check(etcffi_method_run(method, &input, 1, 1, &output, 1), "run");
  etcffi_method_release(method);

  const etcffi_memory *memory = etcffi_tensor_memory(output.tensor);
  const float *scores = memory->data;
  const size_t count = memory->nbytes / sizeof(float);
  size_t best = 0;
  for (size_t i = 0; i < count; ++i) {
    printf("%.9g\n", (double)scores[i]);
    best = scores[i] > scores[best] ? i : best;
  }
  printf("digit %zu\n", best);
  etcffi_tensor_release(output.tensor);
  return 0;
}
