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
func unpacker(path string) (name string, unpack func(io.Reader) (in io.Reader, done func())) {
	lower := strings.ToLower(path)
	switch {
	case strings.HasSuffix(lower, ".gz"):
		return path[:len(path)-len(".gz")], unpackGzip
	case strings.HasSuffix(lower, ".zst"):
		return path[:len(path)-len(".zst")], unpackZstd
	}
	return path, nil
}

func unpackGzip(r io.Reader) (io.Reader, func()) {
	z, err := gzip.NewReader(bufio.NewReader(r))
	if err != nil {
		return failing{unpackError("gzip", err)}, func() {}
	}
	return unpacking{z, "gzip"}, func() { z.Close() }
}

func unpackZstd(r io.Reader) (io.Reader, func()) {
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return failing{unpackError("zstd", err)}, func() {}
	}
	return unpacking{z, "zstd"}, z.Close
}

// unpacking marks read errors as decompression errors.
type unpacking struct {
	r      io.Reader
	format string
}

// Read implements io.Reader.
func (u unpacking) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
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
