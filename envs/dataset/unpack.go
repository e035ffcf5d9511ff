package dataset

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// maxWindow bounds the window of a .zst file: that of zstd --long=27, the most that the zstd command decompresses by
// default.
const maxWindow = 128 << 20

// unpacker returns the name without the compression extension, and the decompressor; nil for an uncompressed file.
func unpacker(path string) (name string, unpack func(io.Reader, func(line string)) (in io.Reader, done func())) {
	lower := strings.ToLower(path)
	switch {
	case strings.HasSuffix(lower, ".gz"):
		return path[:len(path)-len(".gz")], unpackGzip
	case strings.HasSuffix(lower, ".zst"):
		return path[:len(path)-len(".zst")], unpackZstd
	}
	return path, nil
}

func unpackGzip(r io.Reader, progress func(line string)) (io.Reader, func()) {
	packed := &measured{r: r}
	z, err := gzip.NewReader(bufio.NewReader(packed))
	if err != nil {
		return failing{unpackError("gzip", err)}, func() {}
	}
	return &unpacking{r: z, packed: packed, format: "gzip", progress: progress}, func() { z.Close() }
}

func unpackZstd(r io.Reader, progress func(line string)) (io.Reader, func()) {
	packed := &measured{r: r}
	z, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return failing{unpackError("zstd", err)}, func() {}
	}
	return &unpacking{r: z, packed: packed, format: "zstd", progress: progress}, z.Close
}

// A compressed file is refused when it has unpacked to more than maxUnpacked bytes and maxRatio times its size: text packs
// to a tenth, and one that packs to a hundredth is an accident or an attack.
const (
	maxRatio = 100
	sayEvery = 256 << 20 // bytes between lines of progress
	mega     = 1 << 20
)

var maxUnpacked int64 = 1 << 30

// measured counts the bytes read.
type measured struct {
	r io.Reader
	n int64
}

// Read implements io.Reader.
func (m *measured) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	m.n += int64(n)
	return n, err
}

// unpacking bounds what a file unpacks to, and marks read errors as decompression errors.
type unpacking struct {
	r        io.Reader
	packed   *measured
	format   string
	progress func(line string) // may be nil
	n        int64             // bytes unpacked
}

// Read implements io.Reader.
func (u *unpacking) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if u.progress != nil && u.n/sayEvery != (u.n+int64(n))/sayEvery {
		u.progress(fmt.Sprintf("reading %s data: %d MiB unpacked so far", u.format, (u.n+int64(n))/mega))
	}
	u.n += int64(n)
	if u.n > maxUnpacked && u.n > maxRatio*u.packed.n {
		return n, fmt.Errorf("decompressing %s data: %d MiB unpack to more than %d MiB; if the file is right, unpack it yourself", u.format, u.packed.n/mega, u.n/mega)
	}
	if err != nil && err != io.EOF {
		err = unpackError(u.format, err)
	}
	return n, err
}

func unpackError(format string, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) || err == io.EOF {
		return fmt.Errorf("truncated %s data; download the file again", format)
	}
	return fmt.Errorf("decompressing %s data: %w", format, err)
}
