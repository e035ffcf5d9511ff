#ifndef RLTRAIN_LOADER_H_
#define RLTRAIN_LOADER_H_
#include "../csrc/include/rltrain.h"

/* Opens the library and binds every function; 0 is success, else message says what is wrong. */
int rlt_open(const char* path, char* message, int size);

/* Opens a library that others are to find by its name; 0 is success, else message says what is wrong. */
int rlt_preload(const char* path, char* message, int size);

#endif
