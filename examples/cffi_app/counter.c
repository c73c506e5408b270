#include <et_cffi.h>
#include <stdlib.h>

#include "counter.h"

page *page_new(size_t count) {
  page *made = calloc(1, sizeof(*made));
  if (made != NULL) {
    made->count = count;
    made->digits = calloc(count, sizeof(*made->digits));
    if (made->digits == NULL) {
      page_free(made);
      made = NULL;
    }
  }
  return made;
}

void page_free(page *page) {
  if (page != NULL) {
    free(page->digits);
    free(page);
  }
}

size_t best_of(const float *scores, size_t count) {
  size_t best = 0;
  for (size_t i = 1; i < count; ++i) {
    best = scores[i] > scores[best] ? i : best;
  }
  return best;
}

etcffi_status read_page(etcffi_program *program, const page *page, int32_t *read) {
  etcffi_method *method = NULL;
  etcffi_status status = etcffi_method_load(program, "forward", &method);
  for (size_t i = 0; status == 0 && i < page->count; ++i) {
    etcffi_value input = {.tag = ETCFFI_Tag_Tensor}, output = {0};
    input.memory.data = page->digits[i];
    input.memory.nbytes = sizeof(page->digits[i]);
    input.memory.scalar_type = ETCFFI_ScalarType_Float;
    input.memory.ndim = 4;
    input.memory.sizes[0] = input.memory.sizes[1] = 1;
    input.memory.sizes[2] = input.memory.sizes[3] = 8;
    status = etcffi_method_run(method, &input, 1, 1, &output, 1);
    if (status == 0) {
      const etcffi_memory *scores = etcffi_tensor_memory(output.tensor);
      read[i] = (int32_t)best_of(scores->data, scores->nbytes / sizeof(float));
      etcffi_tensor_release(output.tensor);
    }
  }
  etcffi_method_release(method);
  return status;
}
