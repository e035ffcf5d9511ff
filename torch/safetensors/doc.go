// Package safetensors reads and writes the safetensors format: tensors in one
// file behind a JSON header, and folders that shard them over several files. Of
// folders that have none, it reads the files of torch.save.
//
// A file is a little-endian uint64 header length, the header, and the data. The
// header maps each tensor's name to its dtype, shape and half-open byte range
// within the data; "__metadata__" may hold string pairs. The format is described
// at https://huggingface.co/docs/safetensors.
//
// Files are untrusted input. [Open] accepts a file only when every claim of its
// header holds: dtypes are known, dtype × shape equals each byte range, and the
// ranges cover the data exactly once. All later reads rely on that.
package safetensors
