// Package pickle locates the tensors in a torch.save file such as pytorch_model.bin: names, dtypes, shapes and offsets, for
// others to read or map the bytes.
//
// The format is an uncompressed zip archive, as written by PyTorch 1.6 and later: data.pkl, a pickle of protocol 2 that
// describes the tensors, and a record data/KEY for each storage. A pickle is a program, but nothing of it is executed:
// [Read] interprets the few instructions that rebuild a dictionary of tensors, and refuses any other name. Work and memory
// are bounded by the file's size and by fixed limits; checksums are verified.
package pickle
