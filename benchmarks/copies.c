/* Counts what memcpy and memmove copy, in pieces of 4 KiB or more, in a process that is started with this
   library in LD_PRELOAD. What a kernel copies with loads and stores of its own is not seen. */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

static _Atomic uint64_t copied;

uint64_t copied_bytes(void) {
  return copied;
}

/* Built with -fno-builtin and -fno-tree-loop-distribute-patterns, or the loops would be calls of themselves.
 */
void *memmove(void *to, const void *from, size_t nbytes) {
  char *target = to;
  const char *source = from;
  if (nbytes >= 4096) {
    copied += nbytes;
  }
  if ((uintptr_t)target - (uintptr_t)source >= nbytes) {
    for (size_t i = 0; i < nbytes; ++i) {
      target[i] = source[i];
    }
  } else {
    for (size_t i = nbytes; i-- > 0;) {
      target[i] = source[i];
    }
  }
  return to;
}

void *memcpy(void *to, const void *from, size_t nbytes) {
  return memmove(to, from, nbytes);
}

void *__memcpy_chk(void *to, const void *from, size_t nbytes, size_t room) {
  (void)room;
  return memmove(to, from, nbytes);
}

void *__memmove_chk(void *to, const void *from, size_t nbytes, size_t room) {
  (void)room;
  return memmove(to, from, nbytes);
}
