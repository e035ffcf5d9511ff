// How this process takes memory from the system, settled before it has a second thread.
#include <malloc.h>
#include <stdlib.h>

// Activations are freed and taken again at every step; handing their pages back to the system and faulting
// them in anew costs about a seventh of a training step. So large blocks are no mappings of their own, the
// heap never shrinks, and there is a single one: those of further threads are unmapped as soon as they are
// empty, whatever the other settings are, and a thread keeps the one that it began with.
__attribute__((constructor)) static void keep_memory(void) {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
}

// oneDNN keeps compiled code, and libtorch what it has asked oneDNN for, an eighth of a mebibyte each, for each product of
// each size of batch that they have met, a thousand by default. Both would grow for as long as batches of new lengths come;
// and what they keep lies between the blocks that are freed, so that those do not grow together, and the next large one
// takes new memory. 16 are those of one size of batch, which is what is used again: with 64, training on texts of many
// lengths took half as much memory again, and no less time. Read once, at the first use.
__attribute__((constructor)) static void forget_sizes(void) {
  setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16", 0);
  setenv("LRU_CACHE_CAPACITY", "16", 0);
}

void rlt_give_back(void) { malloc_trim(0); }
