package pickle

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// Tensor is one tensor of a file.
type Tensor struct {
	Name  string
	DType string // as safetensors spells it: "F32"
	Shape []int64
	// Strides, in elements, say how far apart neighbours of each dimension lie; nil where all elements lie
	// one after another, the last dimension fastest.
	Strides []int64
	Offset  int64 // of the first element, in bytes from the start of the file
}

// legacy begins what torch.save wrote before PyTorch 1.6: a pickle of its magic number.
const legacy = "\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."

// Read lists the tensors of the state dict in the size bytes of r, in its order. It reads all of the file,
// to verify the checksums. Errors say in one line what of the file is at fault, without its path.
func Read(r io.ReaderAt, size int64) ([]Tensor, error) {
	begin := make([]byte, min(size, int64(len(legacy))))
	if _, err := r.ReadAt(begin, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case string(begin) == legacy:
		return nil, errors.New("it is in the format of torch.save before PyTorch 1.6, which is not read: load it with PyTorch and save it as safetensors")
	case !strings.HasPrefix(string(begin), "PK\x03\x04"):
		return nil, errors.New("it does not begin as a zip archive of torch.save does")
	}
	archive, err := openArchive(r, size)
	if err != nil {
		return nil, err
	}
	data, err := archive.small("data.pkl", maxPickle)
	if err != nil {
		return nil, err
	}
	root, err := unpickle(data)
	if err != nil {
		return nil, fmt.Errorf("data.pkl: %w", err)
	}
	return archive.tensors(root)
}

// archive is the zip file: its records by their names below its one folder.
type archive struct {
	records map[string]*zip.File
	offsets map[string]int64 // of the data of verified storages
}

func openArchive(r io.ReaderAt, size int64) (*archive, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("%w (is it cut short?)", err)
	}
	a := &archive{records: map[string]*zip.File{}, offsets: map[string]int64{}}
	folder := ""
	for _, f := range z.File {
		if path.Base(f.Name) == "data.pkl" {
			if folder != "" {
				return nil, errors.New("it has more than one data.pkl")
			}
			folder = strings.TrimSuffix(f.Name, "data.pkl")
		}
	}
	if folder == "" {
		return nil, errors.New("it is a zip archive without a folder with data.pkl: torch.save did not write it")
	}
	for _, f := range z.File {
		name, ok := strings.CutPrefix(f.Name, folder)
		if !ok {
			continue
		}
		if a.records[name] != nil {
			return nil, fmt.Errorf("the record %.120q comes twice", name)
		}
		a.records[name] = f
	}
	if a.records["byteorder"] != nil {
		order, err := a.small("byteorder", maxName)
		if err != nil {
			return nil, err
		}
		if string(order) != "little" {
			return nil, fmt.Errorf("its byte order is %.40q, only \"little\" is read", order)
		}
	}
	return a, nil
}

// record finds a record, which must not be compressed.
func (a *archive) record(name string) (*zip.File, error) {
	f := a.records[name]
	switch {
	case f == nil:
		return nil, fmt.Errorf("it has no record %.120q", name)
	case f.Method != zip.Store || f.CompressedSize64 != f.UncompressedSize64:
		return nil, fmt.Errorf("the record %.120q is compressed: torch.save does not do that", name)
	}
	return f, nil
}

// small reads a record of at most limit bytes.
func (a *archive) small(name string, limit uint64) ([]byte, error) {
	f, err := a.record(name)
	if err != nil {
		return nil, err
	}
	if f.UncompressedSize64 > limit {
		return nil, fmt.Errorf("the record %.120q has %d bytes, at most %d are read", name, f.UncompressedSize64, limit)
	}
	var data []byte
	err = verify(f, func(r io.Reader) error {
		data, err = io.ReadAll(r)
		return err
	})
	return data, err
}

// verify passes all of a record through read, with its checksum.
func verify(f *zip.File, read func(io.Reader) error) error {
	r, err := f.Open()
	if err == nil {
		defer r.Close()
		err = read(r)
	}
	if err != nil {
		return fmt.Errorf("the record %.120q: %w (is the file damaged?)", f.Name, err)
	}
	return nil
}

// widths are the bytes of an element.
var widths = map[storageType]int64{
	"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}

// tensors are the values of the dictionary root, which must all be tensors.
func (a *archive) tensors(root any) ([]Tensor, error) {
	d, ok := root.(*dict)
	if !ok {
		return nil, fmt.Errorf("it holds %s, want a dictionary of tensors", kind(root))
	}
	seen := map[string]bool{}
	var list []Tensor
	for i, name := range d.keys {
		v, ok := d.values[i].(*view)
		if !ok {
			return nil, fmt.Errorf("%.120q is %s, want a dictionary of tensors alone", name, kind(d.values[i]))
		}
		if seen[name] {
			return nil, fmt.Errorf("tensor %.120q comes twice", name)
		}
		seen[name] = true
		start, err := a.storage(v.storage)
		if err != nil {
			return nil, fmt.Errorf("tensor %.120q: %w", name, err)
		}
		t := Tensor{Name: name, DType: string(v.storage.dtype), Shape: v.shape, Offset: start + v.offset*widths[v.storage.dtype]}
		if !v.dense() {
			t.Strides = v.strides
		}
		list = append(list, t)
	}
	return list, nil
}

// storage is where the data of a storage begins in the file. Its record must have just its size; its
// checksum is verified the first time.
func (a *archive) storage(s storage) (int64, error) {
	name := "data/" + s.key
	f, err := a.record(name)
	if err != nil {
		return 0, err
	}
	width := widths[s.dtype]
	if size := f.UncompressedSize64; size%uint64(width) != 0 || size/uint64(width) != uint64(s.numel) {
		return 0, fmt.Errorf("the record %.120q has %d bytes, a storage of %d elements of %s wants another size", name, size, s.numel, s.dtype)
	}
	if offset, ok := a.offsets[name]; ok {
		return offset, nil
	}
	if err := verify(f, func(r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	}); err != nil {
		return 0, err
	}
	offset, err := f.DataOffset()
	if err != nil {
		return 0, fmt.Errorf("the record %.120q: %w", name, err)
	}
	a.offsets[name] = offset
	return offset, nil
}
