/* A C library that has its own memory and knows nothing of Python: pages of handwritten digits. */
typedef struct page {
  size_t count;
  float (*digits)[64]; /* 8x8 pixels each */
} page;

/* A page with room for so many digits, or NULL; to be freed with page_free. */
page *page_new(size_t count);
void page_free(page *page);

/* The greatest of some scores. */
size_t best_of(const float *scores, size_t count);

/* Reads every digit of a page in C, with a method of its own: answers in `read`, which has room for all of
 * them. */
etcffi_status read_page(etcffi_program *program, const page *page, int32_t *read);
