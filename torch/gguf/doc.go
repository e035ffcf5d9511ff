// Package gguf reads and writes GGUF, the model format of llama.cpp: metadata and tensors in one file, or in several
// split files ("name-00001-of-00003.gguf").
//
// A file starts with the magic "GGUF", a version (2 or 3), the number of tensors and the number of metadata pairs. The
// pairs and a description of each tensor follow, then the tensor data at an alignment that metadata may set. Everything
// is little-endian. Quantised tensors consist of blocks of 32 or 256 values that share their scales.
//
// Files are untrusted input. [Open] checks every claim of the header against the size of the file and reads no tensor
// data. Memory is bounded by a small multiple of the header's size. The file is mapped: it must not change while it is
// open.
package gguf
