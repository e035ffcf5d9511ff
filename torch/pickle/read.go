package pickle

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// Tensor is a tensor of a file.
type Tensor struct {
	Name  string
	DType string // as in safetensors: "F32"
	Shape []int64
	// Strides, in elements, are the distances between neighbours in each dimension; nil for a contiguous, row-major tensor.
	Strides []int64
	Offset  int64 // of the first element, in bytes from the start of the file
}

// legacy starts files of torch.save before PyTorch 1.6: a pickle of its magic number.
const legacy = "\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."

// Read returns the tensors of the state dict in the size bytes of r, in order. It reads the file completely to verify
// checksums. Errors are one line, without the path.
func Read(r io.ReaderAt, size int64) ([]Tensor, error) {
	begin := make([]byte, min(size, int64(len(legacy))))
	if _, err := r.ReadAt(begin, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case string(begin) == legacy:
		return nil, errors.New("the format of torch.save before PyTorch 1.6 is not supported; load the file with PyTorch and save it as safetensors")
	case !strings.HasPrefix(string(begin), "PK\x03\x04"):
		return nil, errors.New("not a torch.save file: no zip archive")
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

// archive is the zip file: its records by their names below its only folder.
type archive struct {
	records map[string]*zip.File
	offsets map[string]int64 // of the verified storages' data
}

func openArchive(r io.ReaderAt, size int64) (*archive, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("%w; the file may be truncated, download it again", err)
	}
	a := &archive{records: map[string]*zip.File{}, offsets: map[string]int64{}}
	folder := ""
	for _, f := range z.File {
		if path.Base(f.Name) == "data.pkl" {
			if folder != "" {
				return nil, errors.New("more than one data.pkl")
			}
			folder = strings.TrimSuffix(f.Name, "data.pkl")
		}
	}
	if folder == "" {
		return nil, errors.New("not a torch.save file: the zip archive has no data.pkl in a folder")
	}
	for _, f := range z.File {
		name, ok := strings.CutPrefix(f.Name, folder)
		if !ok {
			continue
		}
		if a.records[name] != nil {
			return nil, fmt.Errorf("duplicate record %.120q", name)
		}
		a.records[name] = f
	}
	if a.records["byteorder"] != nil {
		order, err := a.small("byteorder", maxName)
		if err != nil {
			return nil, err
		}
		if string(order) != "little" {
			return nil, fmt.Errorf("byte order %.40q is not supported; want \"little\"", order)
		}
	}
	return a, nil
}

// record finds a record, which must be uncompressed.
func (a *archive) record(name string) (*zip.File, error) {
	f := a.records[name]
	switch {
	case f == nil:
		return nil, fmt.Errorf("no record %.120q", name)
	case f.Method != zip.Store || f.CompressedSize64 != f.UncompressedSize64:
		return nil, fmt.Errorf("record %.120q is compressed, which torch.save never does", name)
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
		return nil, fmt.Errorf("record %.120q has %d bytes, maximum %d", name, f.UncompressedSize64, limit)
	}
	var data []byte
	err = verify(f, func(r io.Reader) error {
		data, err = io.ReadAll(r)
		return err
	})
	return data, err
}

// verify passes a record through read and checks its checksum.
func verify(f *zip.File, read func(io.Reader) error) error {
	r, err := f.Open()
	if err == nil {
		defer r.Close()
		err = read(r)
	}
	if err != nil {
		return fmt.Errorf("record %.120q: %w; the file may be damaged, download it again", f.Name, err)
	}
	return nil
}

// widths are element sizes in bytes.
var widths = map[storageType]int64{
	"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}

// tensors returns the values of the root dictionary, which must all be tensors.
func (a *archive) tensors(root any) ([]Tensor, error) {
	d, ok := root.(*dict)
	if !ok {
		return nil, fmt.Errorf("the file holds %s; want a dictionary of tensors", kind(root))
	}
	seen := map[string]bool{}
	var list []Tensor
	for i, name := range d.keys {
		v, ok := d.values[i].(*view)
		if !ok {
			return nil, fmt.Errorf("%.120q is %s; want only tensors", name, kind(d.values[i]))
		}
		if seen[name] {
			return nil, fmt.Errorf("duplicate tensor %.120q", name)
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

// storage returns the offset of a storage's data in the file. Its record must have the right size; the checksum is verified
// at the first use.
func (a *archive) storage(s storage) (int64, error) {
	name := "data/" + s.key
	f, err := a.record(name)
	if err != nil {
		return 0, err
	}
	width := widths[s.dtype]
	if size := f.UncompressedSize64; size%uint64(width) != 0 || size/uint64(width) != uint64(s.numel) {
		return 0, fmt.Errorf("record %.120q has %d bytes, which does not fit a storage of %d elements of %s", name, size, s.numel, s.dtype)
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
		return 0, fmt.Errorf("record %.120q: %w", name, err)
	}
	a.offsets[name] = offset
	return offset, nil
}
