// Package pickle reads where the tensors of a file of torch.save lie, such as pytorch_model.bin: names,
// dtypes, shapes and places in the file, for others to read or map the bytes.
//
// The format is a zip archive, as PyTorch 1.6 and later write it: data.pkl, a pickle of protocol 2 that
// describes the tensors, and a record data/KEY for each storage, none of them compressed. A pickle is a
// program. Nothing of it is run here: [Read] takes the few instructions that rebuild a dictionary of
// tensors, and refuses a file that names anything else, by that name. Work and memory are bounded by the
// size of the file and by fixed limits; checksums are verified.
package pickle
