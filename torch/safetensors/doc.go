// Package safetensors reads and writes safetensors files and sharded model folders. It also opens torch.save and GGUF files
// in folders without safetensors.
//
// A file is a little-endian uint64 header length, the header, and the data. The header maps each tensor's name to its dtype,
// shape and half-open byte range in the data; "__metadata__" may hold string pairs. See
// https://huggingface.co/docs/safetensors.
//
// Files are untrusted input. [Open] validates the header completely: known dtypes, dtype × shape equal to each byte range,
// and ranges that cover the data exactly once. Later reads rely on that.
package safetensors
